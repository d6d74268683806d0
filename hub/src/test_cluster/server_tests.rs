//! Several API servers, and ones that do not answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep, timeout};

use culvert_daemon::ForwardProxies;

use super::TestCluster;
use super::fake_api::{FakeApi, NODE_TOKEN};
use super::tests::{APP, PODS, watch_from, with_listed_pods};
use crate::kubeconfig::NodeCredential;
use crate::upstream::empty;

/// Until a server that failed is asked again, and has answered often enough.
const RETURN: Duration = Duration::from_secs(60);

/// Another address of an API server; it ends with this.
struct Relay {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Relay {
    async fn start(listen: &str, api: &str) -> Self {
        let listener = TcpListener::bind(listen).await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = api.trim_start_matches("https://").to_owned();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut server = TcpStream::connect(&api).await.unwrap();
                connections.spawn(async move {
                    // Either end may end it.
                    copy_bidirectional(&mut client, &mut server).await.ok();
                });
            }
        });
        Self {
            address,
            _tasks: tasks,
        }
    }
}

async fn cluster_over(first: &SocketAddr, api: FakeApi) -> TestCluster {
    let servers = [format!("https://{first}"), api.address.clone()];
    let state = Arc::new(tempfile::tempdir().unwrap());
    TestCluster::start_over(&servers, api, state, None, ForwardProxies::default()).await
}

#[tokio::test]
async fn a_server_that_takes_connections_and_says_nothing_is_passed_over() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let cluster = cluster_over(&silent.local_addr().unwrap(), FakeApi::start().await).await;
    cluster.link_is(true).await;
    assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
    assert!(cluster.hub.upstream.servers.configured()[0].is_failed());
}

#[tokio::test]
async fn when_the_first_server_fails_the_second_takes_over_and_the_first_gets_new_requests_again() {
    let api = FakeApi::start().await;
    let relay = Relay::start("127.0.0.1:0", &api.address).await;
    let first = relay.address;
    let backend = api.address.clone();
    let cluster = cluster_over(&first, api).await;
    cluster.api.happens("ADDED", "a");
    cluster.link_is(true).await;
    let kubelet = cluster.kubelet();
    assert_eq!(kubelet.get(PODS).await.0, 200);
    let server = &cluster.hub.upstream.servers.configured()[0];
    assert!(!server.is_failed());
    let mut watch = kubelet.watch(&watch_from(100)).await;
    drop(relay);
    cluster.api.happens("ADDED", "b");
    assert_eq!(watch.next().await.as_deref(), Some("ADDED b"));
    assert_eq!(kubelet.get(PODS).await.0, 200);
    assert!(server.is_failed());
    let _relay = Relay::start(&first.to_string(), &backend).await;
    let back = async {
        while server.is_failed() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(RETURN, back).await.unwrap();
    cluster.api.happens("ADDED", "c");
    assert_eq!(watch.next().await.as_deref(), Some("ADDED c"));
    assert_eq!(kubelet.get(PODS).await.0, 200);
}

#[tokio::test]
async fn memory_answers_before_a_client_gives_up_on_an_api_server_that_hangs() {
    let cluster = with_listed_pods().await;
    let kubelet = cluster.kubelet();
    assert_eq!(kubelet.get("/version?timeout=4s").await.0, 200);
    cluster.api.shared.hangs.store(true, Ordering::Relaxed);
    let path = format!("{PODS}?timeout=4s");
    let answer = kubelet.send("GET", &path, empty()).await;
    assert_eq!(answer.status(), 200);
    let local = answer.headers()["culvert-hub"].to_str().unwrap();
    assert!(local.starts_with("local; age="), "{local}");
    let document = kubelet.send("GET", "/version?timeout=4s", empty()).await;
    assert!(document.headers().contains_key("culvert-hub"));
    let watch = format!("{PODS}?watch=true&resourceVersion=100&timeout=4s");
    let watch = kubelet.send("GET", &watch, empty()).await;
    assert!(watch.headers().contains_key("culvert-hub"));
    let path = format!("{PODS}/a/status?timeout=4s");
    let status = r#"{"status":{"phase":"Running"}}"#;
    assert_eq!(kubelet.write("PATCH", &path, status).await.0, 200);
    cluster.api.shared.hangs.store(false, Ordering::Relaxed);
    let answer = kubelet.send("GET", PODS, empty()).await;
    assert!(!answer.headers().contains_key("culvert-hub"));
}

#[tokio::test]
async fn an_authority_that_is_added_to_the_file_is_trusted_and_a_damaged_file_changes_nothing() {
    let api = FakeApi::start().await;
    let other = FakeApi::start().await;
    let state = Arc::new(tempfile::tempdir().unwrap());
    let file = state.path().join("api.crt");
    std::fs::write(&file, &other.serving.pem).unwrap();
    let servers = [api.address.clone()];
    let both = [&other.serving.pem[..], &api.serving.pem[..]].concat();
    let cluster =
        TestCluster::start_over(&servers, api, state, None, ForwardProxies::default()).await;
    let upstream = &cluster.hub.upstream;
    assert!(!upstream.reload_authority().unwrap());
    std::fs::write(&file, both).unwrap();
    assert!(upstream.reload_authority().unwrap());
    cluster.link_is(true).await;
    std::fs::write(&file, "damaged").unwrap();
    assert!(upstream.reload_authority().is_err());
    assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
}

#[tokio::test]
async fn an_api_server_that_speaks_http1_only_has_a_connection_for_each_watch() {
    let api = FakeApi::start_with(&[b"http/1.1"]).await;
    let state = Arc::new(tempfile::tempdir().unwrap());
    let cluster = TestCluster::start_with(api, state).await;
    cluster.link_is(true).await;
    let kubelet = cluster.kubelet();
    let mut watches = Vec::new();
    for _ in 0..80 {
        watches.push(kubelet.watch(&watch_from(100)).await);
    }
    assert_eq!(kubelet.get(PODS).await.0, 200);
    cluster.api.happens("ADDED", "a");
    cluster.api.happens("ADDED", "b");
    for watch in &mut watches {
        assert_eq!(watch.next().await.as_deref(), Some("ADDED b"));
    }
}

#[tokio::test]
async fn a_node_with_a_token_instead_of_a_certificate_is_served() {
    let api = FakeApi::start().await;
    let state = Arc::new(tempfile::tempdir().unwrap());
    let file = state.path().join("token");
    std::fs::write(&file, NODE_TOKEN).unwrap();
    let servers = [api.address.clone()];
    let credential = Some(NodeCredential::TokenFile(file));
    let cluster =
        TestCluster::start_over(&servers, api, state, credential, ForwardProxies::default()).await;
    cluster.link_is(true).await;
    assert_eq!(cluster.kubelet().get("/api/v1/nodes").await.0, 200);
    assert_eq!(cluster.pod(APP).get(PODS).await.0, 200);
    let asked = cluster.api.shared.asked.lock();
    for (path, is_node, token) in &*asked {
        let expected = if path == PODS { APP } else { NODE_TOKEN };
        // The node asks whose the pod's token is.
        assert!(!is_node, "{path}: it has no certificate");
        assert_eq!(token.as_deref(), Some(expected), "{path}");
    }
}

/// A forward proxy that knows one API server under the name `api.test`.
async fn forward_proxy(listener: TcpListener, api: String) {
    let mut relays = JoinSet::new();
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let api = api.clone();
        relays.spawn(async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            assert!(head.starts_with(b"CONNECT api.test:6443 HTTP/1.1\r\n"));
            let mut server = TcpStream::connect(&api).await.unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            copy_bidirectional(&mut client, &mut server).await.ok();
        });
    }
}

#[tokio::test]
async fn an_api_server_behind_a_forward_proxy_is_reached_by_its_name() {
    let api = FakeApi::start().await;
    let state = Arc::new(tempfile::tempdir().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    let target = api.address.trim_start_matches("https://").to_owned();
    tasks.spawn(forward_proxy(listener, target));
    let forward = ForwardProxies::from_environment(|name| {
        (name == "HTTPS_PROXY").then(|| format!("http://{address}"))
    });
    let servers = ["https://api.test:6443".to_owned()];
    let cluster = TestCluster::start_over(&servers, api, state, None, forward.unwrap()).await;
    cluster.link_is(true).await;
    assert_eq!(cluster.kubelet().get("/api/v1/nodes").await.0, 200);
    cluster.cut().await;
    cluster.reconnect().await;
}
