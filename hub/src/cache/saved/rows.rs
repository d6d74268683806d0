//! Objects, grants and overlays as rows.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::cache::grants::{Grant, GrantKey};
use crate::cache::objects::{HeldObject, ObjectVersion};
use crate::cache::overlay::{Overlay, Written};
use crate::cache::scope::{encoding_text, join, parse_encoding, split};
use crate::cache::{Doubt, Identity, ObjectName, Representation, Resource, Scope, Verb, Verdict};
use crate::packed::Packed;
use crate::store::{Batch, Table, Value};
use crate::wire::{Encoding, Metadata, Object, Shape, TypeMeta};

#[derive(Debug, Serialize, Deserialize)]
struct SavedGrant {
    allowed: bool,
    /// Seconds since 1970.
    at: u64,
}

/// The first line of an overlay; the bytes of the objects follow in their order.
#[derive(Debug, Serialize, Deserialize)]
struct SavedOverlay {
    replaced: bool,
    written: Vec<SavedWritten>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedWritten {
    encoding: String,
    uid: String,
    resource_version: u64,
    item_type: (String, String),
    length: usize,
}

pub(super) fn put_object(batch: &mut Batch, of: &Representation, object: &HeldObject) {
    let version = ObjectVersion {
        representation: of.clone(),
        name: object.name(),
        resource_version: object.metadata.resource_version,
    };
    batch.put(
        Table::Objects,
        object_key(&version),
        with_line(&object.metadata.uid, object.packed.clone()),
    );
}

pub(super) fn parse_object(version: &ObjectVersion, value: &[u8]) -> Option<Object> {
    let (uid, bytes) = split_line(value)?;
    Some(object(
        &version.name,
        uid.to_owned(),
        version.resource_version,
        bytes,
    ))
}

pub(super) fn object(
    name: &ObjectName,
    uid: String,
    resource_version: u64,
    bytes: &[u8],
) -> Object {
    let ObjectName { namespace, name } = name.clone();
    Object {
        metadata: Metadata {
            namespace,
            name,
            uid,
            resource_version,
        },
        bytes: Bytes::copy_from_slice(bytes),
    }
}

pub(super) fn put_grant(batch: &mut Batch, key: &GrantKey, grant: Grant) {
    let saved = SavedGrant {
        allowed: grant.verdict == Verdict::Allowed,
        at: seconds(grant.at),
    };
    batch.put(Table::Grants, grant_key(key), json(&saved));
}

pub(super) fn parse_grant(key: &str, value: &[u8]) -> Option<(GrantKey, Grant)> {
    let (at, _) = key.match_indices('\u{1f}').nth(1)?;
    let [identity, verb] = split(&key[..at])?;
    let scope = Scope::parse(&key[at + 1..])?;
    let saved: SavedGrant = serde_json::from_slice(value).ok()?;
    let key = GrantKey {
        identity: Identity::parse(identity)?,
        verb: Verb::parse(verb)?,
        resource: scope.representation.resource,
        selection: scope.selection,
    };
    let verdict = if saved.allowed {
        Verdict::Allowed
    } else {
        Verdict::Refused
    };
    Some((
        key,
        Grant {
            verdict,
            at: UNIX_EPOCH + Duration::from_secs(saved.at),
            doubt: Doubt::default(),
        },
    ))
}

pub(super) fn put_overlay(
    batch: &mut Batch,
    resource: &Resource,
    name: &ObjectName,
    overlay: &Overlay,
) {
    let written = overlay.written.iter().map(|(encoding, it)| SavedWritten {
        encoding: encoding_text(*encoding).to_owned(),
        uid: it.object.metadata.uid.clone(),
        resource_version: it.object.metadata.resource_version,
        item_type: type_pair(&it.item_type),
        length: it.object.bytes.len(),
    });
    let saved = SavedOverlay {
        replaced: overlay.replaced,
        written: written.collect(),
    };
    let bytes: Vec<_> = overlay
        .written
        .values()
        .map(|it| &*it.object.bytes)
        .collect();
    let line = String::from_utf8_lossy(&json(&saved)).into_owned();
    batch.put(
        Table::Overlay,
        overlay_key(resource, name),
        with_line(&line, Bytes::from(bytes.concat())),
    );
}

pub(super) fn parse_overlay(key: &str, value: &[u8]) -> Option<(Resource, ObjectName, Overlay)> {
    let [group, version, resource, namespace, name] = split(key)?.map(str::to_owned);
    let resource = Resource {
        group,
        version,
        resource,
    };
    let name = ObjectName { namespace, name };
    let (line, mut rest) = split_line(value)?;
    let saved: SavedOverlay = serde_json::from_str(line).ok()?;
    let mut overlay = Overlay {
        replaced: saved.replaced,
        ..Overlay::default()
    };
    for it in saved.written {
        let (bytes, others) = rest.split_at_checked(it.length)?;
        rest = others;
        let written = Written {
            object: Arc::new(object(&name, it.uid, it.resource_version, bytes)),
            item_type: parse_type(it.item_type),
        };
        let encoding = parse_encoding(&it.encoding)?;
        overlay.written.insert(encoding, written);
    }
    rest.is_empty().then_some((resource, name, overlay))
}

pub(super) fn object_key(version: &ObjectVersion) -> String {
    let ObjectName { namespace, name } = &version.name;
    let resource_version = format!("{:016x}", version.resource_version);
    join(&[
        &version.representation.text(),
        namespace,
        name,
        &resource_version,
    ])
}

pub(super) fn grant_key(key: &GrantKey) -> String {
    // The text of a scope has an encoding and a shape, which grants do not have: any will do.
    let representation = Representation {
        resource: key.resource.clone(),
        encoding: Encoding::Json,
        shape: Shape::Object,
    };
    let scope = Scope {
        representation,
        selection: key.selection.clone(),
    };
    join(&[&key.identity.to_string(), key.verb.text(), &scope.text()])
}

pub(super) fn overlay_key(resource: &Resource, name: &ObjectName) -> String {
    let Resource {
        group,
        version,
        resource,
    } = resource;
    join(&[group, version, resource, &name.namespace, &name.name])
}

pub(super) fn with_line(line: &str, bytes: impl Into<Packed>) -> Value {
    Value::new([line.as_bytes(), b"\n"].concat(), bytes)
}

pub(super) fn split_line(value: &[u8]) -> Option<(&str, &[u8])> {
    let end = value.iter().position(|byte| *byte == b'\n')?;
    Some((str::from_utf8(&value[..end]).ok()?, &value[end + 1..]))
}

pub(super) fn type_pair(type_meta: &TypeMeta) -> (String, String) {
    (type_meta.api_version.clone(), type_meta.kind.clone())
}

pub(super) fn parse_type((api_version, kind): (String, String)) -> TypeMeta {
    TypeMeta::new(api_version, kind)
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("text, numbers and pairs are always JSON")
}
