//! Writers: what was split is put together again, as the API server would send it.

use bytes::{Bytes, BytesMut};

use super::{Encoding, Event, EventKind, ListHead, Metadata, Object, TypeMeta, json, protobuf};

/// Writes a list piece by piece.
#[derive(Debug)]
pub(crate) struct ListWriter {
    encoding: Encoding,
    content_length: u64,
    first: bool,
}

impl ListWriter {
    /// Appends the part before the items to `out`. `lengths` are those of `Object::bytes` of all
    /// items that will follow: protobuf says how long the list is before its first item.
    pub(crate) fn begin(
        encoding: Encoding,
        head: &ListHead,
        lengths: impl Iterator<Item = usize>,
        out: &mut BytesMut,
    ) -> Self {
        todo!()
    }

    /// The length of the whole body.
    pub(crate) fn content_length(&self) -> u64 {
        self.content_length
    }

    /// Appends an item to `out`.
    pub(crate) fn item(&mut self, object: &Object, out: &mut BytesMut) {
        todo!()
    }

    /// Appends the part after the items to `out`.
    pub(crate) fn end(self, out: &mut BytesMut) {
        todo!()
    }
}

impl Object {
    /// The object as it is inside of an event or as a body of its own: with `kind` and
    /// `apiVersion`, in protobuf in its envelope.
    pub(crate) fn alone(&self, encoding: Encoding, type_meta: &TypeMeta) -> Bytes {
        todo!()
    }

    /// The labels, for selectors.
    pub(crate) fn labels(
        &self,
        encoding: Encoding,
    ) -> Result<super::Labels, super::split::SplitError> {
        todo!()
    }
}

impl Event {
    /// A BOOKMARK: all before this resource version has been sent.
    pub(crate) fn bookmark(
        encoding: Encoding,
        type_meta: &TypeMeta,
        resource_version: u64,
        initial_events_end: bool,
    ) -> Self {
        todo!()
    }

    /// The bytes of the event in the body of a watch.
    pub(crate) fn frame(&self, encoding: Encoding) -> Bytes {
        todo!()
    }
}
