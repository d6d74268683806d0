//! How much of a body is read, and why one cannot be.

use strum::{IntoStaticStr, VariantNames};

/// The longest object that is read, in bytes. etcd refuses objects over 1.5 MiB; Go writes `<`, `>` and
/// `&` with six bytes in JSON.
pub(crate) const OBJECT_MAX: usize = 12 << 20;
/// The longest part of a list outside its items that is read, in bytes. The longest known is a
/// `continue` token of a few hundred.
pub(crate) const HEAD_MAX: usize = 64 << 10;
/// How deep JSON may nest. The API server's own limit is 10,000; real objects stay below 50.
pub(crate) const DEPTH_MAX: usize = 1_000;

/// What the buffer of a splitter keeps of its capacity after a long object: a watch is open for
/// long, and few objects are longer than this.
pub(super) const KEPT_CAPACITY: usize = 16 << 10;

/// Why a body cannot be split. Each has a name that is a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum SplitError {
    #[error("an object is longer than {limit} bytes")]
    ObjectTooLong { limit: usize },
    #[error("the head of a list is longer than {limit} bytes")]
    HeadTooLong { limit: usize },
    #[error("JSON nests deeper than {limit} levels")]
    TooDeep { limit: usize },
    #[error("the body is not the JSON that was expected: {expected}")]
    Json { expected: &'static str },
    #[error("the body is not the protobuf that was expected: {expected}")]
    Protobuf { expected: &'static str },
    #[error("the body is not a list")]
    NotAList,
    #[error("an object has no name")]
    Unnamed,
    #[error("a resource version is not a number")]
    ResourceVersion,
    #[error("a watch event has an unknown type")]
    EventType,
    #[error("the body ends too early")]
    EndsEarly,
}

impl SplitError {
    /// The label of a metric.
    pub(crate) fn reason(&self) -> &'static str {
        self.into()
    }
}
