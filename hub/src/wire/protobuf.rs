//! Protobuf on the wire. Of each message only the fields that the hub needs are known by number;
//! all others are passed on as bytes.
//!
//! The numbers are those of `generated.proto` in apimachinery (`pkg/runtime`, `pkg/apis/meta/v1`).

pub(super) mod edit;
pub(super) mod events;
pub(super) mod field;
pub(super) mod list;
pub(super) mod object;
pub(super) mod write;

/// What every body but a watch begins with. In a watch, every object does.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`, the envelope of an object.
pub(super) mod unknown {
    pub(in crate::wire) const TYPE_META: u64 = 1;
    pub(in crate::wire) const RAW: u64 = 2;
    pub(in crate::wire) const CONTENT_ENCODING: u64 = 3;
    pub(in crate::wire) const CONTENT_TYPE: u64 = 4;
}

/// `runtime.TypeMeta`
mod type_meta {
    pub(super) const API_VERSION: u64 = 1;
    pub(super) const KIND: u64 = 2;
}

/// A list of any kind.
pub(super) mod list_fields {
    pub(in crate::wire) const METADATA: u64 = 1;
    pub(in crate::wire) const ITEMS: u64 = 2;
}

/// `meta.v1.ListMeta`
mod list_meta {
    pub(super) const SELF_LINK: u64 = 1;
    pub(super) const RESOURCE_VERSION: u64 = 2;
    pub(super) const CONTINUE: u64 = 3;
}

/// `metadata` of an object of any kind.
pub(super) const METADATA: u64 = 1;

/// `meta.v1.ObjectMeta`
pub(super) mod object_meta {
    pub(in crate::wire) const NAME: u64 = 1;
    pub(in crate::wire) const NAMESPACE: u64 = 3;
    pub(in crate::wire) const UID: u64 = 5;
    pub(in crate::wire) const RESOURCE_VERSION: u64 = 6;
    pub(in crate::wire) const CREATION_TIMESTAMP: u64 = 8;
    pub(in crate::wire) const LABELS: u64 = 11;
    pub(in crate::wire) const ANNOTATIONS: u64 = 12;
    pub(in crate::wire) const MANAGED_FIELDS: u64 = 17;
}

/// `meta.v1.Time`
mod time_fields {
    pub(super) const SECONDS: u64 = 1;
    pub(super) const NANOS: u64 = 2;
}

/// An entry of a map of strings.
mod map_entry {
    pub(super) const KEY: u64 = 1;
    pub(super) const VALUE: u64 = 2;
}

/// `meta.v1.WatchEvent`, and the `RawExtension` in it.
pub(super) mod watch_event {
    pub(in crate::wire) const TYPE: u64 = 1;
    pub(in crate::wire) const OBJECT: u64 = 2;
    pub(in crate::wire) const OBJECT_RAW: u64 = 1;
}

/// `meta.v1.Status`, and the `StatusDetails` in it.
mod status {
    pub(super) const METADATA: u64 = 1;
    pub(super) const STATUS: u64 = 2;
    pub(super) const MESSAGE: u64 = 3;
    pub(super) const REASON: u64 = 4;
    pub(super) const DETAILS: u64 = 5;
    pub(super) const CODE: u64 = 6;
    pub(super) const DETAILS_NAME: u64 = 1;
    pub(super) const DETAILS_GROUP: u64 = 2;
    pub(super) const DETAILS_KIND: u64 = 3;
    pub(super) const DETAILS_CAUSES: u64 = 4;
    pub(super) const DETAILS_RETRY_AFTER: u64 = 5;
    pub(super) const DETAILS_UID: u64 = 6;
    pub(super) const CAUSE_REASON: u64 = 1;
    pub(super) const CAUSE_MESSAGE: u64 = 2;
    pub(super) const CAUSE_FIELD: u64 = 3;
}
