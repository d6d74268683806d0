//! New certificates and new authorities, above all while the link is cut; and clocks that are wrong.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use culvert_daemon::ForwardProxies;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use tokio::time::{Duration, sleep, timeout};

use super::certificates::Serving;
use super::fake_api::FakeApi;
use super::tests::{APP, PODS, remembered, watch_from, with_listed_pods};
use super::{DEADLINE, TestClient, TestCluster, TestWatch, identity};
use crate::authority::IssuedPem;
use crate::kubeconfig::{NodeCredential, PemSource};
use crate::upstream::Credential;
use crate::upstream::connector::Protocols;

const NEVER_READ: &str = "/api/v1/services";

/// A node with its certificate and key in files. Kubelet has listed the pods `a` and `b`, and watches
/// them.
struct Node {
    cluster: TestCluster,
    certificate: PathBuf,
    key: PathBuf,
}

impl Node {
    async fn cut_off() -> (Self, TestWatch) {
        let api = FakeApi::start().await;
        let state = Arc::new(tempfile::tempdir().unwrap());
        let certificate = state.path().join("kubelet.crt");
        let key = state.path().join("kubelet.key");
        std::fs::write(&certificate, &api.node.certificate).unwrap();
        std::fs::write(&key, &api.node.key).unwrap();
        let credential = Some(NodeCredential::Certificate {
            certificate: PemSource::File(certificate.clone()),
            key: PemSource::File(key.clone()),
        });
        let servers = [api.address.clone()];
        let cluster =
            TestCluster::start_over(&servers, api, state, credential, ForwardProxies::default())
                .await;
        cluster.api.happens("ADDED", "a");
        cluster.api.happens("ADDED", "b");
        cluster.link_is(true).await;
        assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
        remembered(&cluster, 1).await;
        let watch = cluster.kubelet().watch(&watch_from(101)).await;
        cluster.cut().await;
        let node = Self {
            cluster,
            certificate,
            key,
        };
        (node, watch)
    }

    /// Kubelet writes a new certificate, and comes with it.
    fn renew(&self) -> (IssuedPem, TestClient) {
        let issued = self.cluster.api.node_authority.issue(2099);
        std::fs::write(&self.certificate, &issued.certificate).unwrap();
        std::fs::write(&self.key, &issued.key).unwrap();
        let kubelet = self.cluster.client(Some(identity(&issued)));
        (issued, kubelet)
    }
}

/// Until people are told this of the link.
async fn link_reason(cluster: &TestCluster, part: &str) {
    let said = async {
        loop {
            let status = cluster.hub.upstream.link.status(Credential::Node);
            if !status.is_up() && status.reason.contains(part) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, said).await.expect(part);
}

async fn others_have_a_link(cluster: &TestCluster) {
    let mut link = cluster.hub.upstream.link.subscribe(Credential::Bearer);
    let up = link.wait_for(|link| link.is_up());
    timeout(DEADLINE, up).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_certificate_that_expires_in_a_cut_is_reported_and_the_next_one_is_used_at_once() {
    let (node, mut watch) = Node::cut_off().await;
    let cluster = &node.cluster;
    cluster.api.shared.year.store(2091, Ordering::Relaxed);
    cluster.api.happens("ADDED", "c");
    cluster.api.reconnect();
    others_have_a_link(cluster).await;
    assert!(!cluster.hub.upstream.link.is_up(Credential::Node));
    link_reason(cluster, "2090").await;
    link_reason(cluster, &node.certificate.display().to_string()).await;
    let list = cluster.kubelet().get_json(PODS).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2, "from memory");
    assert_eq!(cluster.kubelet().get(NEVER_READ).await.0, 503);
    assert_eq!(cluster.pod(APP).get(NEVER_READ).await.0, 200);
    let (_, kubelet) = node.renew();
    assert_eq!(kubelet.get(PODS).await.0, 200);
    cluster.link_is(true).await;
    assert_eq!(watch.next().await.as_deref(), Some("ADDED c"));
    assert_eq!(kubelet.get(NEVER_READ).await.0, 200);
}

#[tokio::test]
async fn after_a_cut_all_that_the_node_asks_comes_with_the_certificate_that_was_renewed_in_it() {
    let (node, mut watch) = Node::cut_off().await;
    let cluster = &node.cluster;
    let (renewed, kubelet) = node.renew();
    assert_eq!(kubelet.get(PODS).await.0, 200);
    cluster.api.happens("ADDED", "c");
    cluster.api.shared.shown.lock().clear();
    cluster.reconnect().await;
    assert_eq!(watch.next().await.as_deref(), Some("ADDED c"));
    assert_eq!(kubelet.get(NEVER_READ).await.0, 200);
    // The node asks whose the token is.
    assert_eq!(cluster.pod(APP).get(NEVER_READ).await.0, 200);
    let shown = cluster.api.shared.shown.lock();
    for path in [
        "/readyz",
        "/api/v1/namespaces/default/services",
        PODS,
        NEVER_READ,
        "/apis/authentication.k8s.io/v1/tokenreviews",
    ] {
        assert!(shown.iter().any(|(asked, _)| asked == path), "{path}");
    }
    let (chain, _) = identity(&renewed);
    for (path, certificate) in &*shown {
        assert_eq!(*certificate, chain[0], "{path}");
    }
}

#[tokio::test]
async fn an_authority_that_is_replaced_in_cuts_is_followed_and_the_old_one_not_believed_again() {
    let cluster = with_listed_pods().await;
    let upstream = &cluster.hub.upstream;
    let api = &cluster.api;
    let file = cluster.state.path().join("api.crt");
    let new = Serving::new();
    let mut watch = cluster.kubelet().watch(&watch_from(101)).await;
    cluster.cut().await;
    std::fs::write(&file, [&api.serving.pem[..], &new.pem[..]].concat()).unwrap();
    assert!(upstream.reload_authority().unwrap());
    api.present(&new);
    api.happens("ADDED", "c");
    cluster.reconnect().await;
    assert_eq!(watch.next().await.as_deref(), Some("ADDED c"));
    cluster.cut().await;
    std::fs::write(&file, &new.pem).unwrap();
    assert!(upstream.reload_authority().unwrap());
    api.present(&api.serving);
    api.happens("DELETED", "a");
    api.reconnect();
    link_reason(&cluster, "invalid peer certificate").await;
    assert!(!upstream.link.is_up(Credential::Bearer));
    let list = cluster.kubelet().get_json(PODS).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 3);
    for damaged in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nMIIB"] {
        std::fs::write(&file, damaged).unwrap();
        upstream.reload_authority().unwrap_err();
    }
    std::fs::remove_file(&file).unwrap();
    upstream.reload_authority().unwrap_err();
    api.present(&new);
    cluster.link_is(true).await;
    assert_eq!(watch.next().await.as_deref(), Some("DELETED a"));
}

#[tokio::test]
async fn a_hub_that_starts_with_a_damaged_authority_answers_from_memory_until_it_is_repaired() {
    let cluster = with_listed_pods().await;
    let right = cluster.api.serving.pem.clone();
    let file = cluster.state.path().join("api.crt");
    let cluster = cluster
        .restart_after(|_| std::fs::write(&file, "").unwrap())
        .await;
    link_reason(&cluster, "invalid peer certificate").await;
    let list = cluster.kubelet().get_json(PODS).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    std::fs::write(&file, right).unwrap();
    assert!(cluster.hub.upstream.reload_authority().unwrap());
    cluster.link_is(true).await;
}

/// Seconds since 1970.
#[derive(Debug)]
struct Clock(u64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0)))
    }
}

/// Kubelet connects to the hub while the clock is right, later than it is, and at its beginning.
async fn connect_at_any_time(cluster: &TestCluster) {
    const DAY: u64 = 24 * 3600;
    let now = UnixTime::now().as_secs();
    for clock in [now, now + 10 * DAY, now + 400 * DAY, now, 0] {
        let mut tls = cluster.tls(Some(cluster.kubelet_identity()));
        tls.time_provider = Arc::new(Clock(clock));
        let kubelet = TestClient::with(&cluster.address, &tls, Protocols::Http2OrHttp1);
        assert_eq!(kubelet.get(PODS).await.0, 200, "{clock}");
    }
}

#[tokio::test]
async fn kubelet_reaches_its_hub_whatever_the_clock_says_in_a_cut_and_after_a_reboot_too() {
    let cluster = with_listed_pods().await;
    cluster.cut().await;
    connect_at_any_time(&cluster).await;
    connect_at_any_time(&cluster.restart().await).await;
}
