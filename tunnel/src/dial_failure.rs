//! A dial that came to nothing, as both ends of a tunnel speak of it.

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
