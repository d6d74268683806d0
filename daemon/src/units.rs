//! Durations and sizes on command lines, for clap's `value_parser`.

use std::time::Duration;

use bytesize::ByteSize;

/// Reads `500ms`, `30s`, `1h30m` or `30d`.
///
/// # Errors
/// What is wrong with the text and how it should look.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| {
        format!(
            "{text:?} is not a duration ({error}): write a number and a unit, as in `500ms`, \
            `30s`, `1h30m` or `30d`"
        )
    })
}

/// Reads a number of bytes: `300000`, `512KiB`, `4MiB` or `1GiB`, below 4 GiB.
///
/// # Errors
/// What is wrong with the text and how it should look.
pub(crate) fn parse_size(text: &str) -> Result<u32, String> {
    let size: ByteSize = match text.parse() {
        Ok(size) => size,
        Err(reason) => return Err(no_size(text, &reason)),
    };
    u32::try_from(size.as_u64()).map_err(|_| no_size(text, "4 GiB and more are too many"))
}

fn no_size(text: &str, reason: &str) -> String {
    format!(
        "{text:?} is not a size ({reason}): write bytes, or a number and a unit, as in `512KiB`, \
         `4MiB` or `1GiB`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)));
        }
        for bad in [
            "",
            "30",
            "s",
            "1x",
            "-1s",
            "99999999999999999999s",
            "99999999999999999d",
        ] {
            let error = parse_duration(bad).unwrap_err();
            assert!(error.contains("`1h30m`"), "{bad:?}: {error}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("300000", 300_000),
            ("256KiB", 256 << 10),
            ("4MiB", 4 << 20),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for bad in ["", "MiB", "-1", "4GiB", "5000MiB", "1 parsec"] {
            let error = parse_size(bad).unwrap_err();
            assert!(error.contains("`4MiB`"), "{bad:?}: {error}");
        }
    }
}
