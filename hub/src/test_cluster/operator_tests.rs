//! What operators are told: who would answer a request, and whether the node would survive a reboot.

use super::TestCluster;
use super::tests::{APP, PODS, remembered, with_listed_pods};
use crate::explain::{Question, explain};
use crate::memory::DiskStatus;
use crate::reboot;
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
    let (kubelet, app) = (cluster.kubelet(), cluster.pod(APP));
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
    *cluster.api.shared.pods_of_shop.lock().unwrap() = NEEDY.to_owned();
    let disk = DiskStatus::default();
    let missing = |disk: &DiskStatus| reboot::missing(&cluster.hub.memory, disk);
    assert_eq!(
        missing(&disk).len(),
        3,
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
    // What another identity has read does not help kubelet.
    cluster
        .pod(APP)
        .get("/api/v1/namespaces/shop/secrets/key")
        .await;
    assert_eq!(
        missing(&disk),
        [
            "a token of shop/cart is missing",
            "secrets shop/key is missing"
        ]
    );
    kubelet.get("/api/v1/namespaces/shop/secrets/key").await;
    remembered(&cluster, 4).await;
    assert_eq!(missing(&disk), ["a token of shop/cart is missing"]);
    assert_eq!(kubelet.write("POST", TOKEN, "{}").await.0, 201);
    assert_eq!(missing(&disk), [""; 0]);
    let full = DiskStatus {
        last_error: Some("no space".to_owned()),
        ..DiskStatus::default()
    };
    assert_eq!(missing(&full), ["the disk cannot be written: no space"]);
}
