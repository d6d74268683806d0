//! Objects, lists and watch events of the Kubernetes API as they are on the wire, in JSON and in
//! protobuf. They are cut out as bytes: no type of Kubernetes is known here, so no field is lost.

mod json;
mod protobuf;
pub(crate) mod split;
pub(crate) mod status;
pub(crate) mod write;

use std::collections::BTreeMap;

use bytes::Bytes;

/// The labels of an object.
pub(crate) type Labels = BTreeMap<String, String>;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Encoding {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

/// What the API server makes of an object before it answers (`as=` in `Accept`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// The object itself.
    Object,
    /// `PartialObjectMetadata`, or a list of it.
    Metadata,
    /// `Table`: rows for people.
    Table,
}

/// `apiVersion` and `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TypeMeta {
    pub(crate) api_version: String,
    pub(crate) kind: String,
}

impl TypeMeta {
    /// The type of the items of a list: `Pod` for `PodList`. `None`: this is no list.
    pub(crate) fn item(&self) -> Option<Self> {
        let kind = self.kind.strip_suffix("List")?;
        (!kind.is_empty()).then(|| Self {
            api_version: self.api_version.clone(),
            kind: kind.to_owned(),
        })
    }
}

/// What of an object's metadata the hub reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// Empty for objects without a namespace.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: u64,
}

/// An object as it is in a list: in JSON with or without `kind` and `apiVersion`, in protobuf the
/// message without the `k8s\0` envelope. `managedFields` are cut out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) metadata: Metadata,
    pub(crate) bytes: Bytes,
}

/// All of a list but its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListHead {
    /// `PodList`, say.
    pub(crate) type_meta: TypeMeta,
    pub(crate) resource_version: u64,
    /// `metadata.continue`; empty on the last page.
    pub(crate) continue_token: String,
}

/// What a watch event says of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
    /// Only the resource version of the object counts.
    Bookmark {
        /// `k8s.io/initial-events-end`: all that existed has been told.
        initial_events_end: bool,
    },
    /// The object is a `Status`. The watch ends after it.
    Error {
        /// `Status.code`, as 410 for a resource version that is too old.
        code: u16,
    },
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) type_meta: TypeMeta,
    pub(crate) object: Object,
}
