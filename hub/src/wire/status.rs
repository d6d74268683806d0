//! `Status`: how the API server says that something did not work.

use bytes::Bytes;

use super::{Encoding, Event};

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
}

impl Status {
    /// The body of an answer.
    pub(crate) fn body(&self, encoding: Encoding) -> Bytes {
        todo!()
    }

    /// The ERROR event that ends a watch.
    pub(crate) fn event(&self, encoding: Encoding) -> Event {
        todo!()
    }
}
