//! How a `Status` is written.

use bytes::Bytes;

pub(crate) use super::failure::Status;
use super::{Encoding, Event, EventKind, Metadata, Object, TypeMeta, json, protobuf};

impl Status {
    /// The body of an answer.
    pub(crate) fn body(&self, encoding: Encoding) -> Bytes {
        let (type_meta, object) = self.object(encoding);
        object.alone(encoding, &type_meta)
    }

    /// The ERROR event that ends a watch.
    pub(crate) fn event(&self, encoding: Encoding) -> Event {
        let (type_meta, object) = self.object(encoding);
        Event {
            kind: EventKind::Error { code: self.code },
            type_meta,
            object,
        }
    }

    fn object(&self, encoding: Encoding) -> (TypeMeta, Object) {
        let bytes = match encoding {
            Encoding::Json => json::write::status(self),
            Encoding::Protobuf => protobuf::write::status(self),
        };
        let type_meta = TypeMeta::new("v1", "Status");
        let object = Object {
            metadata: Metadata::default(),
            bytes: bytes.into(),
        };
        (type_meta, object)
    }
}
