//! What becomes of kubelet's writes while its link is cut, and after it is back.

use serde_json::{Value, json};

use super::fake_api::Said;
use super::hostile_tests::{say, say_nothing};
use super::tests::{PODS, watch_from, with_listed_pods};
use super::{DEADLINE, TestClient, TestCluster, TestWatch, whole};
use crate::upstream::full;

const PATCH: &str = r#"{"metadata":{"uid":"u-a"},"status":{"phase":"Failed","podIP":"10.0.0.7"}}"#;
const MIRROR: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"m","annotations":{"kubernetes.io/config.mirror":"h"}}}"#;
const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/app/token";

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A hub without a link, whose kubelet has listed and watched the pods `a` and `b`.
async fn cut_off() -> (TestCluster, TestClient) {
    let cluster = with_listed_pods().await;
    let kubelet = cluster.kubelet();
    drop(kubelet.watch(&watch_from(101)).await);
    cluster.cut().await;
    (cluster, kubelet)
}

async fn patch_a(kubelet: &TestClient) {
    let (status, answer) = kubelet
        .write("PATCH", &format!("{PODS}/a/status"), PATCH)
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(parse(&answer)["status"]["podIP"], "10.0.0.7");
}

/// Name and phase of the next event.
async fn next_phase(watch: &mut TestWatch) -> (String, String, Value) {
    let event = watch.next_event().await.unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let object = &event["object"];
    let phase = object["status"]["phase"].clone();
    (
        text(&event["type"]),
        text(&object["metadata"]["name"]),
        phase,
    )
}

fn modified_a(phase: impl Into<Value>) -> (String, String, Value) {
    ("MODIFIED".to_owned(), "a".to_owned(), phase.into())
}

#[tokio::test]
async fn a_status_that_was_acknowledged_is_seen_by_all_readers() {
    let (_cluster, kubelet) = cut_off().await;
    let mut open = kubelet.watch(&watch_from(101)).await;
    patch_a(&kubelet).await;
    assert_eq!(next_phase(&mut open).await, modified_a("Failed"));
    let pod = kubelet.get_json(&format!("{PODS}/a")).await;
    assert_eq!(pod["status"]["phase"], "Failed");
    let list = kubelet.get_json(PODS).await;
    assert_eq!(list["items"][0]["status"], pod["status"]);
    assert_eq!(list["items"][1]["status"], Value::Null, "b was not written");
    let mut later = kubelet.watch(&watch_from(101)).await;
    assert_eq!(next_phase(&mut later).await, modified_a("Failed"));
}

#[tokio::test]
async fn a_written_object_has_a_version_that_informers_do_not_pass_over() {
    let (_cluster, kubelet) = cut_off().await;
    let version = |pod: &Value| pod["metadata"]["resourceVersion"].clone();
    let before = kubelet.get_json(&format!("{PODS}/a")).await;
    patch_a(&kubelet).await;
    let after = kubelet.get_json(&format!("{PODS}/a")).await;
    assert_eq!(
        (version(&before), version(&after)),
        (json!("100"), json!("101"))
    );
}

#[tokio::test]
async fn a_restart_loses_no_acknowledged_write() {
    let (cluster, kubelet) = cut_off().await;
    patch_a(&kubelet).await;
    let before = kubelet.get_json(PODS).await;
    let cluster = cluster.restart().await;
    assert_eq!(cluster.kubelet().get_json(PODS).await, before);
}

#[tokio::test]
async fn a_hub_that_is_killed_loses_no_acknowledged_write() {
    let (mut cluster, kubelet) = cut_off().await;
    let (status, made) = kubelet.write("POST", PODS, MIRROR).await;
    assert_eq!(status, 201, "{made}");
    cluster = cluster.kill_and_start().await;
    let again = cluster.kubelet().write("POST", PODS, MIRROR).await;
    assert_eq!(again.0, 409, "{}", again.1);
    patch_a(&cluster.kubelet()).await;
    let before = cluster.kubelet().get_json(PODS).await;
    cluster = cluster.kill_and_start().await;
    assert_eq!(cluster.kubelet().get_json(PODS).await, before);
}

#[tokio::test]
async fn with_the_link_a_watch_is_told_the_truth_again_until_kubelet_repeats_its_write() {
    let (cluster, kubelet) = cut_off().await;
    let mut watch = kubelet.watch(&watch_from(101)).await;
    patch_a(&kubelet).await;
    assert_eq!(next_phase(&mut watch).await, modified_a("Failed"));
    cluster.reconnect().await;
    assert_eq!(next_phase(&mut watch).await, modified_a(Value::Null));
    assert_eq!(cluster.hub.memory.lock().cache.overlaid_objects(), 1);
    let kubelet = cluster.kubelet();
    let path = format!("{PODS}/a/status");
    assert_eq!(kubelet.write("PATCH", &path, PATCH).await.0, 200);
    assert_eq!(cluster.hub.memory.lock().cache.overlaid_objects(), 0);
    let event = watch.next_event().await.unwrap();
    assert_eq!(event["object"]["metadata"]["resourceVersion"], "102");
}

#[tokio::test]
async fn a_watch_that_comes_back_after_the_cut_is_told_the_truth_too() {
    let (cluster, kubelet) = cut_off().await;
    patch_a(&kubelet).await;
    cluster.reconnect().await;
    let mut watch = cluster.kubelet().watch(&watch_from(101)).await;
    assert_eq!(next_phase(&mut watch).await, modified_a(Value::Null));
}

#[tokio::test]
async fn a_mirror_pod_is_made_once_and_deleted_once() {
    let (cluster, kubelet) = cut_off().await;
    let mut watch = kubelet.watch(&watch_from(101)).await;
    let (status, made) = kubelet.write("POST", PODS, MIRROR).await;
    assert_eq!(status, 201, "{made}");
    let uid = parse(&made)["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(uid.len(), 36, "{uid}");
    assert_eq!(watch.next().await.as_deref(), Some("ADDED m"));
    let (status, refusal) = kubelet.write("POST", PODS, MIRROR).await;
    assert_eq!(
        (status, &parse(&refusal)["reason"]),
        (409, &json!("AlreadyExists"))
    );
    let made = kubelet.get_json(&format!("{PODS}/m")).await;
    assert_eq!(made["metadata"]["uid"], json!(uid));
    assert_eq!(made["metadata"]["namespace"], "default");
    let path = format!("{PODS}/m");
    let foreign = r#"{"preconditions":{"uid":"other"}}"#;
    assert_eq!(kubelet.write("DELETE", &path, foreign).await.0, 409);
    assert_eq!(kubelet.write("DELETE", &path, "").await.0, 200);
    assert_eq!(watch.next().await.as_deref(), Some("DELETED m"));
    assert_eq!(kubelet.get(&path).await.0, 404);
    assert_eq!(kubelet.write("DELETE", &path, "").await.0, 404);
    let (status, _) = kubelet.write("POST", PODS, MIRROR).await;
    assert_eq!(status, 201, "it may be made again");
    assert_eq!(watch.next().await.as_deref(), Some("ADDED m"));
    cluster.reconnect().await;
    let gone = watch.next().await;
    assert_eq!(
        gone.as_deref(),
        Some("DELETED m"),
        "the API server has none"
    );
}

#[tokio::test]
async fn what_nobody_sends_again_is_refused() {
    let (_cluster, kubelet) = cut_off().await;
    let plain = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"}}"#;
    assert_eq!(kubelet.write("POST", PODS, plain).await.0, 503);
    assert_eq!(
        kubelet.write("DELETE", &format!("{PODS}/a"), "").await.0,
        503
    );
    for dry_run in ["dryRun=All", "%64ryRun=%41ll", "timeout=10s&dryRun"] {
        let rehearsal = format!("{PODS}/a/status?{dry_run}");
        let (status, _) = kubelet.write("PATCH", &rehearsal, PATCH).await;
        assert_eq!(status, 503, "{dry_run}");
    }
    let unknown = format!("{PODS}/none/status");
    assert_eq!(
        kubelet.write("PATCH", &unknown, PATCH).await.0,
        404,
        "proven"
    );
    let foreign = r#"{"metadata":{"uid":"other"},"status":{}}"#;
    let (status, refusal) = kubelet
        .write("PATCH", &format!("{PODS}/a/status"), foreign)
        .await;
    assert_eq!(
        (status, &parse(&refusal)["reason"]),
        (409, &json!("Conflict"))
    );
}

#[tokio::test]
async fn events_wait_for_the_link_on_the_disk_and_are_sent_with_their_times() {
    const EVENTS: &str = "/api/v1/namespaces/default/events";
    let (cluster, kubelet) = cut_off().await;
    let event = r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"e"},"involvedObject":{"name":"a"},"reason":"Pulled","count":1,"firstTimestamp":"2026-01-02T03:04:05Z"}"#;
    let (status, told) = kubelet.write("POST", EVENTS, event).await;
    assert_eq!((status, parse(&told)), (201, parse(event)));
    let again = event
        .replace("\"e\"", "\"e2\"")
        .replace("03:04:05", "13:14:15");
    let again = kubelet.send("POST", EVENTS, full(again)).await;
    assert_eq!(again.status(), 201);
    let (status, told) = kubelet
        .write("PATCH", &format!("{EVENTS}/x"), r#"{"count":3}"#)
        .await;
    assert_eq!((status, &parse(&told)["count"]), (200, &json!(3)));
    let cluster = cluster.restart().await;
    cluster.reconnect().await;
    let mut sent = cluster.api.shared.events.subscribe();
    let sent = sent.wait_for(|events| !events.is_empty());
    let sent = tokio::time::timeout(DEADLINE, sent).await.unwrap().unwrap();
    assert_eq!(sent[0]["metadata"]["name"], "e2");
    assert_eq!(sent[0]["count"], 2);
    assert_eq!(sent[0]["firstTimestamp"], "2026-01-02T03:04:05Z");
}

#[tokio::test]
async fn an_event_that_is_refused_while_an_api_server_starts_is_sent_again() {
    const JSON: &str = "application/json";
    const EVENTS: &str = "/api/v1/namespaces/default/events";
    const ENDING: &str = "/api/v1/namespaces/ending/events";
    let (cluster, kubelet) = cut_off().await;
    let event = r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"e"},"involvedObject":{"name":"a"},"reason":"Pulled","count":1}"#;
    let ends = r#"{"details":{"causes":[{"reason":"NamespaceTerminating"}]},"code":403}"#;
    say(&cluster, ENDING, Said::new(403, JSON, ends));
    say(&cluster, EVENTS, Said::new(403, JSON, r#"{"code":403}"#));
    for path in [ENDING, EVENTS] {
        assert_eq!(kubelet.write("POST", path, event).await.0, 201);
    }
    cluster.reconnect().await;
    cluster.is_asked(EVENTS, 0).await;
    say_nothing(&cluster);
    let mut sent = cluster.api.shared.events.subscribe();
    let sent = sent.wait_for(|events| !events.is_empty());
    let sent = tokio::time::timeout(DEADLINE, sent).await.unwrap().unwrap();
    assert_eq!(sent.len(), 1, "that of a namespace that ends is lost");
}

#[tokio::test]
async fn kubelet_gets_json_for_its_patch_though_it_likes_protobuf_better() {
    let (_cluster, kubelet) = cut_off().await;
    let answer = kubelet
        .send_as(
            "application/strategic-merge-patch+json",
            "application/vnd.kubernetes.protobuf,application/json",
            "PATCH",
            &format!("{PODS}/a/status"),
            full(PATCH),
        )
        .await;
    assert_eq!(answer.headers()["content-type"], "application/json");
    let (status, pod) = whole(answer).await;
    assert_eq!(
        (status, &parse(&pod)["status"]["phase"]),
        (200, &json!("Failed"))
    );
}

#[tokio::test]
async fn without_a_link_kubelet_renews_its_lease_which_the_disk_does_not_notice() {
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
    let (cluster, kubelet) = cut_off().await;
    let lease = r#"{"kind":"Lease","metadata":{"name":"n","resourceVersion":"7"},"spec":{"holderIdentity":"n"}}"#;
    let (status, renewed) = kubelet.write("PUT", LEASE, lease).await;
    assert_eq!(status, 200);
    let renewed = parse(&renewed);
    assert_eq!(renewed["spec"], parse(lease)["spec"]);
    assert_eq!(renewed["metadata"]["resourceVersion"], "7");
    assert_eq!(cluster.hub.memory.lock().cache.overlaid_objects(), 1);
    let cluster = cluster.restart().await;
    assert_eq!(cluster.hub.memory.lock().cache.overlaid_objects(), 0);
}

#[tokio::test]
async fn without_a_link_kubelet_gets_the_last_real_token() {
    let cluster = with_listed_pods().await;
    let kubelet = cluster.kubelet();
    let (status, live) = kubelet.write("POST", TOKEN, r#"{"spec":{}}"#).await;
    assert_eq!(status, 201);
    cluster.cut().await;
    let (status, replayed) = kubelet.write("POST", TOKEN, r#"{"spec":{}}"#).await;
    assert_eq!(status, 201);
    let live = parse(&live);
    let replayed = parse(&replayed);
    assert_eq!(replayed["status"]["token"], live["status"]["token"]);
    let expires = replayed["status"]["expirationTimestamp"].as_str().unwrap();
    assert!(humantime::parse_rfc3339(expires).unwrap() > std::time::SystemTime::now());
    let another = kubelet.write("POST", TOKEN, r#"{"spec":{"audiences":["x"]}}"#);
    assert_eq!(another.await.0, 503, "no token is made here");
}
