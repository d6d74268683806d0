//! One object in protobuf: its metadata is read, `managedFields` are cut out, all other bytes stay.

use bytes::Bytes;

use super::field::{Field, Fields, malformed, put_bytes, text};
use super::{MAGIC, METADATA, map_entry, object_meta, type_meta, unknown};
use crate::wire::limits::SplitError;
use crate::wire::{Labels, Metadata, Object, TypeMeta, resource_version};

/// Reads the body of a GET.
pub(in crate::wire) fn read_alone(body: &[u8]) -> Result<(TypeMeta, Object), SplitError> {
    let (type_meta, raw) = open(body)?;
    Ok((type_meta, read(raw)?))
}

/// Takes an object out of its envelope.
pub(super) fn open(envelope: &[u8]) -> Result<(TypeMeta, &[u8]), SplitError> {
    let unknown = envelope
        .strip_prefix(MAGIC)
        .ok_or(malformed("an envelope"))?;
    let mut type_meta = TypeMeta::default();
    let mut raw = &[][..];
    for field in Fields::of(unknown) {
        let field = field?;
        if let Some(bytes) = field.bytes(unknown::TYPE_META) {
            read_type_meta(bytes, &mut type_meta)?;
        } else if let Some(bytes) = field.bytes(unknown::RAW) {
            raw = bytes;
        } else {
            check_content(&field)?;
        }
    }
    Ok((type_meta, raw))
}

/// Refuses an envelope of something that is not protobuf.
pub(super) fn check_content(field: &Field<'_>) -> Result<(), SplitError> {
    let content = field
        .bytes(unknown::CONTENT_ENCODING)
        .or(field.bytes(unknown::CONTENT_TYPE));
    match content {
        Some(content) if !content.is_empty() => Err(malformed("an envelope of protobuf")),
        Some(_) | None => Ok(()),
    }
}

pub(super) fn read_type_meta(message: &[u8], to: &mut TypeMeta) -> Result<(), SplitError> {
    for field in Fields::of(message) {
        let field = field?;
        if let Some(bytes) = field.bytes(type_meta::API_VERSION) {
            to.api_version = text(bytes)?;
        } else if let Some(bytes) = field.bytes(type_meta::KIND) {
            to.kind = text(bytes)?;
        }
    }
    Ok(())
}

/// Reads an object without envelope. The metadata are empty if it has none.
pub(super) fn read(object: &[u8]) -> Result<Object, SplitError> {
    let mut metadata = Metadata::default();
    let mut bytes = Vec::with_capacity(object.len());
    for field in Fields::of(object) {
        let field = field?;
        match field.bytes(METADATA) {
            Some(message) => put_metadata(&mut bytes, &field, message, &mut metadata)?,
            None => bytes.extend_from_slice(field.whole),
        }
    }
    Ok(Object {
        metadata,
        // Shrunk in place it would keep the memory that the managed fields had.
        bytes: Bytes::copy_from_slice(&bytes),
    })
}

/// Appends `field`, which is the metadata, without `managedFields`.
fn put_metadata(
    out: &mut Vec<u8>,
    field: &Field<'_>,
    message: &[u8],
    metadata: &mut Metadata,
) -> Result<(), SplitError> {
    let mut kept = Vec::with_capacity(message.len());
    for inner in Fields::of(message) {
        let inner = inner?;
        if inner.number == object_meta::MANAGED_FIELDS {
            continue;
        }
        kept.extend_from_slice(inner.whole);
        read_metadata(&inner, metadata)?;
    }
    if kept.len() == message.len() {
        out.extend_from_slice(field.whole);
    } else {
        put_bytes(out, METADATA, &kept);
    }
    Ok(())
}

/// The metadata of an object; empty if it has none.
pub(in crate::wire) fn metadata(object: &[u8]) -> Result<Metadata, SplitError> {
    let mut metadata = Metadata::default();
    for field in Fields::of(object) {
        let Some(message) = field?.bytes(METADATA) else {
            continue;
        };
        for inner in Fields::of(message) {
            read_metadata(&inner?, &mut metadata)?;
        }
    }
    Ok(metadata)
}

/// Reads a field of the metadata.
fn read_metadata(field: &Field<'_>, metadata: &mut Metadata) -> Result<(), SplitError> {
    if let Some(bytes) = field.bytes(object_meta::NAME) {
        metadata.name = text(bytes)?;
    } else if let Some(bytes) = field.bytes(object_meta::NAMESPACE) {
        metadata.namespace = text(bytes)?;
    } else if let Some(bytes) = field.bytes(object_meta::UID) {
        metadata.uid = text(bytes)?;
    } else if let Some(bytes) = field.bytes(object_meta::RESOURCE_VERSION) {
        metadata.resource_version = resource_version(&text(bytes)?)?;
    }
    Ok(())
}

/// `metadata.labels`
pub(in crate::wire) fn labels(object: &[u8]) -> Result<Labels, SplitError> {
    map_of_metadata(object, object_meta::LABELS)
}

/// `metadata.annotations`
pub(in crate::wire) fn annotations(object: &[u8]) -> Result<Labels, SplitError> {
    map_of_metadata(object, object_meta::ANNOTATIONS)
}

fn map_of_metadata(object: &[u8], number: u64) -> Result<Labels, SplitError> {
    let mut map = Labels::new();
    for field in Fields::of(object) {
        let Some(metadata) = field?.bytes(METADATA) else {
            continue;
        };
        for inner in Fields::of(metadata) {
            if let Some(entry) = inner?.bytes(number) {
                let (key, value) = read_entry(entry)?;
                map.insert(key, value);
            }
        }
    }
    Ok(map)
}

fn read_entry(message: &[u8]) -> Result<(String, String), SplitError> {
    let mut entry = (String::new(), String::new());
    for field in Fields::of(message) {
        let field = field?;
        if let Some(bytes) = field.bytes(map_entry::KEY) {
            entry.0 = text(bytes)?;
        } else if let Some(bytes) = field.bytes(map_entry::VALUE) {
            entry.1 = text(bytes)?;
        }
    }
    Ok(entry)
}
