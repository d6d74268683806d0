//! How a proxy that has no place for an agent says when to come again: by the description of a TLS
//! alert, before any handshake. TLS uses descriptions below 128 only. An agent that does not know
//! these takes the alert for any other failure.

use std::time::Duration;

/// The first description.
const FIRST: u8 = 128;
/// Descriptions count these.
const UNIT: Duration = Duration::from_millis(125);

/// The longest time that an alert can say.
pub const LONGEST: Duration = UNIT.saturating_mul((u8::MAX - FIRST) as u32);

/// The description of the alert for those who come again after `wait`.
pub fn alert(wait: Duration) -> u8 {
    let units = wait.as_millis() / UNIT.as_millis();
    let units = u8::try_from(units).unwrap_or(u8::MAX);
    FIRST + units.min(u8::MAX - FIRST)
}

/// The time that an alert of this description says: from when to when to come again. `None`: it
/// says something else.
pub fn times(alert: u8) -> Option<[Duration; 2]> {
    let units = u32::from(alert.checked_sub(FIRST)?);
    Some([UNIT * units, UNIT * (units + 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_to_an_eighth_of_a_second() {
        for millis in [0, 124, 125, 3_000, 15_875] {
            let wait = Duration::from_millis(millis);
            let [from, to] = times(alert(wait)).unwrap();
            assert!(from <= wait && wait < to, "{wait:?} as {from:?} to {to:?}");
        }
        assert_eq!(times(alert(Duration::from_secs(60))).unwrap()[0], LONGEST);
    }

    #[test]
    fn the_alerts_of_tls_say_no_time() {
        for known in [0, 80, 120, 127] {
            assert_eq!(times(known), None);
        }
    }
}
