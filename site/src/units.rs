//! How amounts and times are written.

use std::time::{SystemTime, UNIX_EPOCH};

use bytesize::ByteSize;

/// Seconds since 1970, by the clock of this host.
pub fn now_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// `41 s`, `12 min`, `3 h` or `9 d`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// `1.5 MiB/s`; `None`: less than one byte.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is not negative, and bytes need no fractions"
)]
pub fn bytes_per_second(rate: f64) -> Option<String> {
    if rate < 1.0 {
        return None;
    }
    Some(format!("{}/s", ByteSize(rate as u64)))
}

/// `1.5 ms`.
pub fn milliseconds(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.1} ms")
    } else {
        format!("{ms:.0} ms")
    }
}

/// `19:23:51`, of Coordinated Universal Time.
pub fn time_of_day(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    format!(
        "{:02}:{:02}:{:02}",
        of_day / 3_600,
        of_day / 60 % 60,
        of_day % 60
    )
}
