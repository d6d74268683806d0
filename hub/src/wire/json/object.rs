//! One object in JSON: its metadata is read, `managedFields` are cut out, all other bytes stay.

use bytes::Bytes;

use super::scan::{Member, Members, check, check_depth, text, trim_start};
use crate::wire::limits::SplitError;
use crate::wire::{Labels, Metadata, Object, TypeMeta, resource_version};

/// Reads the body of a GET.
pub(in crate::wire) fn read_alone(body: &[u8]) -> Result<(TypeMeta, Object), SplitError> {
    let object = trim_start(body).trim_ascii_end();
    check_depth(object)?;
    let object = read(object)?;
    Ok((type_meta(&object.bytes)?, object))
}

/// Reads an object. The metadata are empty if it has none.
pub(super) fn read(object: &[u8]) -> Result<Object, SplitError> {
    check(object)?;
    let mut metadata = Metadata::default();
    let mut bytes = Vec::with_capacity(object.len());
    let mut copied = 0;
    for member in Members::of(object)? {
        if member.is(object, "metadata") {
            bytes.extend_from_slice(&object[copied..member.value.start]);
            put_metadata(&object[member.value.clone()], &mut bytes, &mut metadata)?;
            copied = member.value.end;
        }
    }
    bytes.extend_from_slice(&object[copied..]);
    Ok(Object {
        metadata,
        // Shrunk in place it would keep the memory that the managed fields had.
        bytes: Bytes::copy_from_slice(&bytes),
    })
}

/// The metadata of an object; empty if it has none.
pub(in crate::wire) fn metadata(object: &[u8]) -> Result<Metadata, SplitError> {
    let mut metadata = Metadata::default();
    if let Some(value) = member(object, "metadata")? {
        for member in Members::of(value)? {
            read_member(value, &member, &mut metadata)?;
        }
    }
    Ok(metadata)
}

/// Appends metadata to `out` without `managedFields`, and reads them.
fn put_metadata(json: &[u8], out: &mut Vec<u8>, metadata: &mut Metadata) -> Result<(), SplitError> {
    let start = out.len();
    out.push(b'{');
    let mut is_cut = false;
    for member in Members::of(json)? {
        if member.is(json, "managedFields") {
            is_cut = true;
            continue;
        }
        if out.len() > start + 1 {
            out.push(b',');
        }
        out.extend_from_slice(&json[member.range()]);
        read_member(json, &member, metadata)?;
    }
    if is_cut {
        out.push(b'}');
    } else {
        out.truncate(start);
        out.extend_from_slice(json);
    }
    Ok(())
}

/// Reads a member of metadata.
fn read_member(json: &[u8], member: &Member, metadata: &mut Metadata) -> Result<(), SplitError> {
    let value = &json[member.value.clone()];
    // As if it was missing, as in Go.
    if value == b"null" {
        return Ok(());
    }
    match &*member.key(json).unwrap_or_default() {
        "namespace" => metadata.namespace = text(value)?.into_owned(),
        "name" => metadata.name = text(value)?.into_owned(),
        "uid" => metadata.uid = text(value)?.into_owned(),
        "resourceVersion" => metadata.resource_version = resource_version(&text(value)?)?,
        _ => {}
    }
    Ok(())
}

/// Empty where there is none.
fn text_member(object: &[u8], name: &str) -> Result<String, SplitError> {
    match member(object, name)? {
        Some(value) => Ok(text(value)?.into_owned()),
        None => Ok(String::new()),
    }
}

/// `kind` and `apiVersion` of an object; empty where it has none.
pub(super) fn type_meta(object: &[u8]) -> Result<TypeMeta, SplitError> {
    let api_version = text_member(object, "apiVersion")?;
    Ok(TypeMeta::new(api_version, text_member(object, "kind")?))
}

/// `metadata.labels`
pub(in crate::wire) fn labels(object: &[u8]) -> Result<Labels, SplitError> {
    let Some(labels) = metadata_member(object, "labels")? else {
        return Ok(Labels::new());
    };
    Members::of(labels)?
        .map(|member| {
            let key = member.key(labels)?.into_owned();
            let value = text(&labels[member.value.clone()])?.into_owned();
            Ok((key, value))
        })
        .collect()
}

/// An annotation.
pub(in crate::wire) fn annotation(object: &[u8], name: &str) -> Result<Option<String>, SplitError> {
    let Some(annotations) = metadata_member(object, "annotations")? else {
        return Ok(None);
    };
    let value = member(annotations, name)?;
    value.map(|value| Ok(text(value)?.into_owned())).transpose()
}

fn metadata_member<'a>(object: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, SplitError> {
    match member(object, "metadata")? {
        Some(metadata) => member(metadata, name),
        None => Ok(None),
    }
}

/// The value of a member. Of several with the same key the last one counts, as in Go.
pub(in crate::wire) fn member<'a>(
    object: &'a [u8],
    name: &str,
) -> Result<Option<&'a [u8]>, SplitError> {
    let found = Members::of(object)?
        .filter(|member| member.is(object, name))
        .last();
    Ok(found.map(|member| &object[member.value]))
}

/// The object with `kind` and `apiVersion` at its start, where it has them not.
pub(in crate::wire) fn alone(object: &[u8], type_meta: &TypeMeta) -> Vec<u8> {
    let mut whole = vec![b'{'];
    for (name, value) in [
        ("kind", &type_meta.kind),
        ("apiVersion", &type_meta.api_version),
    ] {
        if !matches!(member(object, name), Ok(Some(_))) {
            super::write::put_member(&mut whole, name, value);
        }
    }
    let rest = trim_start(object.get(1..).unwrap_or_default());
    if whole.len() > 1 && !rest.starts_with(b"}") {
        whole.push(b',');
    }
    whole.extend_from_slice(rest);
    whole
}
