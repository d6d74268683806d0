//! Discovery and version without a link.

use tokio::time::{Duration, sleep, timeout};

use super::fake_api::AGGREGATED;
use super::tests::APP;
use super::{DEADLINE, TestCluster};
use crate::upstream::empty;

/// Until the copies of answers, which come after them, are in the memory.
async fn remembered(cluster: &TestCluster, documents: usize) {
    let all = async {
        while cluster.hub.memory.lock().cache.documents.len() < documents {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, all).await.unwrap();
}

#[tokio::test]
async fn without_a_link_discovery_is_what_each_client_was_given() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let new_client = || cluster.kubelet().accepting(AGGREGATED);
    let old = cluster.kubelet().get("/apis?timeout=32s").await;
    let new = new_client().get("/apis").await;
    assert_ne!(old, new);
    remembered(&cluster, 2).await;
    cluster.cut().await;
    assert_eq!(cluster.kubelet().get("/apis").await, old);
    assert_eq!(new_client().get("/apis?timeout=1s").await, new);
    let answer = new_client().send("GET", "/apis", empty()).await;
    assert_eq!(answer.headers()["content-type"], AGGREGATED);
    let local = answer.headers()["culvert-hub"].to_str().unwrap();
    assert!(local.starts_with("local; age="), "{local}");
    assert_eq!(
        cluster.kubelet().get("/apis/apps").await.0,
        503,
        "not known"
    );
}

#[tokio::test]
async fn a_group_that_the_api_server_has_not_is_404_without_a_link_too() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let live = cluster.kubelet().get("/apis/discovery.k8s.io/v1").await;
    assert_eq!(live.0, 404);
    remembered(&cluster, 1).await;
    cluster.cut().await;
    let offline = cluster.kubelet().get("/apis/discovery.k8s.io/v1").await;
    assert_eq!(offline, live);
}

#[tokio::test]
async fn after_a_restart_without_a_link_documents_and_their_readers_are_the_same() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let live = cluster.kubelet().get("/apis").await;
    remembered(&cluster, 1).await;
    cluster.cut().await;
    let cluster = cluster.restart().await;
    assert_eq!(cluster.kubelet().get("/apis").await, live);
    let app = cluster.stranger().with_token(APP);
    assert_eq!(app.get("/apis").await.0, 503, "it never asked");
}

#[tokio::test]
async fn a_pod_starts_with_the_version_that_it_was_told_and_a_revoked_token_is_told_nothing() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let app = cluster.stranger().with_token(APP);
    let live = app.get("/version").await;
    assert_eq!(live.0, 200);
    let revoked = cluster.stranger().with_token("revoked");
    assert_eq!(revoked.get("/version").await.0, 401);
    remembered(&cluster, 1).await;
    cluster.cut().await;
    assert_eq!(app.get("/version").await, live);
    assert_eq!(revoked.get("/version").await.0, 503);
}

#[tokio::test]
async fn without_a_credential_there_is_the_version_and_no_other_document() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let live = cluster.stranger().get("/version").await;
    assert_eq!(live.0, 200);
    assert_eq!(cluster.stranger().get("/apis").await.0, 401);
    assert_eq!(cluster.kubelet().get("/apis").await.0, 200);
    remembered(&cluster, 2).await;
    cluster.cut().await;
    assert_eq!(cluster.stranger().get("/version").await, live);
    assert_eq!(cluster.stranger().get("/apis").await.0, 401);
}

#[tokio::test]
async fn a_client_with_a_document_of_its_own_fills_the_memory_too() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let conditional = || cluster.kubelet().with_etag("\"1\"");
    let first = conditional().get("/version").await;
    assert_eq!(first.0, 200, "the hub has it not yet");
    remembered(&cluster, 1).await;
    assert_eq!(conditional().get("/version").await.0, 304);
    cluster.cut().await;
    assert_eq!(cluster.kubelet().get("/version").await, first);
}
