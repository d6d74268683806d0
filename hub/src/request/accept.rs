//! Which encoding and shape the API server will choose out of an `Accept` header.

use crate::wire::{Encoding, Shape};

/// What an answer will look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Representation {
    pub(crate) encoding: Encoding,
    pub(crate) shape: Shape,
}

impl Representation {
    /// `None`: the API server will answer in a way that the hub does not read, such as YAML.
    /// A request without the header is one with an empty header.
    pub(crate) fn from_accept(header: &str) -> Option<Self> {
        todo!()
    }
}
