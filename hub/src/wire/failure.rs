//! `Status`: how the API server says that something did not work.

/// A `Status` of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// The HTTP status.
    pub(crate) code: u16,
    /// What clients look at: `Expired`, `ServiceUnavailable`, `NotFound`.
    pub(crate) reason: &'static str,
    /// For people.
    pub(crate) message: String,
    pub(crate) retry_after_seconds: Option<u32>,
    /// What clients look at where one reason has several causes: `ResourceVersionTooLarge`.
    pub(crate) cause: Option<&'static str>,
}
