//! The power is cut at each moment of a node's first minutes: whenever the hub has said that the node
//! survives a reboot, the next hub answers all that kubelet then needs, without a link.
//!
//! A cut within one write is the store's: its file is the state before or after it
//! (`store/power_cut_tests.rs`).

use std::sync::Arc;

use tempfile::TempDir;
use tokio::time::{Duration, sleep, timeout};

use super::{DEADLINE, TestCluster};

const PODS: &str = "/api/v1/namespaces/shop/pods";
const SECRET: &str = "/api/v1/namespaces/shop/secrets/key";
const TOKEN: &str = "/api/v1/namespaces/shop/serviceaccounts/cart/token";
/// Needs nothing but itself.
const PLAIN: &str = r#"{"metadata":{"name":"a","namespace":"shop","resourceVersion":"50"},"spec":{"automountServiceAccountToken":false}}"#;
/// Comes later.
const NEEDY: &str = r#"{"metadata":{"name":"b","namespace":"shop","resourceVersion":"51"},"spec":{"serviceAccountName":"cart","volumes":[{"secret":{"secretName":"key"}},{"projected":{"sources":[{"serviceAccountToken":{}}]}}]}}"#;

/// The disk when the power was cut.
struct Cut {
    after: String,
    survives: bool,
    state: Arc<TempDir>,
}

impl Cut {
    /// `survives` is asked first: what is said must be true from then on.
    fn now(cluster: &TestCluster, after: &str) -> Self {
        let survives = survives(cluster);
        let state = tempfile::tempdir().unwrap();
        for entry in cluster.state.path().read_dir().unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), state.path().join(entry.file_name())).unwrap();
            }
        }
        Self {
            after: after.to_owned(),
            survives,
            state: Arc::new(state),
        }
    }
}

fn survives(cluster: &TestCluster) -> bool {
    let disk = cluster.disk.borrow().clone();
    cluster.hub.memory.missing_after_reboot(&disk).is_empty()
}

/// Cuts before and after the write of what the hub has just learnt.
async fn cuts(cluster: &TestCluster, after: &str, cuts: &mut Vec<Cut>) {
    // What was written last is still what is on the disk.
    if let Some(last) = cuts.last() {
        cuts.push(Cut {
            after: format!("{after}, not written"),
            survives: survives(cluster),
            state: last.state.clone(),
        });
    }
    let mut disk = cluster.disk.clone();
    disk.borrow_and_update();
    cluster.hub.memory.write_soon();
    timeout(DEADLINE, disk.changed()).await.unwrap().unwrap();
    cuts.push(Cut::now(cluster, after));
}

#[tokio::test]
async fn whenever_a_node_survives_a_reboot_kubelet_is_answered_after_it() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let kubelet = cluster.kubelet();
    let mut all = Vec::new();
    *cluster.api.shared.pods_of_shop.lock() = PLAIN.to_owned();
    for path in ["/api/v1/nodes", "/api/v1/services", PODS] {
        assert_eq!(kubelet.get(path).await.0, 200);
        cuts(&cluster, path, &mut all).await;
    }
    settle(&cluster, &mut all).await;
    *cluster.api.shared.pods_of_shop.lock() = format!("{PLAIN},{NEEDY}");
    for path in [PODS, SECRET] {
        assert_eq!(kubelet.get(path).await.0, 200);
        cuts(&cluster, path, &mut all).await;
    }
    assert_eq!(kubelet.write("POST", TOKEN, "{}").await.0, 201);
    cuts(&cluster, TOKEN, &mut all).await;
    settle(&cluster, &mut all).await;
    let surviving = all.iter().filter(|cut| cut.survives).count();
    assert!(surviving >= 2 && surviving < all.len(), "{surviving}");

    let TestCluster {
        mut api, mut tasks, ..
    } = cluster;
    tasks.shutdown().await;
    for cut in all.into_iter().filter(|cut| cut.survives) {
        api = claim_that_kubelet_is_answered(cut, api).await;
    }
}

/// Until the hub says that the node survives: its copies are made while answers are read.
async fn settle(cluster: &TestCluster, all: &mut Vec<Cut>) {
    let settled = async {
        while !survives(cluster) {
            cluster.hub.memory.write_soon();
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, settled).await.unwrap();
    all.push(Cut::now(cluster, "the node survives"));
}

async fn claim_that_kubelet_is_answered(cut: Cut, api: Arc<super::FakeApi>) -> Arc<super::FakeApi> {
    let Cut { after, state, .. } = cut;
    api.reconnect();
    let cluster = TestCluster::start_with(api, state).await;
    cluster.cut().await;
    let kubelet = cluster.kubelet();
    for path in ["/api/v1/nodes", "/api/v1/services"] {
        assert_eq!(kubelet.get(path).await.0, 200, "{path} after {after}");
    }
    let pods = kubelet.get_json(PODS).await;
    let pods = pods["items"].as_array().unwrap();
    assert!(!pods.is_empty(), "pods after {after}");
    if pods.len() > 1 {
        assert_eq!(kubelet.get(SECRET).await.0, 200, "secret after {after}");
        let token = kubelet.write("POST", TOKEN, "{}").await.0;
        assert_eq!(token, 201, "token after {after}");
    }
    let TestCluster { api, mut tasks, .. } = cluster;
    tasks.shutdown().await;
    api
}
