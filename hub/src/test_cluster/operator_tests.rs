//! What operators are told: who would answer a request, and whether the node would survive a reboot.

use tokio::time::{Duration, sleep, timeout};

use super::tests::{APP, PODS, remembered, with_listed_pods};
use super::{DEADLINE, TestCluster};
use crate::explain::{Question, explain};
use crate::memory::DiskStatus;
use crate::refill::{Waiting, refill_once};
use crate::request::percent::encode;

fn explained(cluster: &TestCluster, path: &str, identity: &str) -> Vec<String> {
    let query = format!("method=get&path={}&as={}", encode(path), encode(identity));
    explain(&cluster.hub, &Question::from_query(&query).unwrap())
}

#[tokio::test]
async fn explain_says_what_a_cut_would_show() {
    let cluster = with_listed_pods().await;
    assert_eq!(cluster.pod(APP).get(PODS).await.0, 200);
    let paths = [
        PODS,
        &format!("{PODS}/a"),
        &format!("{PODS}/none"),
        "/api/v1/nodes",
    ];
    let told: Vec<_> = paths
        .iter()
        .flat_map(|path| {
            ["node", "sa:default/app", "sa:default/other"].map(|identity| {
                let lines = explained(&cluster, path, identity);
                assert!(lines[1].starts_with("now: the API server"), "{lines:?}");
                let line = lines
                    .iter()
                    .find_map(|it| it.strip_prefix("without a link, in JSON: "));
                line.unwrap()[..3].parse::<u16>().unwrap()
            })
        })
        .collect();
    assert_eq!(
        told,
        [200, 200, 503, 200, 200, 503, 404, 404, 503, 503, 503, 503]
    );
    cluster.cut().await;
    let kubelet = cluster.kubelet();
    let app = cluster.pod(APP);
    for (path, told) in paths.iter().zip(told.chunks(3)) {
        assert_eq!(kubelet.get(path).await.0, told[0]);
        assert_eq!(app.get(path).await.0, told[1]);
    }
    let lines = explained(&cluster, PODS, "node");
    assert!(lines[1].starts_with("now: there is no link"), "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("grant: list all in default: allowed"))
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains("version 101, 2 objects"))
    );
}

#[test]
fn what_is_no_request_is_not_explained() {
    for query in [
        "",
        "method=GET&path=pods&as=node",
        "method=GET&path=/api&as=root",
        "method=a b&path=/&as=node",
    ] {
        Question::from_query(query).unwrap_err();
    }
}

#[tokio::test]
async fn a_node_survives_a_reboot_if_what_its_pods_name_is_remembered() {
    const NEEDY: &str = r#"{"metadata":{"name":"a","namespace":"shop","resourceVersion":"50"},"spec":{"serviceAccountName":"cart","volumes":[{"secret":{"secretName":"key"}},{"projected":{"sources":[{"serviceAccountToken":{}}]}}]}}"#;
    const TOKEN: &str = "/api/v1/namespaces/shop/serviceaccounts/cart/token";
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    *cluster.api.shared.pods_of_shop.lock() = NEEDY.to_owned();
    let missing = || {
        let disk = cluster.disk.borrow().clone();
        cluster.hub.memory.missing_after_reboot(&disk)
    };
    let become_missing = async |expected: &[&str]| {
        let become_so = async {
            while missing() != expected {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let became = timeout(DEADLINE, become_so).await;
        assert!(became.is_ok(), "{:?} is not {expected:?}", missing());
    };
    assert!(
        missing().len() > 3,
        "nodes, pods and services are not read yet"
    );
    let kubelet = cluster.kubelet();
    for path in [
        "/api/v1/nodes",
        "/api/v1/services",
        "/api/v1/namespaces/shop/pods",
    ] {
        assert_eq!(kubelet.get(path).await.0, 200);
    }
    remembered(&cluster, 3).await;
    assert!(missing().len() > 2, "that is not on the disk yet");
    // What another identity has read does not help kubelet.
    cluster
        .pod(APP)
        .get("/api/v1/namespaces/shop/secrets/key")
        .await;
    let all = [
        "a token of shop/cart is missing",
        "secrets shop/key is missing",
    ];
    become_missing(&all).await;
    kubelet.get("/api/v1/namespaces/shop/secrets/key").await;
    become_missing(&all[..1]).await;
    assert_eq!(kubelet.write("POST", TOKEN, "{}").await.0, 201);
    become_missing(&[]).await;
    let full = DiskStatus {
        last_error: Some("no space".to_owned()),
        ..cluster.disk.borrow().clone()
    };
    let missing = cluster.hub.memory.missing_after_reboot(&full);
    assert_eq!(missing, ["the disk cannot be written: no space"]);
    // A client that believed that may lose power at once.
    let cluster = cluster.kill_and_start().await;
    assert!(cluster.disk.borrow().on_disk.is_some());
    cluster.cut().await;
    let kubelet = cluster.kubelet();
    assert_eq!(kubelet.get("/api/v1/namespaces/shop/pods").await.0, 200);
    assert_eq!(
        kubelet.get("/api/v1/namespaces/shop/secrets/key").await.0,
        200
    );
}

#[tokio::test]
async fn what_kubelet_has_read_before_install_the_hub_reads_itself() {
    const CLAIM: &str = "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaims/gpu";
    const NEEDY: &str = r#"{"metadata":{"name":"a","namespace":"shop","resourceVersion":"50"},"spec":{"resourceClaims":[{"name":"gpu","resourceClaimName":"gpu"}],"volumes":[{"secret":{"secretName":"key"}}]}}"#;
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    *cluster.api.shared.pods_of_shop.lock() = NEEDY.to_owned();
    let kubelet = cluster.kubelet();
    for path in [
        "/api/v1/nodes",
        "/api/v1/services",
        "/api/v1/namespaces/shop/pods",
    ] {
        assert_eq!(kubelet.get(path).await.0, 200);
    }
    remembered(&cluster, 3).await;
    // The secret, and the claim in three versions.
    assert_eq!(cluster.hub.memory.missing_objects().len(), 4);
    let mut waiting = Waiting::default();
    refill_once(&cluster.hub, &mut waiting).await;
    assert_eq!(
        cluster.hub.memory.missing_objects().len(),
        4,
        "kubelet may still read it"
    );
    refill_once(&cluster.hub, &mut waiting).await;
    let become_known = async {
        while !cluster.hub.memory.missing_objects().is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, become_known).await.unwrap();
    cluster.cut().await;
    assert_eq!(kubelet.get(CLAIM).await.0, 200);
}

#[tokio::test]
async fn what_a_damaged_database_has_lost_comes_from_the_rescue_file() {
    const PODS: &str = "/api/v1/namespaces/shop/pods";
    const TOKEN: &str = "/api/v1/namespaces/shop/serviceaccounts/cart/token";
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let kubelet = cluster.kubelet();
    for path in ["/api/v1/nodes", "/api/v1/services", PODS] {
        assert_eq!(kubelet.get(path).await.0, 200);
    }
    assert_eq!(kubelet.write("POST", TOKEN, "{}").await.0, 201);
    let rescued = async {
        while !cluster.state.path().join("rescue.0").exists() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, rescued).await.unwrap();
    let cluster = cluster
        .restart_after(|state| std::fs::write(state.join("cache.redb"), b"rotten").unwrap())
        .await;
    cluster.cut().await;
    let kubelet = cluster.kubelet();
    assert_eq!(kubelet.get(PODS).await.0, 200);
    assert_eq!(kubelet.write("POST", TOKEN, "{}").await.0, 201);
}
