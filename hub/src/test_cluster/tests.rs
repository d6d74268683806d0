//! What clients see of a hub while its link is cut, and after it is back.

use std::sync::atomic::Ordering;

use http::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep, timeout};

use super::{ClientIdentity, DEADLINE, TestCluster};
use crate::upstream::Credential;
use crate::upstream::connector::Protocols;

pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
/// A token of `system:serviceaccount:default:app`.
pub(super) const APP: &str = "e30.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6ZGVmYXVsdDphcHAifQ.c2ln";

pub(super) fn watch_from(version: u64) -> String {
    format!("{PODS}?watch=true&resourceVersion={version}")
}

/// Until the copy of an answer, which comes after it, is in the memory.
pub(super) async fn remembered(cluster: &TestCluster, sets: usize) {
    let all = async {
        let now = cluster.hub.memory.now();
        while cluster.hub.memory.lock().cache.statuses(now).len() < sets {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, all).await.unwrap();
}

/// A cluster with pods `a` and `b` at version 101, and a kubelet that has listed them.
pub(super) async fn with_listed_pods() -> TestCluster {
    let cluster = TestCluster::start().await;
    cluster.api.happens("ADDED", "a");
    cluster.api.happens("ADDED", "b");
    cluster.link_is(true).await;
    let (status, _) = cluster.kubelet().get(PODS).await;
    assert_eq!(status, 200);
    remembered(&cluster, 1).await;
    cluster
}

#[tokio::test]
async fn without_a_link_a_list_is_what_the_api_server_said_and_the_unknown_is_503() {
    let cluster = with_listed_pods().await;
    let live = cluster.kubelet().get(PODS).await;
    cluster.cut().await;
    let kubelet = cluster.kubelet();
    let answer = kubelet.send("GET", PODS, crate::upstream::empty()).await;
    let local = answer.headers()["culvert-hub"].to_str().unwrap().to_owned();
    assert!(local.starts_with("local; age="), "{local}");
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let (_, offline) = super::whole(answer).await;
    assert_eq!(parse(&offline), parse(&live.1));
    let (status, pod) = kubelet.get(&format!("{PODS}/a")).await;
    assert_eq!((status, parse(&pod)["kind"].as_str()), (200, Some("Pod")));
    assert_eq!(kubelet.get(&format!("{PODS}/none")).await.0, 404, "proven");
    assert_eq!(kubelet.get("/api/v1/nodes/n").await.0, 503, "not known");
    assert_eq!(kubelet.get("/api/v1/namespaces/other/pods").await.0, 503);
}

/// A copy gives up if its queue is full, and a client of HTTP/1.1 takes an answer as fast as it comes.
#[tokio::test]
async fn a_list_that_is_longer_than_the_queue_of_its_copy_is_remembered_whole() {
    let path = "/api/v1/namespaces/shop/pods";
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    for protocols in [Protocols::Http1, Protocols::Http2OrHttp1] {
        let cluster = TestCluster::start().await;
        let padding = "x".repeat(4 << 10);
        let pod = |number: u32| {
            let name = format!("pod-{number:03}");
            let note = serde_json::json!({ "note": &padding });
            let metadata = serde_json::json!({
                "name": name, "namespace": "shop", "resourceVersion": "40", "annotations": note,
            });
            serde_json::json!({ "metadata": metadata }).to_string()
        };
        let pods: Vec<String> = (0..500).map(pod).collect();
        *cluster.api.shared.pods_of_shop.lock() = pods.join(",");
        cluster.link_is(true).await;
        let kubelet = cluster.kubelet_over(protocols);
        let (status, live) = kubelet.get(path).await;
        assert_eq!((status, live.len() > 2_000_000), (200, true));
        assert_eq!(cluster.api.shared.compressed.load(Ordering::Relaxed), 1);
        remembered(&cluster, 1).await;
        cluster.cut().await;
        let (status, offline) = kubelet.get(path).await;
        assert_eq!(status, 200, "{protocols:?}: {offline}");
        assert_eq!(parse(&offline)["items"], parse(&live)["items"]);
    }
}

#[tokio::test]
async fn a_cut_does_not_end_a_watch_and_nothing_is_lost_or_told_twice() {
    let cluster = with_listed_pods().await;
    let mut watch = cluster.kubelet().watch(&watch_from(101)).await;
    cluster.api.happens("MODIFIED", "a");
    assert_eq!(watch.next().await.as_deref(), Some("MODIFIED a"));
    cluster.cut().await;
    cluster.api.happens("DELETED", "b");
    cluster.reconnect().await;
    cluster.api.happens("ADDED", "c");
    assert_eq!(watch.next().await.as_deref(), Some("DELETED b"));
    assert_eq!(watch.next().await.as_deref(), Some("ADDED c"));
    let lists = cluster.api.shared.lists.load(Ordering::Relaxed);
    assert_eq!(lists, 1, "watches are resumed without a list");
}

#[tokio::test]
async fn a_watch_that_begins_without_a_link_goes_on_with_it() {
    let cluster = with_listed_pods().await;
    // The API server has let kubelet watch before.
    drop(cluster.kubelet().watch(&watch_from(101)).await);
    cluster.cut().await;
    let mut watch = cluster.kubelet().watch(&watch_from(101)).await;
    cluster.api.happens("MODIFIED", "b");
    cluster.reconnect().await;
    assert_eq!(watch.next().await.as_deref(), Some("MODIFIED b"));
}

#[tokio::test]
async fn a_streaming_list_without_a_link_is_served_whole() {
    let cluster = with_listed_pods().await;
    let path = format!(
        "{PODS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut first = cluster.kubelet().watch(&watch_from(101)).await;
    cluster.api.happens("MODIFIED", "a");
    first.next().await;
    cluster.cut().await;
    let mut watch = cluster.kubelet().watch(&path).await;
    assert_eq!(watch.next().await.as_deref(), Some("ADDED a"));
    assert_eq!(watch.next().await.as_deref(), Some("ADDED b"));
    assert_eq!(watch.next().await.as_deref(), Some("BOOKMARK -"));
}

#[tokio::test]
async fn without_a_link_a_later_version_is_504_and_one_exact_version_is_unknown() {
    let cluster = with_listed_pods().await;
    drop(cluster.kubelet().watch(&watch_from(101)).await);
    cluster.cut().await;
    let kubelet = cluster.kubelet();
    for later in [
        "?resourceVersion=102&resourceVersionMatch=NotOlderThan",
        "?resourceVersion=102",
        "/a?resourceVersion=102",
        "/c?resourceVersion=102",
        "?watch=true&sendInitialEvents=true&resourceVersion=102&resourceVersionMatch=NotOlderThan",
    ] {
        let path = format!("{PODS}{later}");
        let answer = kubelet.send("GET", &path, crate::upstream::empty()).await;
        assert_eq!(answer.headers()["retry-after"], "1", "{later}");
        let (status, body) = super::whole(answer).await;
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (status, &body["reason"]),
            (504, &"Timeout".into()),
            "{later}"
        );
        let cause = &body["details"]["causes"][0]["reason"];
        assert_eq!(cause, "ResourceVersionTooLarge", "{later}");
    }
    for (query, expected) in [
        (
            "?resourceVersion=101&resourceVersionMatch=NotOlderThan",
            200,
        ),
        ("?resourceVersion=0", 200),
        ("/a?resourceVersion=101", 200),
        ("/c?resourceVersion=101", 404),
        ("?resourceVersion=101&resourceVersionMatch=Exact", 503),
        ("?resourceVersion=101&limit=500", 503),
        ("?limit=1", 200),
        ("?resourceVersion=0&resourceVersionMatch=NotOlderThan", 200),
        ("?resourceVersion=0&resourceVersionMatch=Exact", 503),
        ("?resourceVersionMatch=NotOlderThan", 503),
        ("?resourceVersion=-1", 503),
        ("?limit=500&continue=foreign", 410),
    ] {
        let (status, _) = kubelet.get(&format!("{PODS}{query}")).await;
        assert_eq!(status, expected, "{query}");
    }
}

#[tokio::test]
async fn what_the_api_server_has_not_in_protobuf_is_remembered_in_json() {
    let cluster = TestCluster::start().await;
    cluster.api.happens("ADDED", "a");
    cluster.link_is(true).await;
    let accepted = "application/vnd.kubernetes.protobuf,application/json";
    let client = || cluster.kubelet().accepting(accepted);
    assert_eq!(client().get(PODS).await.0, 200);
    remembered(&cluster, 1).await;
    let mut watch = client().watch(&watch_from(100)).await;
    cluster.cut().await;
    let (status, list) = client().get(PODS).await;
    assert!(status == 200 && list.contains("u-a"), "{status} {list}");
    cluster.api.happens("ADDED", "b");
    cluster.reconnect().await;
    assert_eq!(watch.next().await.as_deref(), Some("ADDED b"));
}

#[tokio::test]
async fn a_watch_whose_history_is_forgotten_is_told_the_differences_and_goes_on() {
    let cluster = with_listed_pods().await;
    let mut watch = cluster.kubelet().watch(&watch_from(101)).await;
    cluster.cut().await;
    cluster.api.happens("DELETED", "b");
    cluster.api.happens("ADDED", "c");
    cluster.api.forget_history();
    cluster.reconnect().await;
    assert_eq!(watch.next().await.as_deref(), Some("DELETED b"));
    assert_eq!(watch.next().await.as_deref(), Some("ADDED c"));
    cluster.api.happens("MODIFIED", "a");
    assert_eq!(watch.next().await.as_deref(), Some("MODIFIED a"));
}

#[tokio::test]
async fn a_client_of_whom_nothing_is_known_gets_410_if_the_history_is_forgotten() {
    let cluster = with_listed_pods().await;
    // It is behind the set, which other clients have brought further.
    let mut watch = cluster.kubelet().watch(&watch_from(100)).await;
    assert_eq!(watch.next().await.as_deref(), Some("ADDED b"));
    drop(watch);
    cluster.cut().await;
    let mut watch = cluster.kubelet().watch(&watch_from(100)).await;
    cluster.api.happens("DELETED", "b");
    cluster.api.forget_history();
    cluster.reconnect().await;
    assert_eq!(watch.next().await.as_deref(), Some("ERROR -"));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_stranger_gets_nothing_and_a_pod_only_what_it_was_shown() {
    let cluster = with_listed_pods().await;
    assert_eq!(cluster.stranger().get(PODS).await.0, 401);
    assert_eq!(cluster.stranger().get("/livez").await.0, 200);
    let app = cluster.stranger().with_token(APP);
    assert_eq!(app.get(PODS).await.0, 200);
    cluster.cut().await;
    assert_eq!(app.get(PODS).await.0, 200, "it was shown them");
    let other = cluster.stranger().with_token("unknown");
    assert_eq!(other.get(PODS).await.0, 503, "nobody knows this token");
    assert_eq!(cluster.stranger().get(PODS).await.0, 401);
}

#[tokio::test]
async fn after_a_restart_without_a_link_the_memory_is_the_same() {
    let cluster = with_listed_pods().await;
    let live = cluster.kubelet().get(PODS).await.1;
    cluster.cut().await;
    let cluster = cluster.restart().await;
    let (status, offline) = cluster.kubelet().get(PODS).await;
    assert_eq!(status, 200);
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(parse(&offline), parse(&live));
}

#[tokio::test]
async fn a_node_whose_certificate_is_refused_is_served_from_memory_and_starts_so() {
    let cluster = with_listed_pods().await;
    let live = cluster.kubelet().get(PODS).await.1;
    cluster
        .api
        .shared
        .refuses_node
        .store(true, Ordering::Relaxed);
    let (status, _) = cluster.kubelet().get("/api/v1/nodes/edge-1").await;
    assert_eq!(status, 401, "the link seemed to be up");
    cluster.link_is(false).await;
    let reason = cluster.hub.upstream.link.status(Credential::Node).reason;
    assert!(
        reason.contains("refuses the node's certificate"),
        "{reason}"
    );
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let cluster = cluster.restart().await;
    // Pods have tokens of their own: what they never read before comes from the API server.
    let others = cluster.hub.upstream.link.subscribe(Credential::Bearer);
    timeout(DEADLINE, others.clone().wait_for(|link| link.is_up()))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(cluster.pod(APP).get("/api/v1/services").await.0, 200);
    let token = "/api/v1/namespaces/shop/serviceaccounts/cart/token";
    assert_eq!(cluster.pod(APP).write("POST", token, "{}").await.0, 201);
    let (status, offline) = cluster.kubelet().get(PODS).await;
    assert_eq!((status, parse(&offline)), (200, parse(&live)));
    cluster
        .api
        .shared
        .refuses_node
        .store(false, Ordering::Relaxed);
    cluster.link_is(true).await;
}

/// The answer to kubelet's request for an upgrade, and the tasks of its connection.
pub(super) async fn exec(
    cluster: &TestCluster,
) -> (Response<Incoming>, JoinSet<hyper::Result<()>>) {
    exec_as(cluster, Some(cluster.kubelet_identity()), "").await
}

/// The same with a token, or with a certificate.
pub(super) async fn exec_as(
    cluster: &TestCluster,
    identity: Option<ClientIdentity>,
    token: &str,
) -> (Response<Incoming>, JoinSet<hyper::Result<()>>) {
    let connector = cluster.connector(&cluster.address, identity, Protocols::Http1);
    let stream = connector.connect().await.unwrap();
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { connection.with_upgrades().await });
    let request = http::Request::post(format!("{PODS}/a/exec?command=cat"))
        .header("host", "hub")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("authorization", format!("Bearer {token}"))
        .body(crate::upstream::empty())
        .unwrap();
    // The hub waits for the API server for as long.
    let answer = timeout(2 * DEADLINE, sender.send_request(request)).await;
    let answer = answer.unwrap().unwrap();
    (answer, tasks)
}

#[tokio::test]
async fn an_upgrade_passes_bytes_both_ways() {
    let cluster = with_listed_pods().await;
    let (answer, _tasks) = exec(&cluster).await;
    assert_eq!(answer.status(), 101);
    assert_eq!(answer.headers()["upgrade"], "SPDY/3.1");
    let echo = async {
        let upgraded = hyper::upgrade::on(answer).await.unwrap();
        let mut upgraded = TokioIo::new(upgraded);
        upgraded.write_all(b"there and back").await.unwrap();
        let mut back = [0; 14];
        upgraded.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"there and back");
    };
    timeout(DEADLINE, echo).await.unwrap();
}
