use serde_json::{Value, json};

use super::*;
use crate::cache::fixtures::*;
use crate::cache::patch::PatchType;
use crate::cache::{Item, ListAnswer, Scope, Selection, Verb};
use crate::wire::Metadata;

const OLD: &str = "10.244.1.7";
const NEW: &str = "10.244.1.8";

fn scope(group: &str, version: &str, resource: &str, encoding: Encoding) -> Scope {
    let resource = Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        resource: resource.to_owned(),
    };
    Scope {
        representation: Representation {
            resource,
            encoding,
            shape: Shape::Object,
        },
        selection: Selection::default(),
    }
}

fn slices(encoding: Encoding) -> Scope {
    scope("discovery.k8s.io", "v1", "endpointslices", encoding)
}

fn object(name: &str, bytes: Vec<u8>) -> Object {
    Object {
        metadata: Metadata {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            resource_version: 5,
        },
        bytes: bytes.into(),
    }
}

/// What the node reads of the only object of a scope.
fn seen(cache: &mut Cache, scope: &Scope) -> Vec<u8> {
    let ListAnswer::Found(snapshot) = cache.list(&NODE, Verb::List, scope, at(0)) else {
        panic!("the list is whole");
    };
    let [object] = &snapshot.items().map(Item::object).collect::<Vec<_>>()[..] else {
        panic!("it is one object");
    };
    object.bytes.to_vec()
}

fn json_seen(cache: &mut Cache, scope: &Scope) -> Value {
    serde_json::from_slice(&seen(cache, scope)).unwrap()
}

/// The pod `a` of a node at [`OLD`], as kubelet reads it.
fn protobuf_pod(node: &str) -> Object {
    let metadata = message(&[(1, b"a"), (3, b"default")]);
    let spec = message(&[(10, node.as_bytes())]);
    let address = message(&[(1, OLD.as_bytes())]);
    let status = message(&[(6, OLD.as_bytes()), (12, &address)]);
    let bytes = message(&[(1, &metadata), (2, &spec), (3, &status)]);
    object("a", bytes)
}

fn cache_with_pod(node: &str) -> Cache {
    let mut cache = cache();
    let pods = scope("", "v1", "pods", Encoding::Protobuf);
    list(&mut cache, &pods, &[protobuf_pod(node)]);
    cache
}

fn patch(cache: &mut Cache, patch: &Value) {
    let target = Target {
        resource: pods().resource,
        name: name("a"),
    };
    let patch = patch.to_string();
    let strategic = PatchType::StrategicMerge;
    cache
        .patch_locally(&target, Some("edge-1"), strategic, patch.as_bytes())
        .ok();
}

/// As kubelet says that the pod has another address.
fn to_new() -> Value {
    json!({"status": {"podIP": NEW, "podIPs": [{"ip": NEW}, {"$patch": "delete", "ip": OLD}]}})
}

fn target_ref(namespace: &str) -> Value {
    json!({"kind": "Pod", "namespace": namespace, "name": "a", "uid": "u"})
}

fn json_slice(address: &str) -> Value {
    json!({
        "metadata": {"name": "s", "namespace": "default", "resourceVersion": "5"},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [address], "targetRef": target_ref("default"), "nodeName": "edge-1"},
            {"addresses": [OLD], "targetRef": target_ref("shop")},
            {"addresses": [OLD]},
        ],
    })
}

#[test]
fn the_endpoint_of_a_pod_that_has_another_address_follows_and_no_other_one_changes() {
    let mut cache = cache_with_pod("edge-1");
    let scope = slices(Encoding::Json);
    let slice = json_slice(OLD).to_string().into_bytes();
    // Nothing is newer.
    let newest = Object {
        metadata: Metadata {
            resource_version: 10,
            ..object("s", Vec::new()).metadata
        },
        bytes: slice.into(),
    };
    list(&mut cache, &scope, &[newest]);
    patch(&mut cache, &to_new());
    let mut expected = json_slice(NEW);
    // Informers pass over a version that they know.
    expected["metadata"]["resourceVersion"] = "11".into();
    assert_eq!(json_seen(&mut cache, &scope), expected);
}

#[test]
fn protobuf_differs_in_the_address_and_the_version_only() {
    let mut cache = cache_with_pod("edge-1");
    let scope = slices(Encoding::Protobuf);
    let target = message(&[(1, b"Pod"), (2, b"default"), (3, b"a"), (4, b"u")]);
    let slice = |address: &[u8], version: &[u8]| {
        let endpoint = message(&[(1, address), (4, &target), (6, b"edge-1")]);
        let other = message(&[(1, OLD.as_bytes()), (6, b"edge-1")]);
        let metadata = message(&[(1, b"s"), (3, b"default"), (6, version)]);
        message(&[(1, &metadata), (2, &endpoint), (2, &other), (4, b"IPv4")])
    };
    list(
        &mut cache,
        &scope,
        &[object("s", slice(OLD.as_bytes(), b"5"))],
    );
    patch(&mut cache, &to_new());
    assert_eq!(seen(&mut cache, &scope), slice(NEW.as_bytes(), b"6"));
}

#[test]
fn endpoints_of_the_core_group_follow_ready_or_not() {
    let mut cache = cache_with_pod("edge-1");
    let scope = scope("", "v1", "endpoints", Encoding::Json);
    let endpoints = |address: &str| {
        let own = json!({"ip": address, "targetRef": target_ref("default")});
        let other = json!({"ip": OLD, "targetRef": target_ref("shop")});
        json!({
            "metadata": {"name": "s", "resourceVersion": "5"},
            "subsets": [{"addresses": [own, other]}, {"notReadyAddresses": [own]}],
        })
    };
    let bytes = endpoints(OLD).to_string().into_bytes();
    list(&mut cache, &scope, &[object("s", bytes)]);
    patch(&mut cache, &to_new());
    let subsets = json_seen(&mut cache, &scope)["subsets"].take();
    assert_eq!(subsets, endpoints(NEW)["subsets"]);
}

#[test]
fn a_pod_that_gets_its_first_address_again_is_found_there_though_kubelet_does_not_say_so() {
    let mut cache = cache_with_pod("edge-1");
    let scope = slices(Encoding::Json);
    let slice = json_slice(OLD).to_string().into_bytes();
    list(&mut cache, &scope, &[object("s", slice)]);
    patch(&mut cache, &to_new());
    patch(&mut cache, &json!({"status": {"phase": "Running"}}));
    let endpoints = json_seen(&mut cache, &scope)["endpoints"].take();
    assert_eq!(endpoints, json_slice(OLD)["endpoints"]);
}

#[test]
fn endpoints_of_another_nodes_pods_stay() {
    let mut cache = cache_with_pod("edge-2");
    let scope = slices(Encoding::Json);
    let slice = json_slice(OLD).to_string().into_bytes();
    list(&mut cache, &scope, &[object("s", slice.clone())]);
    patch(&mut cache, &to_new());
    assert_eq!(seen(&mut cache, &scope), slice);
}

#[test]
fn an_address_is_replaced_by_one_of_its_family() {
    let mut cache = cache_with_pod("edge-1");
    let scope = slices(Encoding::Json);
    let slice = json_slice("fd00::7").to_string().into_bytes();
    list(&mut cache, &scope, &[object("s", slice)]);
    let both = json!([{"ip": NEW}, {"ip": "fd00::8"}]);
    patch(
        &mut cache,
        &json!({"status": {"podIP": NEW, "podIPs": both}}),
    );
    let endpoints = json_seen(&mut cache, &scope)["endpoints"].take();
    assert_eq!(endpoints, json_slice("fd00::8")["endpoints"]);
}
