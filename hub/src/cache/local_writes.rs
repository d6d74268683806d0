//! Writes of the node while the API server cannot be asked: what they make of the cached objects.
//! All of them are kept as overlays.
//!
//! A written object gets a resource version that is larger by one, but not larger than the largest
//! that the cache has seen. Informers pass over an object whose version they know; and a client that
//! goes on from this version asks the API server for one that was.

mod change;
mod endpoints;

use std::sync::Arc;
use std::time::SystemTime;

use self::change::{Change, change};
use super::overlay::{Overlaid, Worth, Written};
use super::patch::{PatchError, PatchType, patched};
use super::set::{Set, newest_authoritative};
use super::{Cache, ObjectName, Representation, Resource, Selection};
use crate::request::selector::{FieldSelector, LabelSelector};
use crate::wire::edit::{self, Path, Value};
use crate::wire::split::SplitError;
use crate::wire::{Encoding, Metadata, Object, Shape, TypeMeta};

/// Kubelet marks the pods by it that stand for its static pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The node that a pod runs on.
const POD_NODE: Path = Path {
    json: &["spec", "nodeName"],
    protobuf: &[2, 10],
};

const ENCODINGS: [Encoding; 2] = [Encoding::Json, Encoding::Protobuf];

/// What a local write is about.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) resource: Resource,
    pub(crate) name: ObjectName,
}

impl Target {
    fn is_pod(&self) -> bool {
        self.resource.group.is_empty() && self.resource.resource == "pods"
    }

    fn in_encoding(&self, encoding: Encoding) -> Representation {
        Representation {
            resource: self.resource.clone(),
            encoding,
            shape: Shape::Object,
        }
    }
}

/// An object as a local write leaves it, for its writer.
#[derive(Clone, Debug)]
pub(crate) struct WrittenObject {
    pub(crate) encoding: Encoding,
    pub(crate) object: Arc<Object>,
    pub(crate) item_type: TypeMeta,
}

/// Why a local write is not acknowledged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalWriteError {
    #[error("the object is not in memory")]
    Unknown,
    #[error("the object does not exist")]
    Absent,
    #[error("the object exists already")]
    Exists,
    /// 409, as the API server answers.
    #[error("metadata.{field} is not that of the object")]
    Conflict { field: &'static str },
    #[error("no client sends this write again")]
    NotRepeated,
    #[error("the pod is another node's")]
    OfAnotherNode,
    #[error("too much was written while the API server could not be asked")]
    TooMuch,
    #[error("apply the patch")]
    Patch(#[from] PatchError),
    #[error("read the object")]
    Read(#[from] SplitError),
}

/// What the cache knows of an object, for any reader.
enum Remembered {
    Object(Arc<Object>, TypeMeta),
    Absent,
    Unknown,
}

impl Cache {
    /// Applies a patch of the node to the JSON copy, if there is one. `None`: there is only a
    /// protobuf copy, which stays as it is; see [`super::patch`]. Endpoints follow a pod.
    pub(crate) fn patch_locally(
        &mut self,
        target: &Target,
        node: Option<&str>,
        patch_type: PatchType,
        patch: &[u8],
    ) -> Result<Option<WrittenObject>, LocalWriteError> {
        let patched = self.patch_json(target, node, patch_type, patch)?;
        self.lead_endpoints(target, node, patch);
        Ok(patched)
    }

    fn patch_json(
        &mut self,
        target: &Target,
        node: Option<&str>,
        patch_type: PatchType,
        patch: &[u8],
    ) -> Result<Option<WrittenObject>, LocalWriteError> {
        let encoding = Encoding::Json;
        let (object, item_type) = match self.remembered(&target.in_encoding(encoding), &target.name)
        {
            Remembered::Object(object, item_type) => (object, item_type),
            Remembered::Absent | Remembered::Unknown => {
                return self.in_any_encoding(target).map(|_| None);
            }
        };
        check_node(target, node, encoding, &object)?;
        let new = patched(&object, &item_type, patch_type, patch)?;
        self.lay_over(target, encoding, Some(&object), new, item_type)
            .map(Some)
    }

    /// Takes an object as the node wrote it. Its resource version is not compared: the node may
    /// have read a later one in the answer to an earlier write, which the cache does not copy.
    pub(crate) fn put_locally(
        &mut self,
        target: &Target,
        node: Option<&str>,
        encoding: Encoding,
        item_type: TypeMeta,
        object: Object,
    ) -> Result<WrittenObject, LocalWriteError> {
        let object = named(target, encoding, &object)?;
        if target.resource.is_lease() {
            // Kubelet knows its lease better: it has read it in the answer to its last renewal.
            return self.record_written(target, encoding, object, item_type, Worth::Nothing);
        }
        let known = self.in_any_encoding(target)?;
        if !object.metadata.uid.is_empty() && object.metadata.uid != known.object.metadata.uid {
            return Err(LocalWriteError::Conflict { field: "uid" });
        }
        check_node(target, node, encoding, &object)?;
        let earlier = (known.encoding == encoding).then_some(&known.object);
        self.lay_over(target, encoding, earlier.map(|it| &**it), object, item_type)
    }

    /// Creates a mirror pod, with this uid.
    pub(crate) fn create_locally(
        &mut self,
        target: &Target,
        encoding: Encoding,
        item_type: TypeMeta,
        object: &Object,
        uid: String,
        now: SystemTime,
    ) -> Result<WrittenObject, LocalWriteError> {
        if self.in_any_encoding(target).is_ok() {
            return Err(LocalWriteError::Exists);
        }
        if !target.is_pod() || object.annotation(encoding, MIRROR)?.is_none() {
            return Err(LocalWriteError::NotRepeated);
        }
        let resource_version = self.newest_version(&target.in_encoding(encoding));
        if resource_version == 0 {
            return Err(LocalWriteError::Unknown);
        }
        let metadata = Metadata {
            namespace: target.name.namespace.clone(),
            name: target.name.name.clone(),
            uid,
            resource_version,
        };
        named(target, encoding, object)?;
        let created = object.with_metadata(encoding, metadata)?;
        let path = edit::metadata::CREATION_TIMESTAMP;
        let time = Value::time(encoding, now);
        let object = Arc::new(Object {
            bytes: edit::set(encoding, &created.bytes, path, &time)?.into(),
            metadata: created.metadata,
        });
        let written = Written {
            object: object.clone(),
            item_type: item_type.clone(),
        };
        let created = Some((encoding, written));
        if !self
            .overlays
            .replace(&target.resource, &target.name, created)
        {
            return Err(LocalWriteError::TooMuch);
        }
        Ok(WrittenObject {
            encoding,
            object,
            item_type,
        })
    }

    /// Deletes a mirror pod, if it has this uid.
    pub(crate) fn delete_locally(
        &mut self,
        target: &Target,
        uid: Option<&str>,
    ) -> Result<(), LocalWriteError> {
        let known = self.in_any_encoding(target)?;
        if uid.is_some_and(|uid| uid != known.object.metadata.uid) {
            return Err(LocalWriteError::Conflict { field: "uid" });
        }
        let mirror = known.object.annotation(known.encoding, MIRROR)?;
        if !target.is_pod() || mirror.is_none() {
            return Err(LocalWriteError::NotRepeated);
        }
        if !self.overlays.replace(&target.resource, &target.name, None) {
            return Err(LocalWriteError::TooMuch);
        }
        Ok(())
    }

    /// The API server has answered a write of this object.
    pub(crate) fn end_overlay(&mut self, target: &Target) {
        self.overlays.end(&target.resource, &target.name);
    }

    fn lay_over(
        &mut self,
        target: &Target,
        encoding: Encoding,
        earlier: Option<&Object>,
        new: Object,
        item_type: TypeMeta,
    ) -> Result<WrittenObject, LocalWriteError> {
        let Some(earlier) = earlier else {
            return self.record_written(target, encoding, new, item_type, Worth::Saving);
        };
        let version = earlier.metadata.resource_version;
        let new = new.at_version(encoding, version)?;
        let worth = match change(encoding, earlier, &new) {
            Change::None => {
                return Ok(WrittenObject {
                    encoding,
                    object: Arc::new(new),
                    item_type,
                });
            }
            Change::Heartbeat => Worth::Nothing,
            Change::Other => Worth::Saving,
        };
        let newest = self.newest_version_of_core();
        let next = (version + 1).min(newest).max(version);
        let new = new.at_version(encoding, next)?;
        self.record_written(target, encoding, new, item_type, worth)
    }

    fn record_written(
        &mut self,
        target: &Target,
        encoding: Encoding,
        object: Object,
        item_type: TypeMeta,
        worth: Worth,
    ) -> Result<WrittenObject, LocalWriteError> {
        let object = Arc::new(object);
        let written = Written {
            object: object.clone(),
            item_type: item_type.clone(),
        };
        let fits = object.bytes.len() <= self.bounds.object;
        let Target { resource, name } = target;
        if !fits
            || !self
                .overlays
                .write(resource, name, encoding, written, worth)
        {
            return Err(LocalWriteError::TooMuch);
        }
        Ok(WrittenObject {
            encoding,
            object,
            item_type,
        })
    }

    fn in_any_encoding(&self, target: &Target) -> Result<WrittenObject, LocalWriteError> {
        let mut missing = LocalWriteError::Unknown;
        for encoding in ENCODINGS {
            match self.remembered(&target.in_encoding(encoding), &target.name) {
                Remembered::Object(object, item_type) => {
                    return Ok(WrittenObject {
                        encoding,
                        object,
                        item_type,
                    });
                }
                Remembered::Absent => missing = LocalWriteError::Absent,
                Remembered::Unknown => {}
            }
        }
        Err(missing)
    }

    fn remembered(&self, of: &Representation, name: &ObjectName) -> Remembered {
        match self.overlays.shown_object(of, name) {
            Some(Overlaid::Object(it)) => {
                return Remembered::Object(it.object.clone(), it.item_type.clone());
            }
            Some(Overlaid::Deleted) => return Remembered::Absent,
            Some(Overlaid::Elsewhere) => return Remembered::Unknown,
            None => {}
        }
        let mut covering: Vec<_> = self.sets.get(of).into_iter().flatten().collect();
        covering.retain(|(selection, _)| selection.may_contain(name));
        let Some((_, set)) = newest_authoritative(&covering, name) else {
            return Remembered::Unknown;
        };
        match set.generation.members.get(name) {
            Some(object) => {
                let item_type = set.generation.item_type.clone();
                Remembered::Object(Arc::new(object.object()), item_type)
            }
            None => Remembered::Absent,
        }
    }

    /// The newest version of all that the cache knows of the core group, whose resources have one
    /// count.
    fn newest_version_of_core(&self) -> u64 {
        let mut newest = 0;
        for (of, sets) in &self.sets {
            if of.resource.group.is_empty() {
                let versions = sets.values().map(Set::resource_version);
                newest = newest.max(versions.max().unwrap_or(0));
            }
        }
        newest
    }

    /// The newest version of all that the cache knows of a resource; zero if it knows nothing.
    fn newest_version(&self, of: &Representation) -> u64 {
        let sets = self.sets.get(of).into_iter().flatten();
        sets.map(|(_, set)| set.resource_version())
            .max()
            .unwrap_or(0)
    }
}

/// Whether a selection selects an object that was made here. What depends on fields that are not
/// known here, it does not.
pub(super) fn selects(selection: &Selection, encoding: Encoding, object: &Object) -> bool {
    let Ok(by_labels) = selection.label_selector.parse::<LabelSelector>() else {
        return false;
    };
    let Ok(by_fields) = selection.field_selector.parse::<FieldSelector>() else {
        return false;
    };
    if !by_labels.is_empty() {
        match object.labels(encoding) {
            Ok(labels) if by_labels.matches(&labels) => {}
            Ok(_) | Err(_) => return false,
        }
    }
    let has_fields = by_fields.matches_fields(|name| match name {
        "metadata.name" => Some(object.metadata.name.clone()),
        "metadata.namespace" => Some(object.metadata.namespace.clone()),
        "spec.nodeName" => edit::text(encoding, &object.bytes, POD_NODE).ok(),
        _ => None,
    });
    has_fields == Some(true)
}

/// The object, whose namespace may be said by the path alone.
fn named(target: &Target, encoding: Encoding, object: &Object) -> Result<Object, LocalWriteError> {
    let ObjectName { namespace, name } = &target.name;
    let own = &object.metadata;
    if own.name != *name {
        return Err(LocalWriteError::Conflict { field: "name" });
    }
    if !own.namespace.is_empty() && own.namespace != *namespace {
        return Err(LocalWriteError::Conflict { field: "namespace" });
    }
    let metadata = Metadata {
        namespace: namespace.clone(),
        ..own.clone()
    };
    Ok(object.with_metadata(encoding, metadata)?)
}

/// A node writes its own pods only.
fn check_node(
    target: &Target,
    node: Option<&str>,
    encoding: Encoding,
    object: &Object,
) -> Result<(), LocalWriteError> {
    if let Some(node) = node
        && target.is_pod()
        && edit::text(encoding, &object.bytes, POD_NODE)? != node
    {
        return Err(LocalWriteError::OfAnotherNode);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
