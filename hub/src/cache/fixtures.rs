//! Words of the tests of this room.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use super::overlay::{Worth, Written};
use super::{
    Bounds, Cache, Clock, Identity, ObjectName, Representation, Resource, Scope, Selection,
    SetStatus, Verb, Verdict,
};
use crate::wire::{Encoding, Event, EventKind, ListHead, Metadata, Object, Shape, TypeMeta};

pub(super) const NODE: Identity = Identity::Node;

/// A time, in seconds after some fixed moment.
pub(super) fn at(seconds: u64) -> Clock {
    let uptime = Duration::from_secs(seconds);
    Clock {
        wall: UNIX_EPOCH + Duration::from_secs(1_700_000_000) + uptime,
        uptime,
    }
}

pub(super) fn cache() -> Cache {
    Cache::new(Bounds::default())
}

pub(super) fn pods() -> Representation {
    Representation {
        resource: Resource {
            group: String::new(),
            version: "v1".to_owned(),
            resource: "pods".to_owned(),
        },
        encoding: Encoding::Json,
        shape: Shape::Object,
    }
}

/// Lays these bytes over a pod of the namespace `default`, or its deletion.
pub(super) fn overlay(cache: &mut Cache, pod_name: &str, bytes: Option<&str>) {
    let Some(bytes) = bytes else {
        assert!(
            cache
                .overlays
                .replace(&pods().resource, &name(pod_name), None)
        );
        return;
    };
    let object = Object {
        bytes: Bytes::from(bytes.to_owned()),
        ..pod(pod_name, 1)
    };
    let written = Written {
        object: Arc::new(object),
        item_type: pod_type(),
    };
    let resource = pods().resource;
    let name = name(pod_name);
    let written = cache
        .overlays
        .write(&resource, &name, Encoding::Json, written, Worth::Saving);
    assert!(written);
}

/// All pods.
pub(super) fn all() -> Scope {
    Scope {
        representation: pods(),
        selection: Selection::default(),
    }
}

/// All pods of one namespace.
pub(super) fn namespace(namespace: &str) -> Scope {
    let namespace = Some(namespace.to_owned());
    Scope {
        selection: Selection {
            namespace,
            ..Selection::default()
        },
        ..all()
    }
}

/// One pod of the namespace `default`.
pub(super) fn one(name: &str) -> Scope {
    let namespace = Some("default".to_owned());
    let name = Some(name.to_owned());
    Scope {
        selection: Selection {
            namespace,
            name,
            ..Selection::default()
        },
        ..all()
    }
}

/// All pods with a label selector.
pub(super) fn labelled(label_selector: &str) -> Scope {
    let label_selector = label_selector.to_owned();
    Scope {
        selection: Selection {
            label_selector,
            ..Selection::default()
        },
        ..all()
    }
}

pub(super) fn name(name: &str) -> ObjectName {
    ObjectName {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

/// A pod of the namespace `default`.
pub(super) fn pod(name: &str, resource_version: u64) -> Object {
    Object {
        metadata: Metadata {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            resource_version,
        },
        bytes: Bytes::from(format!("{name}@{resource_version}")),
    }
}

pub(super) fn pod_type() -> TypeMeta {
    TypeMeta::new("v1", "Pod")
}

pub(super) fn head(resource_version: u64, continue_token: &str) -> ListHead {
    ListHead {
        type_meta: TypeMeta::new("v1", "PodList"),
        resource_version,
        continue_token: continue_token.to_owned(),
    }
}

pub(super) fn event(kind: EventKind, object: Object) -> Event {
    Event {
        kind,
        type_meta: pod_type(),
        object,
    }
}

pub(super) fn bookmark(resource_version: u64, initial_events_end: bool) -> Event {
    let object = pod("", resource_version);
    event(EventKind::Bookmark { initial_events_end }, object)
}

/// The state of one set, if it was ever filled.
pub(super) fn status(cache: &Cache, scope: &Scope) -> Option<SetStatus> {
    let mut statuses = cache.statuses(at(0)).into_iter();
    statuses.find(|status| status.scope == *scope)
}

/// A list of this scope at version 10.
pub(super) fn list(cache: &mut Cache, scope: &Scope, objects: &[Object]) {
    for verb in [Verb::List, Verb::Watch] {
        cache.record_verdict(&NODE, verb, scope, Verdict::Allowed, at(0));
    }
    let mut copy = cache.start_list(scope, None, &NODE, at(0)).unwrap();
    objects.iter().for_each(|object| copy.add(object.clone()));
    cache.finish_list(copy, &head(10, ""), &NODE, at(0));
}

/// Fields of protobuf by their numbers; each is shorter than 128 bytes.
pub(super) fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, bytes) in fields {
        out.extend([number << 3 | 2, u8::try_from(bytes.len()).unwrap()]);
        out.extend(*bytes);
    }
    out
}
