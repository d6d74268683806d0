//! A hub between a client and a fake API server, which can be cut off.

mod backup_tests;
mod certificates;
mod client_go_tests;
mod discovery_tests;
mod fake_api;
mod fleet_tests;
mod flood_tests;
mod hostile_tests;
mod load_tests;
mod operator_tests;
mod pod_tests;
mod power_cut_tests;
mod return_tests;
mod rotation_tests;
mod server_tests;
mod table_tests;
mod tests;
mod write_tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_daemon::{AdminListen, Drain, ForwardProxies};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use prometheus_client::registry::Registry;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::authority::{IssuedPem, LocalAuthority};
use crate::config::Config;
use crate::crypto::provider;
use crate::event_sender::send_events;
use crate::hub::Hub;
use crate::kubeconfig::{Kubeconfig, NodeCredential, PemSource};
use crate::memory::DiskStatus;
use crate::run::Parts;
use crate::server_order::ServerOrder;
use crate::state_dir::StateDir;
use crate::store::{LoadedFrom, Store};
use crate::upstream::connector::{Connector, Protocols};
use crate::upstream::servers::Servers;
use crate::upstream::watcher::{LinkWatch, watch_link};
use crate::upstream::{Body, Credential, empty, full};
use fake_api::FakeApi;

/// Longer than the link needs to come back.
const DEADLINE: Duration = Duration::from_secs(30);

/// The whole of it.
struct TestCluster {
    api: Arc<FakeApi>,
    hub: Arc<Hub>,
    address: String,
    pod_address: String,
    state: Arc<tempfile::TempDir>,
    disk: watch::Receiver<DiskStatus>,
    tasks: JoinSet<anyhow::Result<()>>,
    drain: Drain,
}

/// Whether a hub can write its database there.
fn is_writable(state: &Path) -> bool {
    let (store, _) = Store::open(state, Duration::ZERO);
    store.health().loaded_from != LoadedFrom::UnwritableDatabase
}

impl TestCluster {
    async fn start() -> Self {
        let state = tempfile::tempdir().unwrap();
        Self::start_with(FakeApi::start().await, Arc::new(state)).await
    }

    async fn start_with(api: impl Into<Arc<FakeApi>>, state: Arc<tempfile::TempDir>) -> Self {
        let api = api.into();
        let servers = vec![api.address.clone()];
        Self::start_over(&servers, api, state, None, ForwardProxies::default()).await
    }

    /// With these addresses of the API server, and another credential than the node's certificate.
    async fn start_over(
        servers: &[String],
        api: impl Into<Arc<FakeApi>>,
        state: Arc<tempfile::TempDir>,
        credential: Option<NodeCredential>,
        forward: ForwardProxies,
    ) -> Self {
        let api = api.into();
        let authority = state.path().join("api.crt");
        if !authority.exists() {
            std::fs::write(&authority, &api.serving.pem).unwrap();
        }
        let config = Config {
            kubeconfig: None,
            state: StateDir::new(state.path().to_owned()),
            listen: "127.0.0.1:0".parse().unwrap(),
            pod_listen: vec!["127.0.0.1:0".parse().unwrap()],
            admin: AdminListen {
                program: "culvert-hub",
                address: "127.0.0.1:0".parse().unwrap(),
                metrics: None,
                socket: state.path().join("admin.sock"),
            },
            cloud: Kubeconfig {
                server: api.address.parse().unwrap(),
                authority: PemSource::File(authority),
                credential: credential.unwrap_or_else(|| NodeCredential::Certificate {
                    certificate: PemSource::Inline(api.node.certificate.clone().into_bytes()),
                    key: PemSource::Inline(api.node.key.clone().into_bytes()),
                }),
            },
            servers: servers.iter().map(|it| it.parse().unwrap()).collect(),
            server_order: ServerOrder::Priority,
            forward,
            grace: Duration::from_secs(1),
        };
        let mut registry = Registry::default();
        let Parts {
            hub,
            port,
            mut pod_ports,
            writer,
        } = Parts::open(&config, &mut registry).await.unwrap();
        let pods = pod_ports.remove(0);
        let pod_address = format!("https://{}", pods.local_addr().unwrap());
        let address = format!("https://{}", port.local_addr().unwrap());
        let drain = Drain::default();
        let mut tasks = JoinSet::new();
        let disk = writer.status();
        tasks.spawn(watch_link(hub.upstream.clone(), drain.clone()));
        let certificate = hub.upstream.clone();
        tasks.spawn(certificate.follow_certificate(drain.clone()));
        let recovery = hub.upstream.clone();
        tasks.spawn(recovery.ask_failed_servers(drain.clone()));
        tasks.spawn(writer.run(drain.clone()));
        tasks.spawn(send_events(hub.clone(), drain.clone()));
        tasks.spawn(port.serve(hub.clone(), drain.clone()));
        tasks.spawn(pods.serve(hub.clone(), drain.clone()));
        Self {
            api,
            hub,
            address,
            pod_address,
            state,
            disk,
            tasks,
            drain,
        }
    }

    /// Ends the hub as SIGTERM does, and starts another on the same disk.
    async fn restart(self) -> Self {
        self.restart_after(|_| ()).await
    }

    /// The same, after a change of the state directory.
    async fn restart_after(mut self, change: impl FnOnce(&Path)) -> Self {
        self.drain.start();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        timeout(DEADLINE, ended).await.unwrap();
        let Self { api, state, .. } = self;
        change(state.path());
        Self::start_with(api, state).await
    }

    /// Ends the hub as SIGKILL does, and starts another on the same disk.
    async fn kill_and_start(mut self) -> Self {
        self.tasks.shutdown().await;
        let Self { api, state, .. } = self;
        // A thread that writes lives on, and has the database open: SIGKILL would end it.
        let is_free = async {
            while !is_writable(state.path()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(DEADLINE, is_free).await.unwrap();
        Self::start_with(api, state).await
    }

    async fn link_is(&self, up: bool) {
        let mut link = self.hub.upstream.link.subscribe(Credential::Node);
        let reached = link.wait_for(|link| link.is_up() == up);
        timeout(DEADLINE, reached).await.unwrap().unwrap();
    }

    async fn cut(&self) {
        self.api.cut();
        self.link_is(false).await;
    }

    async fn reconnect(&self) {
        self.api.reconnect();
        self.link_is(true).await;
    }

    /// How often the API server was asked for this path.
    fn questions(&self, path: &str) -> usize {
        let asked = self.api.shared.asked.lock();
        asked.iter().filter(|(asked, ..)| asked == path).count()
    }

    /// Until it was asked more often than that.
    async fn is_asked(&self, path: &str, before: usize) {
        let asked = async {
            while self.questions(path) <= before {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, asked).await.unwrap();
    }

    /// With the certificate that `install` makes for kubelet.
    fn kubelet(&self) -> TestClient {
        self.client(Some(self.kubelet_identity()))
    }

    fn kubelet_over(&self, protocols: Protocols) -> TestClient {
        self.client_over(&self.address, Some(self.kubelet_identity()), protocols)
    }

    fn kubelet_identity(&self) -> ClientIdentity {
        let authority = LocalAuthority::open(&StateDir::new(self.state.path().to_owned())).unwrap();
        identity(&authority.issue_for_kubelet().unwrap())
    }

    /// Files with kubelet's certificate and its key.
    fn kubelet_files(&self) -> [PathBuf; 2] {
        let authority = LocalAuthority::open(&StateDir::new(self.state.path().to_owned())).unwrap();
        let issued = authority.issue_for_kubelet().unwrap();
        [
            ("kubelet.crt", issued.certificate),
            ("kubelet.key", issued.key),
        ]
        .map(|(name, pem)| {
            let path = self.state.path().join(name);
            std::fs::write(&path, pem).unwrap();
            path
        })
    }

    /// Without a certificate.
    fn stranger(&self) -> TestClient {
        self.client(None)
    }

    /// A pod, which has a token.
    fn pod(&self, token: &'static str) -> TestClient {
        self.client_of(&self.pod_address, None).with_token(token)
    }

    /// Settings of a client that trusts the local authority.
    fn tls(&self, identity: Option<ClientIdentity>) -> rustls::ClientConfig {
        let authority = LocalAuthority::open(&StateDir::new(self.state.path().to_owned())).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.certificate().clone()).unwrap();
        let tls = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match identity {
            Some((chain, key)) => tls.with_client_auth_cert(chain, key).unwrap(),
            None => tls.with_no_client_auth(),
        }
    }

    fn connector(
        &self,
        address: &str,
        identity: Option<ClientIdentity>,
        protocols: Protocols,
    ) -> Connector {
        connector_with(address, &self.tls(identity), protocols)
    }

    fn client(&self, identity: Option<ClientIdentity>) -> TestClient {
        self.client_of(&self.address, identity)
    }

    fn client_of(&self, address: &str, identity: Option<ClientIdentity>) -> TestClient {
        self.client_over(address, identity, Protocols::Http2OrHttp1)
    }

    fn client_over(
        &self,
        address: &str,
        identity: Option<ClientIdentity>,
        protocols: Protocols,
    ) -> TestClient {
        TestClient::with(address, &self.tls(identity), protocols)
    }
}

fn connector_with(address: &str, tls: &rustls::ClientConfig, protocols: Protocols) -> Connector {
    let servers = Servers::new(
        &[address.parse().unwrap()],
        ServerOrder::Priority,
        &ForwardProxies::default(),
    )
    .unwrap();
    Connector::new(servers.into(), tls, protocols, LinkWatch::new())
}

/// A certificate with its chain, and its key.
type ClientIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(issued: &IssuedPem) -> ClientIdentity {
    (
        vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()],
        PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap(),
    )
}

/// A client of the hub.
struct TestClient {
    http: Client<Connector, Body>,
    address: String,
    token: Option<&'static str>,
    accept: &'static str,
    /// The ETag of what the client has already.
    etag: Option<&'static str>,
}

impl TestClient {
    fn with(address: &str, tls: &rustls::ClientConfig, protocols: Protocols) -> Self {
        let connector = connector_with(address, tls, protocols);
        Self {
            http: Client::builder(TokioExecutor::new()).build(connector),
            address: address.to_owned(),
            token: None,
            accept: "application/json",
            etag: None,
        }
    }

    fn with_token(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }

    fn accepting(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    fn with_etag(mut self, etag: &'static str) -> Self {
        self.etag = Some(etag);
        self
    }

    async fn send(&self, method: &str, path: &str, body: Body) -> Response<Incoming> {
        let content_type = match method {
            "PATCH" => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        self.send_as(content_type, self.accept, method, path, body)
            .await
    }

    async fn send_as(
        &self,
        content_type: &str,
        accept: &str,
        method: &str,
        path: &str,
        body: Body,
    ) -> Response<Incoming> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.address))
            .header("accept", accept)
            .header("content-type", content_type);
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(etag) = self.etag {
            request = request.header("if-none-match", etag);
        }
        let answer = self.http.request(request.body(body).unwrap());
        timeout(DEADLINE, answer).await.unwrap().unwrap()
    }

    /// Status and body.
    async fn get(&self, path: &str) -> (u16, String) {
        whole(self.send("GET", path, empty()).await).await
    }

    async fn write(&self, method: &str, path: &str, body: &'static str) -> (u16, String) {
        whole(self.send(method, path, full(body)).await).await
    }

    /// In JSON.
    async fn get_json(&self, path: &str) -> serde_json::Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn watch(&self, path: &str) -> TestWatch {
        let answer = self.send("GET", path, empty()).await;
        assert_eq!(answer.status(), 200);
        TestWatch {
            body: answer.into_body(),
            read: Vec::new(),
        }
    }
}

async fn whole(answer: Response<Incoming>) -> (u16, String) {
    let status = answer.status().as_u16();
    let body = timeout(DEADLINE, answer.into_body().collect())
        .await
        .unwrap();
    let body: Bytes = body.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// A watch in JSON.
struct TestWatch {
    body: Incoming,
    read: Vec<u8>,
}

impl TestWatch {
    /// Word and name of the next event, such as `ADDED a`. `None`: the end.
    async fn next(&mut self) -> Option<String> {
        self.next_within(DEADLINE).await
    }

    async fn next_within(&mut self, deadline: Duration) -> Option<String> {
        let event = self.next_event_within(deadline).await?;
        let object = &event["object"];
        let object = object["rows"].get(0).map_or(object, |row| &row["object"]);
        let name = object["metadata"]["name"].as_str().unwrap_or("-");
        Some(format!("{} {name}", event["type"].as_str().unwrap()))
    }

    /// The next event. `None`: the end.
    async fn next_event(&mut self) -> Option<serde_json::Value> {
        self.next_event_within(DEADLINE).await
    }

    async fn next_event_within(&mut self, deadline: Duration) -> Option<serde_json::Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = timeout(deadline, self.body.frame()).await.unwrap()?;
            if let Ok(bytes) = frame.unwrap().into_data() {
                self.read.extend_from_slice(&bytes);
            }
        }
    }
}
