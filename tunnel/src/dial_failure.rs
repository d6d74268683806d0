//! A dial that came to nothing, as both ends of a tunnel speak of it.

use std::io;

use crate::proto::tunnel::DialCode;

/// A dial that came to nothing, as the proxy is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialFailure {
    /// Stable code, never `Ok`.
    pub code: DialCode,
    /// For people: what was tried and what came of it.
    pub message: String,
}

/// The word for a dial's result in metrics and logs, at both ends.
#[must_use]
pub fn dial_reason(code: DialCode) -> &'static str {
    match code {
        DialCode::Ok => "ok",
        DialCode::Forbidden => "forbidden",
        DialCode::Refused => "refused",
        DialCode::TimedOut => "timed_out",
        DialCode::Unreachable => "unreachable",
        DialCode::TooManyStreams => "too_many_streams",
        DialCode::Invalid => "invalid",
        DialCode::Failed | DialCode::Unspecified => "failed",
    }
}

/// The code for a dial that the kernel ended.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the kernel knows many more errors, and new ones"
)]
#[must_use]
pub fn dial_code(error: &io::Error) -> DialCode {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => DialCode::Refused,
        Kind::TimedOut => DialCode::TimedOut,
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => {
            DialCode::Unreachable
        }
        _ => DialCode::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_errors_have_stable_codes() {
        for (kind, code) in [
            (io::ErrorKind::ConnectionRefused, DialCode::Refused),
            (io::ErrorKind::TimedOut, DialCode::TimedOut),
            (io::ErrorKind::HostUnreachable, DialCode::Unreachable),
            (io::ErrorKind::NetworkUnreachable, DialCode::Unreachable),
            (io::ErrorKind::NetworkDown, DialCode::Unreachable),
            (io::ErrorKind::PermissionDenied, DialCode::Failed),
        ] {
            assert_eq!(dial_code(&kind.into()), code, "{kind}");
        }
    }
}
