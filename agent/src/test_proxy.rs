//! The agent port of a proxy, for tests: real TLS, gRPC and tunnels; the trust decisions are fake.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert_api::proto::enroll::enroll_server::{Enroll, EnrollServer};
use culvert_api::proto::enroll::{Certificate, JoinRequest, RenewRequest};
use culvert_api::{ALPN_ENROLL, ALPN_TUNNEL, HostPort, PROXY_SERVER_NAME};
use culvert_tunnel::proto::tunnel::{DescribeRequest, DescribeResponse};
use culvert_tunnel::{Budget, FarEnd, ProxyTunnel, ReadAhead, Tunnel, TunnelError};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::{Request, Response, Status};
use tower_service::Service;

use crate::crypto::provider;
use crate::identity::IdentityText;
use crate::test_pki::Authority;

/// A tunnel as the proxy sees it, after its client certificate was accepted.
pub(crate) type ServerTunnel = TlsStream<ReadAhead<TcpStream>>;

/// A tunnel that its agent wants, in use.
pub(crate) struct UsedTunnel {
    pub(crate) tunnel: Tunnel,
    pub(crate) described: DescribeResponse,
    pub(crate) driver: JoinSet<Result<(), TunnelError>>,
}

impl UsedTunnel {
    /// Uses a tunnel as a proxy of this instance does, if its agent wants it.
    pub(crate) async fn of(tunnel: ServerTunnel, instance: &str) -> Option<Self> {
        let socket_state = tunnel.get_ref().0.socket_state();
        let settings = ProxyTunnel {
            far_end: FarEnd::Agent,
            stream_window: 1 << 20,
            max_streams: 8,
            streams_in_life: 1 << 29,
            budget: Budget::new(1 << 20),
        };
        let (tunnel, connection) = settings.establish(tunnel, socket_state).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(connection.run());
        let request = DescribeRequest {
            version: "test".to_owned(),
            instance: instance.to_owned(),
        };
        match tunnel.describe(&request).await {
            Ok(described) => Some(Self {
                tunnel,
                described,
                driver,
            }),
            Err(TunnelError::Declined) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Accepts the tokens `good-NODE`, and any agent with a certificate of its authority.
pub(crate) struct TestProxy {
    pub(crate) address: HostPort,
    pub(crate) instance: String,
    pub(crate) authority: Arc<Authority>,
    pub(crate) tunnel_rx: mpsc::Receiver<ServerTunnel>,
    requests: Arc<Requests>,
    _tasks: JoinSet<()>,
}

/// The certificate requests of joins, and the number of renewals.
#[derive(Default)]
struct Requests(Mutex<Vec<Vec<u8>>>, AtomicUsize);

#[derive(Clone)]
struct FakeEnroll {
    authority: Arc<Authority>,
    requests: Arc<Requests>,
}

impl TestProxy {
    pub(crate) async fn start() -> Self {
        Self::with_agents_of(Arc::new(Authority::new("culvert")), None).await
    }

    /// A proxy whose own certificate is signed by one authority, and which accepts agents of
    /// another.
    pub(crate) async fn with_agents_of(
        authority: Arc<Authority>,
        agents: Option<&Authority>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(
            &authority,
            agents.unwrap_or(&authority),
        )));
        let requests = Arc::<Requests>::default();
        let enroll = FakeEnroll {
            authority: authority.clone(),
            requests: requests.clone(),
        };
        let (tunnel_tx, tunnel_rx) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, acceptor, enroll, tunnel_tx));
        Self {
            instance: format!("instance-of-{address}"),
            address,
            authority,
            tunnel_rx,
            requests,
            _tasks: tasks,
        }
    }

    /// Uses the next tunnel that its agent wants.
    pub(crate) async fn next_tunnel(&mut self) -> UsedTunnel {
        loop {
            let tunnel = timeout(Duration::from_secs(20), self.tunnel_rx.recv())
                .await
                .expect("a tunnel in time")
                .unwrap();
            if let Some(used) = UsedTunnel::of(tunnel, &self.instance).await {
                return used;
            }
        }
    }

    /// The identity that an agent has after it joined this proxy.
    pub(crate) fn identity(&self, node: &str) -> IdentityText {
        IdentityText::for_tests(&self.authority, node)
    }

    /// The same, which has ended.
    pub(crate) fn expired_identity(&self, node: &str) -> IdentityText {
        let issued = self.authority.issue_expired(node);
        IdentityText {
            key: issued.key.serialize_pem(),
            chain: issued.leaf.pem(),
            ..self.identity(node)
        }
    }

    pub(crate) fn joins(&self) -> usize {
        self.requests.0.lock().len()
    }

    pub(crate) fn renewals(&self) -> usize {
        self.requests.1.load(Ordering::Relaxed)
    }

    pub(crate) fn last_two_keys_are_equal(&self) -> bool {
        let requests = self.requests.0.lock();
        let key = |csr: &Vec<u8>| {
            let request =
                rcgen::CertificateSigningRequestParams::from_der(&csr.clone().into()).unwrap();
            rcgen::PublicKeyData::der_bytes(&request.public_key).to_vec()
        };
        matches!(requests.as_slice(), [.., first, second] if key(first) == key(second))
    }
}

fn server_config(authority: &Authority, agents: &Authority) -> rustls::ServerConfig {
    let issued = authority.issue(PROXY_SERVER_NAME);
    let mut roots = RootCertStore::empty();
    roots.add(agents.certificate()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(issued.chain_with_ca.clone(), issued.private_key())
        .unwrap();
    config.alpn_protocols = vec![ALPN_TUNNEL.to_vec(), ALPN_ENROLL.to_vec()];
    config
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    enroll: FakeEnroll,
    tunnel_tx: mpsc::Sender<ServerTunnel>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = acceptor.clone();
        let enroll = enroll.clone();
        let tunnel_tx = tunnel_tx.clone();
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(ReadAhead::new(stream)).await else {
                return;
            };
            if stream.get_ref().1.alpn_protocol() == Some(ALPN_ENROLL) {
                serve_enroll(stream, enroll).await;
            } else {
                // A test that has requests enough drops the receiver.
                let _unwanted = tunnel_tx.send(stream).await;
            }
        });
    }
}

async fn serve_enroll(stream: ServerTunnel, enroll: FakeEnroll) {
    let server = EnrollServer::new(enroll);
    let service = service_fn(move |request| server.clone().call(request));
    // The agent closes the connection after its call; that is not an error here.
    let _left = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

#[tonic::async_trait]
impl Enroll for FakeEnroll {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<Certificate>, Status> {
        let request = request.into_inner();
        self.requests.0.lock().push(request.csr.clone());
        let token = if request.token.is_empty() {
            request.service_account_token
        } else {
            request.token
        };
        match token.strip_prefix("good-") {
            Some(node) => Ok(Response::new(self.certificate(request.csr, node))),
            None => Err(Status::permission_denied(
                "this token was used already; make a new one",
            )),
        }
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Certificate>, Status> {
        self.requests.1.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(
            self.certificate(request.into_inner().csr, "edge-1"),
        ))
    }
}

impl FakeEnroll {
    fn certificate(&self, csr: Vec<u8>, node: &str) -> Certificate {
        Certificate {
            chain_pem: self.authority.sign(csr, node),
            ca_pem: self.authority.pem(),
            node: node.to_owned(),
            server_name: PROXY_SERVER_NAME.to_owned(),
            vip4: "198.18.0.2".to_owned(),
        }
    }
}
