//! Writes of the node about itself without a link. They are laid over the remembered objects for
//! all readers, until the API server next answers about the object.
//!
//! An error says why a write is not acknowledged.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use http::{HeaderMap, Response, StatusCode};
use sha2::{Digest, Sha256};

use super::local;
use super::write_body::{Write, accept_text, body, media_type, reads};
use crate::cache::patch::{PatchError, PatchType};
use crate::cache::{
    Identity, LocalWriteError, ObjectName, Representation, Resource, Scope, Selection, Target,
    Verb, WrittenObject,
};
use crate::hub::Hub;
use crate::reads::Read;
use crate::refusal;
use crate::request::accept;
use crate::request::options::ListOptions;
use crate::upstream::Body;
use crate::wire::edit::{self, Path};
use crate::wire::{Encoding, Shape};

/// `preconditions.uid` of `meta.v1.DeleteOptions`.
const UID_PRECONDITION: Path = Path {
    json: &["preconditions", "uid"],
    protobuf: &[2, 1],
};

const DELETED: &str =
    "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Success\"}\n";

/// Patches are JSON. The protobuf copy, which kubelet reads, cannot be patched: kubelet then gets
/// it as it is, which it takes as an acknowledgement.
pub(super) fn patch(
    hub: &Hub,
    node: Option<&str>,
    write: &Write<'_>,
) -> Result<Response<Body>, String> {
    let patch_type = match media_type(&write.head.headers) {
        "application/merge-patch+json" => PatchType::Merge,
        "application/strategic-merge-patch+json" => PatchType::StrategicMerge,
        _ => return Err("patches of this type are not applied here".to_owned()),
    };
    let target = target(write, &write.resource.name);
    let mut kept = hub.memory.lock();
    let patched = kept
        .cache
        .patch_locally(&target, node, patch_type, write.body);
    drop(kept);
    match patched {
        Ok(patched) => {
            if let Some(patched) = patched
                && let Some(answer) = written(&write.head.headers, &patched, StatusCode::OK)
            {
                return Ok(answer);
            }
            match present_object(hub, write) {
                Some(answer) => Ok(answer),
                None => Err("the object is not in memory as it was asked for".to_owned()),
            }
        }
        Err(error) => refuse(write, &write.resource.name, &error),
    }
}

pub(super) fn put(
    hub: &Hub,
    node: Option<&str>,
    write: &Write<'_>,
) -> Result<Response<Body>, String> {
    let (encoding, item_type, object) = body(write)?;
    let target = target(write, &write.resource.name);
    let mut kept = hub.memory.lock();
    let put = kept
        .cache
        .put_locally(&target, node, encoding, item_type, object);
    drop(kept);
    match put {
        Ok(it) => acknowledgement(write, &it, StatusCode::OK),
        Err(error) => refuse(write, &write.resource.name, &error),
    }
}

/// Mirror pods only. What exists is said to exist, as kubelet needs it when it starts.
pub(super) fn create(hub: &Hub, write: &Write<'_>) -> Result<Response<Body>, String> {
    let (encoding, item_type, object) = body(write)?;
    let name = object.metadata.name.clone();
    let target = target(write, &name);
    let uid = new_uid(write);
    let now = SystemTime::now();
    let mut kept = hub.memory.lock();
    let created = kept
        .cache
        .create_locally(&target, encoding, item_type, &object, uid, now);
    drop(kept);
    match created {
        Ok(it) => acknowledgement(write, &it, StatusCode::CREATED),
        Err(error) => refuse(write, &name, &error),
    }
}

/// Mirror pods only.
pub(super) fn delete(hub: &Hub, write: &Write<'_>) -> Result<Response<Body>, String> {
    let uid = if write.body.is_empty() {
        String::new()
    } else {
        let (encoding, _, options) = body(write)?;
        edit::text(encoding, &options.bytes, UID_PRECONDITION).map_err(|it| it.to_string())?
    };
    let uid = if uid.is_empty() { None } else { Some(&*uid) };
    let target = target(write, &write.resource.name);
    let deleted = hub.memory.lock().cache.delete_locally(&target, uid);
    match deleted {
        Ok(()) => Ok(local::ok(Encoding::Json, DELETED, Duration::ZERO)),
        Err(error) => refuse(write, &write.resource.name, &error),
    }
}

/// The API server has answered this write.
pub(super) fn end_overlay(hub: &Hub, write: &Write<'_>) {
    if hub.memory.lock().cache.overlaid_objects() == 0 {
        return;
    }
    let name = match &*write.resource.name {
        "" => body(write).map(|(_, _, object)| object.metadata.name),
        name => Ok(name.to_owned()),
    };
    if let Ok(name) = name {
        let target = target(write, &name);
        hub.memory.lock().cache.end_overlay(&target);
    }
}

fn target(write: &Write<'_>, name: &str) -> Target {
    let request = write.resource;
    Target {
        resource: Resource {
            group: request.gvr.group.clone(),
            version: request.gvr.version.clone(),
            resource: request.gvr.resource.clone(),
        },
        name: ObjectName {
            namespace: request.namespace.clone(),
            name: name.to_owned(),
        },
    }
}

fn refuse(
    write: &Write<'_>,
    name: &str,
    error: &LocalWriteError,
) -> Result<Response<Body>, String> {
    let resource = &write.resource.gvr.resource;
    match error {
        LocalWriteError::Absent => Ok(refusal::not_found(resource, name)),
        LocalWriteError::Exists => Ok(refusal::already_exists(resource, name)),
        LocalWriteError::Conflict { .. } | LocalWriteError::Patch(PatchError::Conflict { .. }) => {
            Ok(refusal::conflict(
                resource,
                name,
                &culvert_daemon::chain(error),
            ))
        }
        LocalWriteError::Unknown
        | LocalWriteError::NotRepeated
        | LocalWriteError::OfAnotherNode
        | LocalWriteError::TooMuch
        | LocalWriteError::Patch(_)
        | LocalWriteError::Read(_) => Err(culvert_daemon::chain(error)),
    }
}

fn acknowledgement(
    write: &Write<'_>,
    object: &WrittenObject,
    status: StatusCode,
) -> Result<Response<Body>, String> {
    match written(&write.head.headers, object, status) {
        Some(answer) => Ok(answer),
        None => Err("encodings are not converted here".to_owned()),
    }
}

/// The object as it was written. `None`: the client does not read its encoding.
fn written(
    headers: &HeaderMap,
    written: &WrittenObject,
    status: StatusCode,
) -> Option<Response<Body>> {
    let WrittenObject {
        encoding,
        object,
        item_type,
    } = written;
    if !reads(headers, *encoding) {
        return None;
    }
    let body = object.alone(*encoding, item_type);
    let mut answer = local::ok(*encoding, body, Duration::ZERO);
    *answer.status_mut() = status;
    Some(answer)
}

/// The object as it is in memory. Kubelet sees that it is not what it sent, and sends it again
/// until the API server has it.
fn present_object(hub: &Hub, write: &Write<'_>) -> Option<Response<Body>> {
    let accepted = accept::Representation::from_accept(accept_text(&write.head.headers))?;
    let Target {
        resource,
        name: ObjectName { namespace, name },
    } = target(write, &write.resource.name);
    let read = Read {
        verb: Verb::Get,
        scope: Scope {
            representation: Representation {
                resource,
                encoding: accepted.encoding,
                shape: Shape::Object,
            },
            selection: Selection {
                namespace: if namespace.is_empty() {
                    None
                } else {
                    Some(namespace)
                },
                name: Some(name),
                ..Selection::default()
            },
        },
        options: ListOptions::default(),
        takes_plain_json: false,
    };
    let answer = local::answer(&hub.memory, &Identity::Node, &read, "");
    if answer.status() != StatusCode::OK {
        return None;
    }
    Some(answer)
}

/// A uid in the form of a random UUID, of this moment and this write.
fn new_uid(write: &Write<'_>) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut digest = Sha256::new();
    digest.update(since.unwrap_or_default().as_nanos().to_le_bytes());
    digest.update(write.head.uri.path());
    digest.update(write.body);
    let hex = HEXLOWER.encode(&digest.finalize());
    format!(
        "{}-{}-4{}-a{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..15],
        &hex[15..18],
        &hex[18..30]
    )
}
