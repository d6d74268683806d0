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
