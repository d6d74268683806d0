//! Reads and writes single fields of an object without knowing its type. A [`Path`] says where the
//! field is in either encoding. A write leaves all other bytes of protobuf as they are, and
//! serializes JSON again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::limits::SplitError;
pub(crate) use super::value::Value;
use super::{Encoding, Metadata, Object, json, protobuf};

/// Where a field is: the keys in JSON, and the field numbers in protobuf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) json: &'static [&'static str],
    pub(crate) protobuf: &'static [u64],
}

/// `metadata` of any object.
pub(crate) mod metadata {
    use super::Path;
    use crate::wire::protobuf::{METADATA, object_meta};

    pub(crate) const NAMESPACE: Path = Path {
        json: &["metadata", "namespace"],
        protobuf: &[METADATA, object_meta::NAMESPACE],
    };
    pub(crate) const UID: Path = Path {
        json: &["metadata", "uid"],
        protobuf: &[METADATA, object_meta::UID],
    };
    pub(crate) const RESOURCE_VERSION: Path = Path {
        json: &["metadata", "resourceVersion"],
        protobuf: &[METADATA, object_meta::RESOURCE_VERSION],
    };
    pub(crate) const CREATION_TIMESTAMP: Path = Path {
        json: &["metadata", "creationTimestamp"],
        protobuf: &[METADATA, object_meta::CREATION_TIMESTAMP],
    };
}

impl Value {
    /// A `meta.v1.Time`, in whole seconds.
    pub(crate) fn time(encoding: Encoding, time: SystemTime) -> Self {
        match encoding {
            Encoding::Json => Self::Text(humantime::format_rfc3339_seconds(time).to_string()),
            Encoding::Protobuf => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                Self::Raw(protobuf::edit::time(since.as_secs()))
            }
        }
    }
}

/// A field of an object; `None`: it has none.
pub(crate) fn get(
    encoding: Encoding,
    object: &[u8],
    path: Path,
) -> Result<Option<Value>, SplitError> {
    match encoding {
        Encoding::Json => json::edit::get(object, path.json),
        Encoding::Protobuf => protobuf::edit::get(object, path.protobuf),
    }
}

/// A field that is text; empty if the object has none.
pub(crate) fn text(encoding: Encoding, object: &[u8], path: Path) -> Result<String, SplitError> {
    Ok(match get(encoding, object, path)? {
        Some(Value::Text(text)) => text,
        // Protobuf does not say what is text.
        Some(Value::Raw(bytes)) => String::from_utf8(bytes).unwrap_or_default(),
        Some(Value::Number(_)) | None => String::new(),
    })
}

/// A field that is a number; zero if the object has none.
pub(crate) fn number(encoding: Encoding, object: &[u8], path: Path) -> Result<u64, SplitError> {
    Ok(match get(encoding, object, path)? {
        Some(Value::Number(number)) => number,
        Some(Value::Text(_) | Value::Raw(_)) | None => 0,
    })
}

/// A field that is a time after 1970; `None`: the object has none that can be read.
pub(crate) fn time(
    encoding: Encoding,
    object: &[u8],
    path: Path,
) -> Result<Option<SystemTime>, SplitError> {
    Ok(match get(encoding, object, path)? {
        Some(Value::Text(text)) => humantime::parse_rfc3339(&text).ok(),
        Some(Value::Raw(message)) => {
            let seconds = protobuf::edit::seconds(&message)?;
            UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
        }
        Some(Value::Number(_)) | None => None,
    })
}

/// The object with this value in a field.
pub(crate) fn set(
    encoding: Encoding,
    object: &[u8],
    path: Path,
    value: &Value,
) -> Result<Vec<u8>, SplitError> {
    match encoding {
        Encoding::Json => json::edit::set(object, path.json, value),
        Encoding::Protobuf => protobuf::edit::set(object, path.protobuf, value),
    }
}

/// As it is written: none is not zero.
fn version_text(metadata: &Metadata) -> String {
    match metadata.resource_version {
        0 => String::new(),
        version => version.to_string(),
    }
}

impl Object {
    /// The object with these metadata. The name stays.
    pub(crate) fn with_metadata(
        &self,
        encoding: Encoding,
        metadata: Metadata,
    ) -> Result<Self, SplitError> {
        let mut bytes = self.bytes.to_vec();
        for (path, own, new) in [
            (
                metadata::NAMESPACE,
                &self.metadata.namespace,
                &metadata.namespace,
            ),
            (metadata::UID, &self.metadata.uid, &metadata.uid),
            (
                metadata::RESOURCE_VERSION,
                &version_text(&self.metadata),
                &version_text(&metadata),
            ),
        ] {
            if own != new {
                bytes = set(encoding, &bytes, path, &Value::Text(new.clone()))?;
            }
        }
        Ok(Self {
            metadata,
            bytes: bytes.into_boxed_slice().into(),
        })
    }

    /// The object with this resource version.
    pub(crate) fn at_version(
        &self,
        encoding: Encoding,
        resource_version: u64,
    ) -> Result<Self, SplitError> {
        let metadata = Metadata {
            resource_version,
            ..self.metadata.clone()
        };
        self.with_metadata(encoding, metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: Path = Path {
        json: &["series", "count"],
        protobuf: &[3, 1],
    };
    const SEEN: Path = Path {
        json: &["series", "seen"],
        protobuf: &[3, 2],
    };
    const REASON: Path = Path {
        json: &["reason"],
        protobuf: &[7],
    };

    fn empty(encoding: Encoding) -> &'static [u8] {
        match encoding {
            Encoding::Json => b"{}",
            Encoding::Protobuf => b"",
        }
    }

    #[test]
    fn what_is_set_is_read_and_other_fields_stay() {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            let time = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
            let mut object = empty(encoding).to_vec();
            for (path, value) in [
                (REASON, Value::Text("Pulled".to_owned())),
                (COUNT, Value::Number(7)),
                (SEEN, Value::time(encoding, time)),
                (COUNT, Value::Number(300)),
                (metadata::UID, Value::Text("u".to_owned())),
            ] {
                object = set(encoding, &object, path, &value).unwrap();
            }
            assert_eq!(text(encoding, &object, REASON).unwrap(), "Pulled");
            assert_eq!(number(encoding, &object, COUNT).unwrap(), 300);
            assert_eq!(super::time(encoding, &object, SEEN).unwrap(), Some(time));
            assert_eq!(text(encoding, &object, metadata::UID).unwrap(), "u");
            assert_eq!(
                text(encoding, &object, metadata::RESOURCE_VERSION).unwrap(),
                ""
            );
        }
    }

    #[test]
    fn a_field_of_protobuf_keeps_its_place_and_is_there_once() {
        // Fields 7 and 1, and 7 again; the last one counts.
        let object = [0x3a, 1, b'a', 0x0a, 1, b'm', 0x3a, 1, b'b'];
        assert_eq!(text(Encoding::Protobuf, &object, REASON).unwrap(), "b");
        let changed = set(
            Encoding::Protobuf,
            &object,
            REASON,
            &Value::Text("c".to_owned()),
        );
        assert_eq!(changed.unwrap(), [0x3a, 1, b'c', 0x0a, 1, b'm']);
    }

    #[test]
    fn a_field_below_something_that_is_no_object_is_an_error() {
        let object = br#"{"series":1}"#;
        assert!(set(Encoding::Json, object, COUNT, &Value::Number(1)).is_err());
        let malformed = [0x1a, 9];
        assert!(set(Encoding::Protobuf, &malformed, COUNT, &Value::Number(1)).is_err());
    }
}
