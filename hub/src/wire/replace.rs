//! Replacements: values in a body are edited, and all other bytes stay as they were.
//!
//! An edit of a value is a function from its bytes to the new ones, or to `None` if it stays.
//! [`json`] and [`protobuf`] lift an edit of a part to one of the whole; [`object`], [`list`] and
//! [`event`] lift an edit of an object to one of a body. An object is as in [`super::Object`].

pub(crate) mod json;
pub(crate) mod protobuf;

use std::ops::Range;

use super::limits::SplitError;
use super::path::Step;
use super::{Encoding, Metadata};

/// The new bytes; `None`: as they were.
pub(crate) type Edited = Result<Option<Vec<u8>>, SplitError>;

/// An edit of one value.
pub(crate) type Edit<'a> = dyn FnMut(&[u8]) -> Edited + 'a;

/// An edit of the objects in a body.
pub(crate) type EditBody = fn(Encoding, &[u8], &mut Edit<'_>) -> Edited;

/// Edits the object that is the body of an answer to a GET.
pub(crate) fn object(encoding: Encoding, body: &[u8], edit: &mut Edit<'_>) -> Edited {
    match encoding {
        Encoding::Json => json::document(body, edit),
        Encoding::Protobuf => protobuf::envelope(body, edit),
    }
}

/// Edits each item of a list that is the body of an answer.
pub(crate) fn list(encoding: Encoding, body: &[u8], edit: &mut Edit<'_>) -> Edited {
    match encoding {
        Encoding::Json => json::document(body, &mut |list| {
            json::member(list, "items", |items| {
                json::elements(items, |_, item| edit(item))
            })
        }),
        Encoding::Protobuf => protobuf::envelope(body, &mut |list| {
            protobuf::messages(list, protobuf::ITEMS, &mut *edit)
        }),
    }
}

/// Edits the object of one whole event of a watch.
pub(crate) fn event(encoding: Encoding, frame: &[u8], edit: &mut Edit<'_>) -> Edited {
    match encoding {
        Encoding::Json => json::document(frame, &mut |event| {
            json::member(event, "object", &mut *edit)
        }),
        Encoding::Protobuf => protobuf::event(frame, edit),
    }
}

/// Edits every value at a path, those of each element of a list one by one.
pub(crate) fn at(encoding: Encoding, value: &[u8], path: &[Step], edit: &mut Edit<'_>) -> Edited {
    let Some((Step(name, number), rest)) = path.split_first() else {
        return edit(value);
    };
    match encoding {
        Encoding::Json if name.is_empty() => at(encoding, value, rest, edit),
        Encoding::Json => json::member(value, name, |member| match member.first() {
            Some(b'[') => json::elements(member, |_, one| at(encoding, one, rest, &mut *edit)),
            _ if member == b"null" => Ok(None),
            _ => at(encoding, member, rest, &mut *edit),
        }),
        Encoding::Protobuf => protobuf::messages(value, *number, |message| {
            at(encoding, message, rest, &mut *edit)
        }),
    }
}

/// The metadata of an object; empty if it has none.
pub(crate) fn metadata(encoding: Encoding, object: &[u8]) -> Result<Metadata, SplitError> {
    match encoding {
        Encoding::Json => super::json::object::metadata(object),
        Encoding::Protobuf => super::protobuf::object::metadata(object),
    }
}

/// Bytes in which ranges are replaced, from the first to the last.
struct Splice<'a> {
    bytes: &'a [u8],
    out: Vec<u8>,
    /// So many of `bytes` are in `out`, or were replaced.
    done: usize,
}

impl<'a> Splice<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            out: Vec::new(),
            done: 0,
        }
    }

    fn replace(&mut self, range: Range<usize>, by: &[u8]) {
        self.out
            .extend_from_slice(&self.bytes[self.done..range.start]);
        self.out.extend_from_slice(by);
        self.done = range.end;
    }

    fn finish(mut self) -> Option<Vec<u8>> {
        if self.done == 0 {
            return None;
        }
        self.out.extend_from_slice(&self.bytes[self.done..]);
        Some(self.out)
    }
}
