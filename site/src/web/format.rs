//! How numbers are written on a page.

use crate::units::milliseconds;
use crate::verdict::Verdict;

/// `1.5 ms`, or a dash.
pub(super) fn round_trip(ms: Option<f64>) -> String {
    ms.map_or_else(|| "–".to_owned(), milliseconds)
}

/// The class of a verdict.
pub(super) fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Failure => "failure",
    }
}

/// A name as one segment of a path.
pub(super) fn path_segment(name: &str) -> String {
    let mut segment = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => segment.push(char::from(byte)),
            b'.' if name.bytes().any(|byte| byte != b'.') => segment.push('.'),
            _ => segment += &format!("%{byte:02X}"),
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_segment() {
        assert_eq!(path_segment("edge-1.site"), "edge-1.site");
        assert_eq!(path_segment(".."), "%2E%2E");
        assert_eq!(path_segment("a/../b?c#\"<"), "a%2F..%2Fb%3Fc%23%22%3C");
    }
}
