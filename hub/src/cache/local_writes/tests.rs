use std::time::UNIX_EPOCH;

use serde_json::json;

use super::*;
use crate::cache::fixtures::*;
use crate::cache::{GetAnswer, Item, ListAnswer, Scope, Verb, Verdict};

fn target(pod_name: &str) -> Target {
    Target {
        resource: pods().resource,
        name: name(pod_name),
    }
}

/// What a kubelet reads: the pods of its node, in protobuf or JSON.
fn of_node(encoding: Encoding) -> Scope {
    Scope {
        representation: Representation { encoding, ..pods() },
        selection: Selection {
            field_selector: "spec.nodeName=edge-1".to_owned(),
            ..Selection::default()
        },
    }
}

/// A pod of the node `edge-1` with a phase, in JSON.
fn json_pod(phase: &str, heartbeat: &str) -> Object {
    let condition = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat});
    let pod_in_json = json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-of-a", "resourceVersion": "5"},
        "spec": {"nodeName": "edge-1"},
        "status": {"phase": phase, "conditions": [condition]},
    });
    Object {
        bytes: pod_in_json.to_string().into(),
        ..pod("a", 5)
    }
}

/// A mirror pod of the node `edge-1`, in protobuf.
fn protobuf_pod(pod_name: &str) -> Object {
    let annotation = message(&[(1, MIRROR.as_bytes()), (2, b"hash")]);
    let metadata = message(&[(1, pod_name.as_bytes()), (12, &annotation)]);
    let spec = message(&[(10, b"edge-1")]);
    let bytes = message(&[(1, &metadata), (2, &spec)]);
    let metadata = Metadata {
        name: pod_name.to_owned(),
        ..Metadata::default()
    };
    Object {
        metadata,
        bytes: bytes.into(),
    }
}

/// A cache in which a list of this scope has these pods, at version 10.
fn listed(scope: &Scope, objects: &[Object]) -> Cache {
    let mut cache = cache();
    list(&mut cache, scope, objects);
    drop(cache.take_changes());
    cache
}

fn patch(cache: &mut Cache, phase: &str, heartbeat: &str) -> Option<WrittenObject> {
    let condition = json!({"type": "Ready", "lastHeartbeatTime": heartbeat});
    let patch = json!({"status": {"phase": phase, "conditions": [condition]}});
    let patch = patch.to_string();
    let strategic = PatchType::StrategicMerge;
    cache
        .patch_locally(&target("a"), Some("edge-1"), strategic, patch.as_bytes())
        .unwrap()
}

fn items(cache: &mut Cache, scope: &Scope) -> Vec<Object> {
    match cache.list(&NODE, Verb::List, scope, at(0)) {
        ListAnswer::Found(snapshot) => snapshot.items().map(Item::object).collect(),
        ListAnswer::Unknown | ListAnswer::Denied => panic!("the list is whole"),
    }
}

#[test]
fn heartbeats_are_seen_and_not_written_to_the_disk() {
    let scope = of_node(Encoding::Json);
    let mut cache = listed(&scope, &[json_pod("Running", "1")]);
    let seen = patch(&mut cache, "Running", "2").unwrap();
    assert_eq!(items(&mut cache, &scope), [(*seen.object).clone()]);
    assert_eq!(cache.unsaved_bytes(), 0);
    patch(&mut cache, "Failed", "3");
    assert!(cache.unsaved_bytes() > 0, "a phase is worth a write");
}

#[test]
fn the_same_patch_again_changes_nothing() {
    let scope = of_node(Encoding::Json);
    let mut cache = listed(&scope, &[json_pod("Running", "1")]);
    let first = patch(&mut cache, "Failed", "1").unwrap();
    assert_eq!(first.object.metadata.resource_version, 6);
    drop(cache.take_changes());
    let second = patch(&mut cache, "Failed", "1").unwrap();
    assert_eq!(second.object, first.object);
    assert_eq!(cache.unsaved_bytes(), 0);
    let third = patch(&mut cache, "Running", "1").unwrap();
    assert_eq!(third.object.metadata.resource_version, 7);
}

#[test]
fn versions_of_local_writes_stay_below_what_the_api_server_said() {
    let scope = of_node(Encoding::Json);
    let mut cache = listed(&scope, &[json_pod("Running", "1")]);
    let versions: Vec<u64> = (0..8)
        .map(|write| {
            let patched = patch(&mut cache, "Running", &format!("b{write}")).unwrap();
            patched.object.metadata.resource_version
        })
        .collect();
    assert_eq!(versions, [6, 7, 8, 9, 10, 10, 10, 10]);
}

#[test]
fn a_protobuf_copy_stays_as_it_is_and_its_patch_is_acknowledged() {
    let scope = of_node(Encoding::Protobuf);
    let mut cache = listed(&scope, &[pod("a", 5)]);
    assert!(patch(&mut cache, "Failed", "1").is_none());
    assert_eq!(items(&mut cache, &scope), [pod("a", 5)]);
    assert_eq!(cache.overlaid_objects(), 0);
}

#[test]
fn pods_of_another_node_are_not_written() {
    let scope = of_node(Encoding::Json);
    let mut cache = listed(&scope, &[json_pod("Running", "1")]);
    let a = target("a");
    let strategic = PatchType::StrategicMerge;
    let patched = cache.patch_locally(&a, Some("edge-2"), strategic, b"{}");
    assert!(matches!(patched, Err(LocalWriteError::OfAnotherNode)));
}

#[test]
fn kubelet_sees_the_mirror_pod_that_it_made_in_protobuf_and_json_is_not_told_that_there_is_none() {
    let scope = of_node(Encoding::Protobuf);
    let mut cache = listed(&scope, &[]);
    let m = target("m");
    let encoding = Encoding::Protobuf;
    let made = cache
        .create_locally(
            &m,
            encoding,
            pod_type(),
            &protobuf_pod("m"),
            "u".to_owned(),
            UNIX_EPOCH,
        )
        .unwrap();
    assert_eq!(items(&mut cache, &scope), [(*made.object).clone()]);
    let bytes = &made.object.bytes;
    for (path, expected) in [
        (edit::metadata::UID, "u"),
        (edit::metadata::NAMESPACE, "default"),
        (edit::metadata::RESOURCE_VERSION, "10"),
        (POD_NODE, "edge-1"),
    ] {
        assert_eq!(edit::text(encoding, bytes, path).unwrap(), expected);
    }
    cache.record_verdict(&NODE, Verb::Get, &one("m"), Verdict::Allowed, at(0));
    let in_json = cache.get(&NODE, &one("m"), at(0));
    assert!(matches!(in_json, GetAnswer::Unknown), "{in_json:?}");
}

#[test]
fn a_set_whose_selector_depends_on_unknown_fields_does_not_get_what_was_made_here() {
    let mut scope = of_node(Encoding::Protobuf);
    scope.selection.field_selector = "status.phase=Running".to_owned();
    let mut cache = listed(&scope, &[]);
    let m = target("m");
    let encoding = Encoding::Protobuf;
    let mirror = protobuf_pod("m");
    let uid = "u".to_owned();
    cache
        .create_locally(&m, encoding, pod_type(), &mirror, uid, UNIX_EPOCH)
        .unwrap();
    assert_eq!(items(&mut cache, &scope), []);
}

#[test]
fn an_object_put_with_the_uid_of_another_is_a_conflict() {
    let scope = of_node(Encoding::Json);
    let mut cache = listed(&scope, &[json_pod("Running", "1")]);
    let mut other = json_pod("Failed", "1");
    other.metadata.uid = "other".to_owned();
    let put = cache.put_locally(&target("a"), None, Encoding::Json, pod_type(), other);
    assert!(matches!(
        put,
        Err(LocalWriteError::Conflict { field: "uid" })
    ));
    let own = json_pod("Failed", "1");
    let put = cache.put_locally(&target("a"), None, Encoding::Json, pod_type(), own);
    assert_eq!(put.unwrap().object.metadata.resource_version, 6);
}
