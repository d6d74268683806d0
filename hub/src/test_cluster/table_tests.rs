//! Tables, as kubectl asks for them, without a link.

use serde_json::Value;

use super::tests::{PODS, remembered, watch_from, with_listed_pods};
use super::{TestClient, TestCluster};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

/// kubectl with the node's certificate.
fn kubectl(cluster: &TestCluster) -> TestClient {
    cluster.kubelet().accepting(TABLE)
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn what_was_read_as_a_table_is_the_same_table_without_a_link() {
    let cluster = with_listed_pods().await;
    let live_pod = kubectl(&cluster).get(&format!("{PODS}/a")).await;
    let live = kubectl(&cluster).get(&format!("{PODS}?limit=500")).await;
    remembered(&cluster, 3).await;
    cluster.cut().await;
    let cluster = cluster.restart().await;
    let offline = kubectl(&cluster).get(&format!("{PODS}?limit=500")).await;
    assert_eq!((offline.0, parse(&offline.1)), (200, parse(&live.1)));
    assert_eq!(parse(&offline.1)["kind"], "Table");
    let pod = kubectl(&cluster).get(&format!("{PODS}/a")).await;
    assert_eq!((pod.0, parse(&pod.1)), (200, parse(&live_pod.1)));
    let pod = parse(&kubectl(&cluster).get(&format!("{PODS}/b")).await.1);
    assert_eq!(pod["rows"][0]["cells"][0], "b", "it was in the list");
    assert_eq!(pod["columnDefinitions"][0]["name"], "Name");
    assert_eq!(kubectl(&cluster).get(&format!("{PODS}/none")).await.0, 404);
    let objects = cluster.kubelet().get(PODS).await.1;
    assert_eq!(parse(&objects)["kind"], "PodList", "a set of its own");
}

#[tokio::test]
async fn a_table_that_is_read_again_has_the_cells_of_the_last_time() {
    let cluster = with_listed_pods().await;
    let read = async || {
        let table = kubectl(&cluster).get(PODS).await.1;
        parse(&table)["rows"][0]["cells"][1].clone()
    };
    let first = read().await;
    remembered(&cluster, 2).await;
    let second = read().await;
    assert_ne!(first, second, "the same version, and older");
    let offline = async {
        cluster.cut().await;
        read().await
    };
    assert_eq!(offline.await, second);
}

#[tokio::test]
async fn a_watch_of_a_table_outlasts_a_cut_and_keeps_the_table_fresh() {
    let cluster = with_listed_pods().await;
    assert_eq!(kubectl(&cluster).get(PODS).await.0, 200);
    remembered(&cluster, 2).await;
    let mut watch = kubectl(&cluster).watch(&watch_from(101)).await;
    cluster.api.happens("DELETED", "a");
    assert_eq!(watch.next().await.as_deref(), Some("DELETED a"));
    cluster.cut().await;
    let table = parse(&kubectl(&cluster).get(PODS).await.1);
    assert_eq!(table["rows"][0]["cells"][0], "b");
    assert_eq!(table["rows"].as_array().unwrap().len(), 1);
    cluster.api.happens("ADDED", "c");
    cluster.reconnect().await;
    assert_eq!(watch.next().await.as_deref(), Some("ADDED c"));
}

#[tokio::test]
async fn a_table_that_was_never_read_is_the_plain_list_and_so_is_its_watch() {
    let cluster = with_listed_pods().await;
    drop(cluster.kubelet().watch(&watch_from(101)).await);
    cluster.cut().await;
    let (status, list) = kubectl(&cluster).get(PODS).await;
    assert_eq!((status, &parse(&list)["kind"]), (200, &"PodList".into()));
    let (_, pod) = kubectl(&cluster).get(&format!("{PODS}/a")).await;
    assert_eq!(parse(&pod)["kind"], "Pod");
    let mut watch = kubectl(&cluster).watch(&watch_from(101)).await;
    cluster.api.happens("ADDED", "c");
    cluster.reconnect().await;
    assert_eq!(watch.next().await.as_deref(), Some("ADDED c"));
    let list = cluster.kubelet().get(PODS).await.1;
    assert_eq!(parse(&list)["items"].as_array().unwrap().len(), 3);
    let only_tables = cluster
        .kubelet()
        .accepting("application/json;as=Table;v=v1;g=meta.k8s.io");
    cluster.cut().await;
    assert_eq!(only_tables.get(PODS).await.0, 503, "it takes nothing else");
}
