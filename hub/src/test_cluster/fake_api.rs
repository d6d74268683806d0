//! A fake API server: pods of one namespace with lists and watches in JSON, some other objects, and
//! tokens. It can be cut off, can forget its history, and notes with which credentials it was asked.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::certificates::{NodeAuthority, Serving, expires_before};
use crate::authority::IssuedPem;
use crate::upstream::{Body, full};

/// What client-go asks for first.
pub(super) const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Streams that one connection may have, as at an API server since 1.28.
const MAX_STREAMS: u32 = 100;
/// The node's, where it has no certificate.
pub(super) const NODE_TOKEN: &str = "of the node's kubeconfig";
const ETAG: http::HeaderValue = http::HeaderValue::from_static("\"1\"");

const CLAIM: &str = r#"{"kind":"ResourceClaim","apiVersion":"resource.k8s.io/v1","metadata":{"name":"gpu","namespace":"shop","resourceVersion":"50"}}"#;

/// The server and its credentials.
pub(super) struct FakeApi {
    pub(super) address: String,
    pub(super) serving: Serving,
    pub(super) node_authority: NodeAuthority,
    /// The node's certificate at the start.
    pub(super) node: IssuedPem,
    pub(super) shared: Arc<Shared>,
    protocols: Vec<Vec<u8>>,
    _server: JoinSet<()>,
}

/// What the fake knows.
pub(super) struct Shared {
    cut: watch::Sender<bool>,
    acceptor: Mutex<TlsAcceptor>,
    /// By its clock. It answers a certificate that has expired with 401.
    pub(super) year: AtomicI32,
    /// Paths, and the certificates of the connections on which they were asked for.
    pub(super) shown: Mutex<Vec<(String, CertificateDer<'static>)>>,
    /// It does not send what it says of the cluster.
    pub(super) holds_cluster: watch::Sender<bool>,
    /// All connections are to end with their streams.
    pub(super) goes_away: watch::Sender<()>,
    /// All connections end at once.
    pub(super) resets: watch::Sender<()>,
    /// The node's certificate has expired: every request with it is answered with 401.
    pub(super) refuses_node: AtomicBool,
    /// It takes requests, and answers none but probes.
    pub(super) hangs: AtomicBool,
    /// It does not answer probes.
    pub(super) hangs_probes: AtomicBool,
    /// All events so far: word, name, version.
    history: watch::Sender<Vec<(&'static str, String, u64)>>,
    /// Watches from earlier versions are answered with 410.
    oldest: Mutex<u64>,
    pub(super) lists: AtomicUsize,
    /// Answers that were sent compressed.
    pub(super) compressed: AtomicUsize,
    /// Lists that were read as watches.
    pub(super) streamed_lists: AtomicUsize,
    /// Items of the list of pods in another namespace.
    pub(super) pods_of_shop: Mutex<String>,
    /// Whose tokens these are: nobody's has an empty name. All others that it takes it does not review.
    pub(super) owners: Mutex<BTreeMap<&'static str, &'static str>>,
    /// Path, whether the connection had a certificate, and the token.
    pub(super) asked: Mutex<Vec<(String, bool, Option<String>)>>,
    /// Uid of the Service `kubernetes`; that of the node is the same.
    pub(super) cluster: Mutex<&'static str>,
    /// How many more requests of these paths it refuses before it looks at them.
    pub(super) unprocessed: Mutex<BTreeMap<&'static str, usize>>,
    /// What it says at these paths instead of what it knows.
    pub(super) said: Mutex<BTreeMap<&'static str, Said>>,
    echoes: Mutex<JoinSet<()>>,
    /// Bodies of the events that were created.
    pub(super) events: watch::Sender<Vec<serde_json::Value>>,
}

/// An answer of something that is no API server, or of a broken one.
#[derive(Clone, Copy)]
pub(super) struct Said {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) content_encoding: &'static str,
    pub(super) body: &'static [u8],
}

impl Said {
    pub(super) const fn new(status: u16, content_type: &'static str, body: &'static str) -> Self {
        Self {
            status,
            content_type,
            content_encoding: "identity",
            body: body.as_bytes(),
        }
    }

    fn answer(self) -> Response<Body> {
        let mut answer = json(self.status, String::new());
        *answer.body_mut() = full(self.body);
        for (name, value) in [
            ("content-type", self.content_type),
            ("content-encoding", self.content_encoding),
        ] {
            let value = http::HeaderValue::from_static(value);
            answer.headers_mut().insert(name, value);
        }
        answer
    }
}

impl FakeApi {
    pub(super) async fn start() -> Self {
        Self::start_with(&[b"h2", b"http/1.1"]).await
    }

    /// With these protocols, in the words of ALPN.
    pub(super) async fn start_with(protocols: &[&[u8]]) -> Self {
        let protocols: Vec<_> = protocols.iter().map(|it| it.to_vec()).collect();
        let serving = Serving::new();
        let node_authority = NodeAuthority::new();
        let shared = Arc::new(Shared {
            cut: watch::Sender::new(false),
            acceptor: Mutex::new(node_authority.acceptor(&serving, &protocols)),
            year: AtomicI32::new(2030),
            shown: Mutex::default(),
            holds_cluster: watch::Sender::new(false),
            goes_away: watch::Sender::default(),
            resets: watch::Sender::default(),
            refuses_node: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            hangs_probes: AtomicBool::new(false),
            history: watch::Sender::new(Vec::new()),
            oldest: Mutex::new(0),
            lists: AtomicUsize::new(0),
            compressed: AtomicUsize::new(0),
            streamed_lists: AtomicUsize::new(0),
            pods_of_shop: Mutex::default(),
            owners: Mutex::default(),
            asked: Mutex::default(),
            cluster: Mutex::new("1"),
            unprocessed: Mutex::default(),
            said: Mutex::default(),
            echoes: Mutex::default(),
            events: watch::Sender::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let mut server = JoinSet::new();
        server.spawn(serve(listener, shared.clone()));
        Self {
            address,
            serving,
            node: node_authority.issue(2090),
            node_authority,
            shared,
            protocols,
            _server: server,
        }
    }

    /// From the next connection on it has this certificate.
    pub(super) fn present(&self, serving: &Serving) {
        let acceptor = self.node_authority.acceptor(serving, &self.protocols);
        *self.shared.acceptor.lock() = acceptor;
    }

    /// Ends all connections and takes no new ones.
    pub(super) fn cut(&self) {
        self.shared.cut.send_replace(true);
    }

    pub(super) fn reconnect(&self) {
        self.shared.cut.send_replace(false);
    }

    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub(super) fn happens(&self, word: &'static str, name: &str) {
        self.shared.happens(word, name);
    }

    /// Restores a backup of when the first `count` events had happened.
    pub(super) fn restore(&self, count: usize) {
        let history = &self.shared.history;
        history.send_modify(|history| history.truncate(count));
    }

    /// Forgets what happened: watches have to begin with a list.
    pub(super) fn forget_history(&self) {
        *self.shared.oldest.lock() = self.shared.version();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = shared.acceptor.lock().clone();
        let shared = shared.clone();
        let mut cut = shared.cut.subscribe();
        let mut goes_away = shared.goes_away.subscribe();
        let mut resets = shared.resets.subscribe();
        if *cut.borrow() {
            continue;
        }
        connections.spawn(async move {
            let served = async {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let chain = stream.get_ref().1.peer_certificates();
                let certificate = chain.map(|chain| chain[0].clone());
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(|request| {
                    let shared = shared.clone();
                    let certificate = certificate.clone();
                    async move {
                        shared.look_at(&request)?;
                        Ok::<_, h2::Error>(shared.answer(certificate, request).await)
                    }
                });
                let stream = TokioIo::new(stream);
                // The end of a connection is what the tests are about.
                if http2 {
                    let mut server = http2::Builder::new(TokioExecutor::new());
                    server.max_concurrent_streams(MAX_STREAMS);
                    let served = server.serve_connection(stream, service);
                    tokio::pin!(served);
                    tokio::select! {
                        ended = &mut served => drop(ended),
                        _ = goes_away.changed() => {
                            served.as_mut().graceful_shutdown();
                            served.await.ok();
                        }
                    }
                } else {
                    let server = http1::Builder::new();
                    let served = server.serve_connection(stream, service);
                    served.with_upgrades().await.ok();
                }
            };
            tokio::select! {
                () = served => {}
                _ = cut.wait_for(|cut| *cut) => {}
                _ = resets.changed() => {}
            }
        });
    }
}

impl Shared {
    /// Fails for a request that is refused before it is looked at.
    fn look_at(&self, request: &Request<Incoming>) -> Result<(), h2::Error> {
        let mut unprocessed = self.unprocessed.lock();
        match unprocessed.get_mut(request.uri().path()) {
            Some(0) | None => Ok(()),
            Some(left) => {
                *left -= 1;
                Err(h2::Reason::REFUSED_STREAM.into())
            }
        }
    }

    fn happens(&self, word: &'static str, name: &str) {
        self.history.send_modify(|history| {
            let version = 100 + history.len() as u64;
            history.push((word, name.to_owned(), version));
        });
    }

    fn version(&self) -> u64 {
        99 + self.history.borrow().len() as u64
    }

    fn hangs_at(&self, path: &str) -> bool {
        let hangs = match path {
            "/readyz" => &self.hangs_probes,
            _ => &self.hangs,
        };
        hangs.load(Ordering::Relaxed)
    }

    async fn answer(
        self: Arc<Self>,
        certificate: Option<CertificateDer<'static>>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let is_node = certificate.is_some();
        let token = request.headers().get("authorization");
        let token = token.map(|value| value.to_str().unwrap().replace("Bearer ", ""));
        let path = request.uri().path().to_owned();
        self.asked
            .lock()
            .push((path.clone(), is_node, token.clone()));
        let is_node = is_node || token.as_deref() == Some(NODE_TOKEN);
        let has_expired = certificate.is_some_and(|it| self.has_expired(&path, it));
        if self.hangs_at(&path) {
            return std::future::pending().await;
        }
        if request.headers().contains_key("upgrade") {
            return self.echo(request);
        }
        let is_refused = is_node && self.refuses_node.load(Ordering::Relaxed);
        if has_expired || is_refused || token.as_deref() == Some("revoked") {
            return json(401, "{}".to_owned());
        }
        let said = self.said.lock().get(&*path).copied();
        if let Some(said) = said {
            return said.answer();
        }
        if request.method() == Method::POST && path.ends_with("/events") {
            return self.take_event(request.into_body()).await;
        }
        if path.ends_with("/tokenreviews") {
            return self.review(is_node, request).await;
        }
        let query = request.uri().query().unwrap_or_default();
        let path = &*path;
        // Pods may read all but secrets.
        if path.ends_with("/secrets/key") && !is_node {
            return json(403, "{}".to_owned());
        }
        match (request.method(), path) {
            (&Method::GET, "/readyz") => json(200, "ok".to_owned()),
            (&Method::GET, "/version") => version(&request),
            (&Method::GET, "/apis") => groups(&request),
            (&Method::GET, "/api/v1/namespaces/default/pods") if query.contains("watch=true") => {
                let form = self.form(&request);
                self.watch(query, form)
            }
            (&Method::GET | &Method::HEAD, "/api/v1/namespaces/default/pods") => self.list(self.form(&request)),
            (&Method::GET, path) if path.starts_with("/api/v1/namespaces/default/pods/") => {
                let name = path.rsplit('/').next().unwrap_or_default();
                match self.pods().remove(name) {
                    Some(version) => json(200, self.form(&request).alone(name, version)),
                    None => no_pod(name),
                }
            }
            (&Method::PATCH, path) if path.ends_with("/status") => {
                let name = path.rsplit('/').nth(1).unwrap();
                self.happens("MODIFIED", name);
                json(200, Form::Object.alone(name, self.version()))
            }
            (&Method::POST, "/api/v1/namespaces/default/serviceaccounts/app/token") => json(
                201,
                r#"{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","status":{"token":"real"}}"#
                    .to_owned(),
            ),
            (&Method::POST, "/api/v1/namespaces/shop/serviceaccounts/cart/token") => {
                json(201, "{}".to_owned())
            }
            (&Method::GET, "/api/v1/namespaces/default/services" | "/api/v1/nodes")
                if is_node && query.starts_with("fieldSelector=metadata.name") =>
            {
                self.own_object().await
            }
            (&Method::GET, "/api/v1/nodes") if is_node => list_of("Node", ""),
            (&Method::GET, "/api/v1/namespaces/shop/pods") => {
                let list = list_text("Pod", &self.pods_of_shop.lock());
                self.maybe_compressed(&request, list)
            }
            (&Method::GET, "/api/v1/services") if query.contains("watch=true") => {
                once(format!(
                    "{{\"type\":\"MODIFIED\",\"object\":{KUBERNETES}}}\n"
                ))
            }
            (&Method::GET, "/api/v1/services") => list_of("Service", KUBERNETES),
            (&Method::GET, "/api/v1/namespaces/default/services/kubernetes") => {
                json(200, KUBERNETES.to_owned())
            }
            (&Method::GET, "/api/v1/namespaces/shop/configmaps/kube-root-ca.crt") => json(
                200,
                r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"kube-root-ca.crt","namespace":"shop","resourceVersion":"50"},"data":{"ca.crt":"of the cluster\n"}}"#.to_owned(),
            ),
            (&Method::GET, "/api/v1/namespaces/shop/secrets/key") => json(
                200,
                r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"key","namespace":"shop","resourceVersion":"50"},"data":{}}"#.to_owned(),
            ),
            (&Method::GET, "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaims/gpu") => {
                json(200, CLAIM.to_owned())
            }
            _ => json(404, r#"{"kind":"Status","code":404}"#.to_owned()),
        }
    }

    /// Whether a certificate that comes with a request has expired.
    fn has_expired(&self, path: &str, certificate: CertificateDer<'static>) -> bool {
        let has_expired = expires_before(&certificate, self.year.load(Ordering::Relaxed));
        self.shown.lock().push((path.to_owned(), certificate));
        has_expired
    }

    /// As an API server does it with long answers.
    fn maybe_compressed(&self, request: &Request<Incoming>, body: String) -> Response<Body> {
        const LONG: usize = 128 << 10;
        let accepted = request.headers().get("accept-encoding");
        if body.len() < LONG || accepted.is_none_or(|it| it != "gzip") {
            return json(200, body);
        }
        self.compressed.fetch_add(1, Ordering::Relaxed);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(body.as_bytes()).unwrap();
        let mut answer = json(200, String::new());
        *answer.body_mut() = full(encoder.finish().unwrap());
        let gzip = http::HeaderValue::from_static("gzip");
        answer.headers_mut().insert("content-encoding", gzip);
        answer
    }

    /// The Service `kubernetes`, or the node.
    async fn own_object(&self) -> Response<Body> {
        let uid = *self.cluster.lock();
        let version = self.version();
        let mut held = self.holds_cluster.subscribe();
        // Its sender is in `self`.
        held.wait_for(|held| !held).await.ok();
        json(
            200,
            format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"{version}"}},"items":[{{"metadata":{{"uid":"{uid}"}}}}]}}"#
            ),
        )
    }

    async fn take_event(&self, body: Incoming) -> Response<Body> {
        let Ok(body) = body.collect().await else {
            return json(400, "{}".to_owned());
        };
        let event = serde_json::from_slice(&body.to_bytes()).unwrap();
        self.events.send_modify(|events| events.push(event));
        json(201, "{}".to_owned())
    }

    /// Whose a token is. It says so to the node only.
    async fn review(&self, is_node: bool, request: Request<Incoming>) -> Response<Body> {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let review: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let owners = self.owners.lock();
        match owners.get(review["spec"]["token"].as_str().unwrap()) {
            Some(owner) if is_node => json(
                201,
                format!(
                    r#"{{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{{"authenticated":{},"user":{{"username":"{owner}"}}}}}}"#,
                    !owner.is_empty()
                ),
            ),
            Some(_) | None => json(403, "{}".to_owned()),
        }
    }

    /// Switches protocols, and sends back whatever comes.
    fn echo(&self, request: Request<Incoming>) -> Response<Body> {
        self.echoes.lock().spawn(async move {
            let upgraded = hyper::upgrade::on(request).await.unwrap();
            let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
            tokio::io::copy(&mut read, &mut write).await.ok();
            write.shutdown().await.ok();
        });
        let mut answer = json(101, String::new());
        let headers = answer.headers_mut();
        headers.insert("connection", http::HeaderValue::from_static("upgrade"));
        headers.insert("upgrade", http::HeaderValue::from_static("SPDY/3.1"));
        answer
    }

    fn form(&self, request: &Request<Incoming>) -> Form {
        let accepted = request.headers()["accept"].to_str().unwrap();
        if accepted.starts_with("application/json;as=Table;") {
            let age = self.lists.load(Ordering::Relaxed);
            Form::Table { age }
        } else {
            Form::Object
        }
    }

    /// Names and versions.
    fn pods(&self) -> BTreeMap<String, u64> {
        let mut pods = BTreeMap::new();
        for (word, name, version) in &*self.history.borrow() {
            match *word {
                "DELETED" => pods.remove(name),
                _ => pods.insert(name.clone(), *version),
            };
        }
        pods
    }

    fn list(&self, form: Form) -> Response<Body> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        json(200, form.list(self.version(), &self.pods()))
    }

    /// All pods, and the bookmark that ends them.
    fn initial_events(&self, form: Form) -> String {
        self.streamed_lists.fetch_add(1, Ordering::Relaxed);
        let pods = self.pods();
        let added = pods.iter().map(|(name, version)| {
            let object = form.alone(name, *version);
            format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n")
        });
        let bookmark = format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}"#,
            self.version()
        );
        added.chain([bookmark, "\n".to_owned()]).collect()
    }

    fn watch(self: Arc<Self>, query: &str, form: Form) -> Response<Body> {
        let from = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("resourceVersion="));
        let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or(0);
        let streaming = query.contains("sendInitialEvents=true");
        if !streaming && from < *self.oldest.lock() {
            return json(410, r#"{"kind":"Status","code":410}"#.to_owned());
        }
        let history = self.history.subscribe();
        let (initial, from) = if streaming {
            (self.initial_events(form), self.version())
        } else {
            (String::new(), from)
        };
        let initial = stream::once(async move { Ok(Frame::data(Bytes::from(initial))) });
        let next = usize::try_from(from.saturating_sub(99)).unwrap();
        let events = stream::unfold((history, next), move |(mut history, next)| async move {
            let event = {
                let history = history
                    .wait_for(|history| history.len() > next)
                    .await
                    .ok()?;
                let (word, name, version) = &history[next];
                let object = form.alone(name, *version);
                format!("{{\"type\":\"{word}\",\"object\":{object}}}\n")
            };
            let frame = Frame::data(Bytes::from(event));
            Some((
                Ok::<_, crate::upstream::BodyError>(frame),
                (history, next + 1),
            ))
        });
        let mut answer = Response::new(StreamBody::new(initial.chain(events)).boxed_unsync());
        let json = http::HeaderValue::from_static("application/json");
        answer.headers_mut().insert("content-type", json);
        answer
    }
}

/// How objects are written.
#[derive(Clone, Copy)]
enum Form {
    Object,
    /// Its cells tell the age of objects, in lists.
    Table {
        age: usize,
    },
}

impl Form {
    fn alone(self, name: &str, version: u64) -> String {
        match self {
            Self::Object => {
                pod(name, version).replacen('{', r#"{"kind":"Pod","apiVersion":"v1","#, 1)
            }
            Self::Table { .. } => self.list(version, &BTreeMap::from([(name.to_owned(), version)])),
        }
    }

    fn list(self, version: u64, pods: &BTreeMap<String, u64>) -> String {
        let pods = pods.iter().map(|(name, version)| match self {
            Self::Object => pod(name, *version),
            Self::Table { age } => {
                format!(
                    r#"{{"cells":["{name}",{age}],"object":{}}}"#,
                    pod(name, *version)
                )
            }
        });
        let pods = pods.collect::<Vec<_>>().join(",");
        let (head, pods) = match self {
            Self::Object => (
                r#""kind":"PodList","apiVersion":"v1""#,
                format!(r#""items":[{pods}]"#),
            ),
            Self::Table { .. } => (
                r#""kind":"Table","apiVersion":"meta.k8s.io/v1""#,
                format!(r#""columnDefinitions":[{{"name":"Name"}}],"rows":[{pods}]"#),
            ),
        };
        format!(r#"{{{head},"metadata":{{"resourceVersion":"{version}"}},{pods}}}"#)
    }
}

/// Says that a client has the document already, to its `ETag` or to any date.
fn version(request: &Request<Incoming>) -> Response<Body> {
    let mut answer = json(200, r#"{"gitVersion":"v1.20.2"}"#.to_owned());
    answer.headers_mut().insert("etag", ETAG);
    let headers = request.headers();
    if headers.get("if-none-match") == Some(&ETAG) || headers.contains_key("if-modified-since") {
        *answer.status_mut() = http::StatusCode::NOT_MODIFIED;
        *answer.body_mut() = full("");
    }
    answer
}

fn groups(request: &Request<Incoming>) -> Response<Body> {
    let accepted = &request.headers()["accept"];
    let aggregated = accepted.to_str().unwrap().starts_with(AGGREGATED);
    let kind = if aggregated {
        "APIGroupDiscoveryList"
    } else {
        "APIGroupList"
    };
    let mut answer = json(200, format!(r#"{{"kind":"{kind}"}}"#));
    if aggregated {
        let content_type = http::HeaderValue::from_static(AGGREGATED);
        answer.headers_mut().insert("content-type", content_type);
    }
    answer
}

fn no_pod(name: &str) -> Response<Body> {
    let details = format!(r#"{{"name":"{name}","kind":"pods"}}"#);
    json(
        404,
        format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"reason":"NotFound","details":{details},"code":404}}"#
        ),
    )
}

/// The service of the API server.
const KUBERNETES: &str = r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"kubernetes","namespace":"default","resourceVersion":"50"},"spec":{"ports":[{"name":"https","port":443}],"clusterIP":"10.96.0.1"}}"#;

fn list_of(kind: &str, items: &str) -> Response<Body> {
    json(200, list_text(kind, items))
}

fn list_text(kind: &str, items: &str) -> String {
    format!(
        r#"{{"kind":"{kind}List","apiVersion":"v1","metadata":{{"resourceVersion":"50"}},"items":[{items}]}}"#
    )
}

/// A watch with one event, which goes on.
fn once(event: String) -> Response<Body> {
    let event = Ok::<_, crate::upstream::BodyError>(Frame::data(Bytes::from(event)));
    let events = stream::iter([event]).chain(stream::pending());
    let mut answer = Response::new(StreamBody::new(events).boxed_unsync());
    let json = http::HeaderValue::from_static("application/json");
    answer.headers_mut().insert("content-type", json);
    answer
}

fn pod(name: &str, version: u64) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default","uid":"u-{name}","resourceVersion":"{version}"}}}}"#
    )
}

fn json(status: u16, body: String) -> Response<Body> {
    let mut answer = Response::new(full(body));
    *answer.status_mut() = http::StatusCode::from_u16(status).unwrap();
    let json = http::HeaderValue::from_static("application/json");
    answer.headers_mut().insert("content-type", json);
    answer
}
