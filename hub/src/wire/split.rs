//! Splitters: they take a response body in chunks and give out its objects, events and list head.
//! They hold one object at most, so a list of 20 MB costs no 20 MB.

use super::limits::OBJECT_MAX;
pub(crate) use super::limits::SplitError;
use super::{Encoding, Event, ListHead, Object, Shape, TypeMeta, json, protobuf};

/// Splits the body of a list. After an error it must not be used again.
#[derive(Debug)]
pub(crate) enum ListSplitter {
    Json(json::list::ListSplitter),
    Protobuf(protobuf::list::ListSplitter),
}

impl ListSplitter {
    /// There are no tables in protobuf.
    pub(crate) fn new(encoding: Encoding, shape: Shape) -> Self {
        match encoding {
            Encoding::Json if shape.is_table() => Self::Json(json::list::ListSplitter::of_rows()),
            Encoding::Json => Self::Json(json::list::ListSplitter::default()),
            Encoding::Protobuf => Self::Protobuf(protobuf::list::ListSplitter::default()),
        }
    }

    /// The next item, and `chunk` without the bytes that were read. `None`: the chunk is used up.
    pub(crate) fn next_item(&mut self, chunk: &mut &[u8]) -> Result<Option<Object>, SplitError> {
        match self {
            Self::Json(splitter) => splitter.next_item(chunk),
            Self::Protobuf(splitter) => splitter.next_item(chunk),
        }
    }

    /// Reads up to the items, and returns the head as far as it comes before them. `None`: the chunk
    /// is used up. Not after [`ListSplitter::next_item`].
    pub(crate) fn begin_items(
        &mut self,
        chunk: &mut &[u8],
    ) -> Result<Option<ListHead>, SplitError> {
        match self {
            Self::Json(splitter) => splitter.begin_items(chunk),
            Self::Protobuf(splitter) => splitter.begin_items(chunk),
        }
    }

    /// The body has ended.
    pub(crate) fn finish(self) -> Result<ListHead, SplitError> {
        match self {
            Self::Json(splitter) => splitter.finish(),
            Self::Protobuf(splitter) => splitter.finish(),
        }
    }
}

/// Splits the body of a watch. After an error it must not be used again. A watch may be cut anywhere:
/// the incomplete event is then lost, and was not given out.
#[derive(Debug)]
pub(crate) enum EventSplitter {
    Json(json::events::EventSplitter),
    Protobuf(protobuf::events::EventSplitter),
}

impl EventSplitter {
    /// There are no tables in protobuf.
    pub(crate) fn new(encoding: Encoding, shape: Shape) -> Self {
        match encoding {
            Encoding::Json if shape.is_table() => {
                Self::Json(json::events::EventSplitter::of_rows())
            }
            Encoding::Json => Self::Json(json::events::EventSplitter::default()),
            Encoding::Protobuf => Self::Protobuf(protobuf::events::EventSplitter::default()),
        }
    }

    /// The next event, and `chunk` without the bytes that were read. `None`: the chunk is used up.
    pub(crate) fn next_event(&mut self, chunk: &mut &[u8]) -> Result<Option<Event>, SplitError> {
        match self {
            Self::Json(splitter) => splitter.next_event(chunk),
            Self::Protobuf(splitter) => splitter.next_event(chunk),
        }
    }
}

/// Collects the body of one object, as GET answers it.
#[derive(Debug)]
pub(crate) struct ObjectSplitter {
    encoding: Encoding,
    shape: Shape,
    body: Vec<u8>,
}

impl ObjectSplitter {
    pub(crate) fn new(encoding: Encoding, shape: Shape) -> Self {
        Self {
            encoding,
            shape,
            body: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, chunk: &[u8]) -> Result<(), SplitError> {
        if self.body.len() + chunk.len() > OBJECT_MAX {
            return Err(SplitError::ObjectTooLong { limit: OBJECT_MAX });
        }
        self.body.extend_from_slice(chunk);
        Ok(())
    }

    /// What has arrived.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body has ended. The metadata may be empty: what is not an object of a collection, such
    /// as a list of API resources, has none.
    pub(crate) fn finish(self) -> Result<(TypeMeta, Object), SplitError> {
        match self.encoding {
            Encoding::Json if self.shape.is_table() => json::table::read_one_row(&self.body),
            Encoding::Json => json::object::read_alone(&self.body),
            Encoding::Protobuf => protobuf::object::read_alone(&self.body),
        }
    }
}
