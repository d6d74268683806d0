//! What a hub does when its API server is restored from a backup, or is another one.

use tokio::time::{Duration, sleep, timeout};

use super::tests::{PODS, watch_from, with_listed_pods};
use super::{DEADLINE, TestCluster};
use crate::refill::read_again;
use crate::upstream::Credential;

async fn names(cluster: &TestCluster) -> Vec<String> {
    let list = cluster.kubelet().get_json(PODS).await;
    let items = list["items"].as_array().unwrap().iter();
    let names = items.map(|it| it["metadata"]["name"].as_str().unwrap().to_owned());
    names.collect()
}

#[tokio::test]
async fn an_open_watch_is_told_how_the_restored_cluster_differs() {
    let cluster = with_listed_pods().await;
    cluster.api.happens("ADDED", "c");
    let mut watch = cluster.kubelet().watch(&watch_from(101)).await;
    assert_eq!(watch.next().await.unwrap(), "ADDED c");
    cluster.cut().await;
    cluster.api.restore(1);
    cluster.api.happens("ADDED", "later");
    cluster.reconnect().await;
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(watch.next().await.unwrap());
    }
    assert_eq!(told, ["DELETED b", "DELETED c", "ADDED later"]);
    cluster.api.happens("ADDED", "last");
    assert_eq!(watch.next().await.unwrap(), "ADDED last");
    cluster.cut().await;
    assert_eq!(names(&cluster).await, ["a", "last", "later"]);
}

#[tokio::test]
async fn what_nobody_asks_for_again_is_read_by_the_hub() {
    let cluster = with_listed_pods().await;
    assert_eq!(cluster.kubelet().get(&format!("{PODS}/b")).await.0, 200);
    super::tests::remembered(&cluster, 2).await;
    cluster.cut().await;
    cluster.api.restore(1);
    cluster.reconnect().await;
    let behind = cluster.hub.memory.lock().cache.behind_of_node();
    assert_eq!(behind.len(), 2);
    for scope in behind {
        read_again(&cluster.hub, &scope).await.unwrap();
    }
    let whole = async {
        while !cluster.hub.memory.lock().cache.behind_of_node().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, whole).await.unwrap();
    cluster.cut().await;
    assert_eq!(names(&cluster).await, ["a"]);
    assert_eq!(cluster.kubelet().get(&format!("{PODS}/b")).await.0, 404);
}

#[tokio::test]
async fn an_answer_that_a_watch_has_overtaken_is_no_sign_of_a_restore() {
    let cluster = with_listed_pods().await;
    let mut watch = cluster.kubelet().watch(&watch_from(101)).await;
    let held = &cluster.api.shared.holds_cluster;
    held.send_replace(true);
    // New requests go on new connections, on which the hub asks for the newest version.
    let file = cluster.state.path().join("api.crt");
    std::fs::write(&file, [&cluster.api.serving.pem[..], b"\n"].concat()).unwrap();
    assert!(cluster.hub.upstream.reload_authority().unwrap());
    let asked = async {
        while held.receiver_count() == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, asked).await.unwrap();
    cluster.api.happens("ADDED", "c");
    assert_eq!(watch.next().await.unwrap(), "ADDED c");
    held.send_replace(false);
    assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
    assert_eq!(cluster.hub.memory.lock().cache.restores(), 0);
}

#[tokio::test]
async fn another_cluster_behind_the_address_is_not_believed_and_changes_nothing() {
    let cluster = with_listed_pods().await;
    let watch = cluster.kubelet().watch(&watch_from(101)).await;
    cluster.cut().await;
    *cluster.api.shared.cluster.lock() = "2";
    cluster.api.happens("DELETED", "a");
    cluster.api.reconnect();
    let noticed = async {
        while !cluster.hub.upstream.cluster.is_other() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, noticed).await.unwrap();
    assert!(!cluster.hub.upstream.link.is_up(Credential::Node));
    assert!(!cluster.hub.upstream.link.is_up(Credential::Bearer));
    assert_eq!(names(&cluster).await, ["a", "b"]);
    drop(watch);
    let cluster = cluster.restart().await;
    assert_eq!(
        names(&cluster).await,
        ["a", "b"],
        "it is known over a restart"
    );
    *cluster.api.shared.cluster.lock() = "1";
    cluster.link_is(true).await;
    assert_eq!(names(&cluster).await, ["b"]);
}
