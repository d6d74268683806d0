//! A failed dial, as both ends of a tunnel report it.

use std::io;

use crate::proto::tunnel::DialCode;

/// A failed dial, as the agent reports it to the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialFailure {
    /// Stable code, never `Ok`.
    pub code: DialCode,
    /// What was dialled and how it failed, as a text for operators.
    pub message: String,
}

/// The label of a dial's result in metrics and logs of both ends.
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
        DialCode::Offline => "offline",
        DialCode::Failed | DialCode::Unspecified => "failed",
    }
}

/// All codes that an agent can answer.
pub fn dial_codes() -> impl Iterator<Item = DialCode> {
    (DialCode::Ok as i32..).map_while(|code| DialCode::try_from(code).ok())
}

/// The code of an error of `connect()`.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the kernel has many more errors, and adds new ones"
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
