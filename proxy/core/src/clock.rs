//! Points in time as they are stored: whole seconds since 1970.

use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// Seconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixTime(u64);

impl UnixTime {
    /// The time now by the host's clock.
    pub fn now() -> Self {
        Self(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        )
    }

    /// Seconds since the epoch.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds)
    }

    /// Seconds since the epoch.
    pub const fn seconds(self) -> u64 {
        self.0
    }

    /// The time that much earlier, at the earliest 1970.
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.as_secs()))
    }

    /// How long ago `earlier` is; zero if it is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }

    /// The form in certificates. Times after the year 9999 become 1970.
    pub fn to_date(self) -> OffsetDateTime {
        let Ok(seconds) = i64::try_from(self.0) else {
            return OffsetDateTime::UNIX_EPOCH;
        };
        OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

impl Add<Duration> for UnixTime {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.as_secs()))
    }
}

impl std::fmt::Display for UnixTime {
    /// `2025-11-22 09:01:05 UTC`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let date = self.to_date();
        let (hour, minute, second) = date.to_hms();
        write!(f, "{} {hour:02}:{minute:02}:{second:02} UTC", date.date())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_dates() {
        assert_eq!(
            UnixTime::from_seconds(1_700_000_000).to_string(),
            "2023-11-14 22:13:20 UTC"
        );
    }
}
