//! Many agents in one process: the real agent's end of a tunnel, the real back-off, and real
//! certificates of an operator's authority. The other parts of an agent (state, renewal,
//! allow-list, admin page) are missing.
//!
//! Node `node-0007` answers every port with `hello from node-0007`, then echoes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use culvert_api::{ALPN_TUNNEL, PROXY_SERVER_NAME};
use culvert_daemon::Backoff;
use culvert_tunnel::proto::tunnel::{DescribeResponse, DialCode, Open};
use culvert_tunnel::{
    AgentTunnel, AgentTunnelState, Backend, Backends, Budget, DEFAULT_MAX_STREAMS,
    DEFAULT_STREAM_WINDOW, DialFailure, MovableStreams, ReadAhead, STREAMS_IN_LIFE, StreamEnd,
    TunnelError, tune,
};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::echo::echo;

/// The same limit as in the real agent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The proxy's agent port
    #[arg(long)]
    proxy: SocketAddr,
    /// The authority that the proxy uses, and its key: every agent's certificate is made with it
    #[arg(long)]
    ca_cert: PathBuf,
    #[arg(long)]
    ca_key: PathBuf,
    /// How many agents
    #[arg(long)]
    count: usize,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let greeter = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let authority = Authority::read(&args)?;
    let mut tasks = JoinSet::new();
    for number in 0..args.count {
        let name = format!("node-{number:04}");
        let tls = TlsConnector::from(Arc::new(authority.settings_of(&name)?));
        let backends = Arc::new(Greeter {
            name,
            address: greeter.local_addr()?,
        });
        tasks.spawn(
            Agent {
                proxy: args.proxy,
                tls,
                backends,
            }
            .run(),
        );
    }
    crate::ready()?;
    greet(greeter).await
}

/// An operator's authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    roots: Arc<RootCertStore>,
}

impl Authority {
    fn read(args: &Args) -> Result<Self> {
        let pem = std::fs::read_to_string(&args.ca_cert)
            .with_context(|| args.ca_cert.display().to_string())?;
        let key = std::fs::read_to_string(&args.ca_key)
            .with_context(|| args.ca_key.display().to_string())?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes())?)?;
        let issuer = Issuer::from_ca_cert_pem(&pem, KeyPair::from_pem(&key)?)?;
        Ok(Self {
            issuer,
            roots: Arc::new(roots),
        })
    }

    fn settings_of(&self, node: &str) -> Result<ClientConfig> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![node.to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut settings = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.roots.clone())
            .with_client_auth_cert(vec![certificate.der().clone()], key)?;
        settings.alpn_protocols = vec![ALPN_TUNNEL.to_vec()];
        Ok(settings)
    }
}

type Connection = TlsStream<ReadAhead<TcpStream>>;

/// One agent with one tunnel.
struct Agent {
    proxy: SocketAddr,
    tls: TlsConnector,
    backends: Arc<Greeter>,
}

impl Agent {
    async fn run(self) {
        let mut backoff = Backoff::for_tunnels();
        loop {
            let (wait, error) = match self.connect().await {
                Ok(connection) => {
                    let started = Instant::now();
                    let error = self.serve(connection).await.err().map(anyhow::Error::new);
                    (backoff.wait_after(started.elapsed()), error)
                }
                Err(error) => (backoff.wait(), Some(error)),
            };
            eprintln!(
                "{}: {:#}; again in {wait:?}",
                self.backends.name,
                error.unwrap_or_else(|| anyhow::anyhow!("the tunnel is over"))
            );
            tokio::time::sleep(wait).await;
        }
    }

    async fn connect(&self) -> Result<Connection> {
        let name = ServerName::try_from(PROXY_SERVER_NAME)?;
        let connecting = async {
            let socket = TcpStream::connect(self.proxy).await?;
            tune(&socket)?;
            self.tls.connect(name, ReadAhead::new(socket)).await
        };
        Ok(timeout(CONNECT_TIMEOUT, connecting)
            .await
            .context("no answer in time")??)
    }

    async fn serve(&self, connection: Connection) -> Result<(), TunnelError> {
        let socket_state = connection.get_ref().0.socket_state();
        let state = AgentTunnelState::default();
        self.tunnel()
            .serve(
                connection,
                socket_state,
                state,
                self.backends.clone(),
                std::future::pending(),
            )
            .await
    }

    fn tunnel(&self) -> AgentTunnel {
        AgentTunnel {
            stream_window: DEFAULT_STREAM_WINDOW,
            max_streams: DEFAULT_MAX_STREAMS,
            streams_in_life: STREAMS_IN_LIFE,
            budget: Budget::new(128 << 20),
            movable: MovableStreams::default(),
            describe: DescribeResponse {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                instance: self.backends.name.clone(),
                ..DescribeResponse::default()
            },
        }
    }
}

/// The backend of every port of a node.
struct Greeter {
    name: String,
    address: SocketAddr,
}

impl Backends for Greeter {
    async fn dial(&self, _open: &Open) -> Result<Backend, DialFailure> {
        let dialled = async {
            let mut backend = TcpStream::connect(self.address).await?;
            // `greet` reads it, not the client.
            backend
                .write_all(format!("{}\n", self.name).as_bytes())
                .await?;
            std::io::Result::Ok(backend.into())
        };
        dialled.await.map_err(|error| DialFailure {
            code: DialCode::Failed,
            message: error.to_string(),
        })
    }

    fn stream_ended(&self, _open: &Open, _end: &StreamEnd) {}
}

async fn greet(listener: TcpListener) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (backend, _) = listener.accept().await?;
        connections.spawn(async move {
            let mut backend = BufReader::new(backend);
            let mut name = String::new();
            backend.read_line(&mut name).await?;
            let mut backend = backend.into_inner();
            backend
                .write_all(format!("hello from {name}").as_bytes())
                .await?;
            echo(backend).await
        });
        while connections.try_join_next().is_some() {}
    }
}
