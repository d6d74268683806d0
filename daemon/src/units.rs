//! Durations and sizes as people write them on a command line, for clap's `value_parser`.

use std::time::Duration;

/// Reads `30s`, `5m`, `12h` or `30d`.
///
/// # Errors
/// What is wrong with the text and how it should look.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration: write a number and a unit, as in `30s`, `5m`, `12h` or `30d`");
    let (count, unit) = split(text).ok_or_else(wrong)?;
    let scale = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    count.checked_mul(scale).map(Duration::from_secs).ok_or_else(wrong)
}

/// Reads a number of bytes: `300000`, `512KiB` or `4MiB`, below 4 GiB.
///
/// # Errors
/// What is wrong with the text and how it should look.
pub fn parse_size(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is no size: write bytes, or a number and a unit, as in `512KiB` or `4MiB`");
    let (count, unit) = split(text).ok_or_else(wrong)?;
    let scale = match unit {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return Err(wrong()),
    };
    count.checked_mul(scale).and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(wrong)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    Some((digits.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_need_known_units() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("2d"), Ok(Duration::from_secs(172_800)));
        assert_eq!(parse_size("4MiB"), Ok(4 << 20));
        assert_eq!((parse_size("256KiB"), parse_size("300000")), (Ok(256 << 10), Ok(300_000)));
        for bad in ["", "30", "s", "1y", "-1s", "99999999999999999999s", "99999999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "MiB", "1GiB", "-1", "5000MiB"] {
            assert!(parse_size(bad).is_err(), "{bad:?}");
        }
    }
}
