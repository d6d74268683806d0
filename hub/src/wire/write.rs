//! Writers: what was split is put together again, as the API server would send it.

use bytes::{Bytes, BytesMut};

use super::limits::SplitError;
use super::{Bookmark, Encoding, Event, EventKind, Labels, ListHead, Metadata, Object, TypeMeta};
use super::{json, protobuf};

/// Writes a list piece by piece.
#[derive(Debug)]
pub(crate) struct ListWriter {
    encoding: Encoding,
    item_written: bool,
}

impl ListWriter {
    /// Appends the part before the items to `out`. `lengths` are those of `Object::bytes` of all
    /// items that will follow: protobuf says how long the list is before its first item.
    pub(crate) fn start(
        encoding: Encoding,
        head: &ListHead,
        lengths: impl Iterator<Item = usize>,
        out: &mut BytesMut,
    ) -> Self {
        out.extend_from_slice(&match encoding {
            Encoding::Json => json::write::list_start(head),
            Encoding::Protobuf => {
                let items_length = lengths.map(protobuf::write::item_length).sum();
                protobuf::write::list_start(head, items_length)
            }
        });
        Self {
            encoding,
            item_written: false,
        }
    }

    /// Appends an item to `out`, given its `Object::bytes`.
    pub(crate) fn item(&mut self, bytes: &[u8], out: &mut BytesMut) {
        match self.encoding {
            Encoding::Json if self.item_written => out.extend_from_slice(b","),
            Encoding::Json => {}
            Encoding::Protobuf => {
                out.extend_from_slice(&protobuf::write::item_start(bytes.len()));
            }
        }
        out.extend_from_slice(bytes);
        self.item_written = true;
    }

    /// Appends the part after the items to `out`.
    pub(crate) fn end(self, out: &mut BytesMut) {
        out.extend_from_slice(match self.encoding {
            Encoding::Json => json::write::LIST_END,
            Encoding::Protobuf => protobuf::write::ENVELOPE_END,
        });
    }
}

/// A whole list, given the `Object::bytes` of its items.
#[cfg(any(test, fuzzing))]
pub(crate) fn list(encoding: Encoding, head: &ListHead, items: &[Bytes]) -> Bytes {
    let mut out = BytesMut::new();
    let mut writer = ListWriter::start(encoding, head, items.iter().map(Bytes::len), &mut out);
    for item in items {
        writer.item(item, &mut out);
    }
    writer.end(&mut out);
    out.freeze()
}

impl Object {
    /// The object as the body of an answer: with `kind` and `apiVersion`, in protobuf in its
    /// envelope.
    pub(crate) fn alone(&self, encoding: Encoding, type_meta: &TypeMeta) -> Bytes {
        match encoding {
            Encoding::Json => {
                let mut body = self.alone_in_json(type_meta);
                body.push(b'\n');
                body.into()
            }
            Encoding::Protobuf => protobuf::write::envelope(type_meta, &self.bytes).into(),
        }
    }

    fn alone_in_json(&self, type_meta: &TypeMeta) -> Vec<u8> {
        if type_meta.is_table() {
            json::table::alone(self, type_meta)
        } else {
            json::object::alone(&self.bytes, type_meta)
        }
    }

    /// An annotation; `None`: the object has it not.
    pub(crate) fn annotation(
        &self,
        encoding: Encoding,
        name: &str,
    ) -> Result<Option<String>, SplitError> {
        match encoding {
            Encoding::Json => json::object::annotation(&self.bytes, name),
            Encoding::Protobuf => Ok(protobuf::object::annotations(&self.bytes)?.remove(name)),
        }
    }

    /// The labels, for selectors.
    pub(crate) fn labels(&self, encoding: Encoding) -> Result<Labels, SplitError> {
        match encoding {
            Encoding::Json => json::object::labels(&self.bytes),
            Encoding::Protobuf => protobuf::object::labels(&self.bytes),
        }
    }
}

impl Event {
    /// A BOOKMARK: all before this resource version has been sent. `type_meta` is that of the
    /// objects of the watch.
    pub(crate) fn bookmark(
        encoding: Encoding,
        type_meta: &TypeMeta,
        resource_version: u64,
        kind: Bookmark,
    ) -> Self {
        let bytes = match encoding {
            Encoding::Json if type_meta.is_table() => {
                json::write::bookmark_row(resource_version, kind)
            }
            Encoding::Json => json::write::bookmark(resource_version, kind),
            Encoding::Protobuf => protobuf::write::bookmark(resource_version, kind),
        };
        Self {
            kind: EventKind::Bookmark {
                initial_events_end: kind == Bookmark::InitialEventsEnd,
            },
            type_meta: type_meta.clone(),
            object: Object {
                metadata: Metadata {
                    resource_version,
                    ..Metadata::default()
                },
                bytes: bytes.into(),
            },
        }
    }

    /// The bytes of the event in the body of a watch.
    pub(crate) fn frame(&self, encoding: Encoding) -> Bytes {
        let word = self.kind.label();
        match encoding {
            Encoding::Json => {
                let object = self.object.alone_in_json(&self.type_meta);
                json::write::event(word, &object).into()
            }
            Encoding::Protobuf => {
                protobuf::write::event(word, &self.type_meta, &self.object.bytes).into()
            }
        }
    }
}
