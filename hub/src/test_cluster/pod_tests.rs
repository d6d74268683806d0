//! What pods see, with a link and without, and what kubelet sees so that they come here. The
//! certificate of the node and the tokens of pods never meet.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::upstream::empty;

use super::TestCluster;
use super::tests::{APP, PODS, remembered, watch_from, with_listed_pods};

const SECRET: &str = "/api/v1/namespaces/shop/secrets/key";
const SERVICES: &str = "/api/v1/services";
const ROOT_CA: &str = "/api/v1/namespaces/shop/configmaps/kube-root-ca.crt";

#[tokio::test]
async fn a_pod_sees_without_a_link_what_it_saw_with_it_and_nothing_else() {
    let cluster = with_listed_pods().await;
    assert_eq!(cluster.kubelet().get(SECRET).await.0, 200);
    remembered(&cluster, 2).await;
    let app = cluster.pod(APP);
    assert_eq!(app.get(PODS).await.0, 200);
    assert_eq!(app.get(SECRET).await.0, 403);
    cluster.cut().await;
    assert_eq!(cluster.kubelet().get(SECRET).await.0, 200);
    assert_eq!(app.get(PODS).await.0, 200);
    assert_eq!(app.get(&format!("{PODS}/a")).await.0, 200, "it was listed");
    assert_eq!(
        app.get(SECRET).await.0,
        503,
        "the node's secret is not its own"
    );
    let watch = app.send("GET", &watch_from(101), empty()).await;
    assert_eq!(watch.status(), 503, "it never watched");
    assert_eq!(cluster.pod("new").get(PODS).await.0, 503, "nobody knows it");
}

#[tokio::test]
async fn without_a_token_every_port_says_401_and_a_certificate_is_not_asked_for_by_pod_ports() {
    let cluster = with_listed_pods().await;
    let node = Some(cluster.kubelet_identity());
    for client in [
        cluster.stranger(),
        cluster.client_of(&cluster.pod_address, None),
        cluster.client_of(&cluster.pod_address, node),
    ] {
        assert_eq!(client.get(PODS).await.0, 401);
        assert_eq!(client.get("/livez").await.0, 200);
    }
    assert_eq!(cluster.pod("revoked").get(PODS).await.0, 401);
}

#[tokio::test]
async fn a_token_never_travels_with_the_nodes_certificate_nor_the_reverse() {
    let cluster = with_listed_pods().await;
    cluster
        .api
        .shared
        .owners
        .lock()
        .insert("t", "system:serviceaccount:default:app");
    cluster.pod("t").get(PODS).await;
    // At the API server too, a certificate goes before a token.
    cluster.kubelet().with_token("t").get(PODS).await;
    cluster.kubelet().get(PODS).await;
    cluster.stranger().with_token("t").get(PODS).await;
    let asked = cluster.api.shared.asked.lock().clone();
    let with_both = asked
        .iter()
        .find(|(_, is_node, token)| *is_node == token.is_some());
    assert_eq!(with_both.filter(|it| it.0 != "/version"), None, "{asked:?}");
    let reviews = asked
        .iter()
        .filter(|(path, ..)| path.ends_with("/tokenreviews"));
    assert_eq!(reviews.count(), 1, "each token is reviewed once");
}

#[tokio::test]
async fn an_identity_is_what_the_api_server_says_and_not_what_a_token_names() {
    let cluster = with_listed_pods().await;
    // It names `default/app`, and is another pod's.
    cluster.api.shared.owners.lock().insert(APP, "guest");
    assert_eq!(cluster.pod(APP).get(SECRET).await.0, 403);
    let owner = "system:serviceaccount:default:app";
    cluster.api.shared.owners.lock().insert("real", owner);
    assert_eq!(cluster.pod("real").get(PODS).await.0, 200);
    cluster.cut().await;
    assert_eq!(cluster.pod("real").get(PODS).await.0, 200);
    assert_eq!(cluster.pod(APP).get(PODS).await.0, 503);
}

#[tokio::test]
async fn another_token_of_the_same_account_sees_the_same() {
    let cluster = with_listed_pods().await;
    let owner = "system:serviceaccount:default:app";
    for token in ["old", "renewed"] {
        cluster.api.shared.owners.lock().insert(token, owner);
    }
    assert_eq!(cluster.pod("old").get(PODS).await.0, 200);
    // It asks for something else, which tells whose it is.
    cluster.pod("renewed").get("/api/v1/nodes").await;
    cluster.cut().await;
    let cluster = cluster.restart().await;
    assert_eq!(cluster.pod("renewed").get(PODS).await.0, 200);
}

#[tokio::test]
async fn kubelet_sees_the_pod_port_as_the_service_and_its_authority_with_a_link_and_without() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let kubelet = cluster.kubelet();
    let pods: SocketAddr = cluster
        .pod_address
        .strip_prefix("https://")
        .unwrap()
        .parse()
        .unwrap();
    let leads_here = |service: &serde_json::Value| {
        let address = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
        let port = service["spec"]["ports"][0]["port"].as_u64().unwrap();
        assert_eq!((address, port), (pods.ip().to_string(), pods.port().into()));
    };
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let mut watch = kubelet
        .watch("/api/v1/services?watch=true&resourceVersion=50")
        .await;
    leads_here(&watch.next_event().await.unwrap()["object"]);
    for sets in [2, 3] {
        let (status, list) = kubelet.get(SERVICES).await;
        assert_eq!(status, 200);
        leads_here(&parse(&list)["items"][0]);
        let (_, service) = kubelet
            .get("/api/v1/namespaces/default/services/kubernetes")
            .await;
        leads_here(&parse(&service));
        let (_, root_ca) = kubelet.get(ROOT_CA).await;
        let root_ca = parse(&root_ca)["data"]["ca.crt"]
            .as_str()
            .unwrap()
            .to_owned();
        let authority = root_ca.strip_prefix("of the cluster\n").unwrap();
        assert!(authority.starts_with("-----BEGIN CERTIFICATE-----"));
        if sets == 2 {
            remembered(&cluster, 3).await;
            cluster.cut().await;
        }
    }
}

#[tokio::test]
async fn only_kubelet_is_led_to_the_pod_port() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let (_, list) = cluster.pod(APP).get(SERVICES).await;
    assert!(list.contains("10.96.0.1"), "{list}");
}

#[tokio::test]
async fn one_pod_cannot_take_all_connections() {
    let cluster = TestCluster::start().await;
    let address = cluster.pod_address.strip_prefix("https://").unwrap();
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    let mut next = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut byte = [0];
    let ended = tokio::io::AsyncReadExt::read(&mut next, &mut byte);
    let ended = tokio::time::timeout(super::DEADLINE, ended).await.unwrap();
    assert!(
        ended.is_err() || ended.unwrap() == 0,
        "it is closed at once"
    );
}

/// TLS connections of a pod with this address, which say nothing more.
async fn idle_connections(cluster: &TestCluster, source: Ipv4Addr) -> Vec<TlsStream<TcpStream>> {
    let address = cluster.pod_address.strip_prefix("https://").unwrap();
    let mut tls = cluster.tls(None);
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let tls = TlsConnector::from(Arc::new(tls));
    let mut idle = Vec::new();
    for _ in 0..64 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((source, 0))).unwrap();
        let stream = socket.connect(address.parse().unwrap()).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        idle.push(tls.connect(name, stream).await.unwrap());
    }
    idle
}

#[tokio::test]
async fn connections_without_a_token_from_many_pods_keep_no_other_pod_out() {
    let cluster = with_listed_pods().await;
    culvert_daemon::raise_open_file_limit();
    let mut idle = Vec::new();
    for last in 1..=16 {
        idle.extend(idle_connections(&cluster, Ipv4Addr::new(127, 0, 1, last)).await);
    }
    let app = timeout(super::DEADLINE, cluster.pod(APP).get(PODS)).await;
    assert_eq!(app.expect("an answer in time").0, 200);
    drop(idle);
}

#[tokio::test]
async fn a_question_of_an_unusual_form_changes_nobodys_list() {
    let cluster = with_listed_pods().await;
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let live = parse(&cluster.kubelet().get(PODS).await.1);
    let app = cluster.pod(APP);
    cluster.api.happens("DELETED", "a");
    for query in ["shardSelector=0%2F2", "fieldSelector=metadata.name%3D%FF"] {
        assert_eq!(app.get(&format!("{PODS}?{query}")).await.0, 200);
    }
    let head = app.send("HEAD", PODS, empty()).await;
    assert_eq!(head.status(), 200);
    cluster.cut().await;
    let kubelet = cluster.kubelet();
    assert_eq!(parse(&kubelet.get(PODS).await.1), live);
    let head = kubelet.send("HEAD", PODS, empty()).await;
    assert_eq!(super::whole(head).await, (503, String::new()));
}
