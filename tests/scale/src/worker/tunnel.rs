//! One tunnel of an agent, set up and kept as the real agent does (`agent/src/tunnels/slot.rs`):
//! the same limits of time, the same back-off, the same end of the protocol.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_api::{PROXY_SERVER_NAME, REFUSED, busy};
use culvert_daemon::{Backoff, jittered};
use culvert_tunnel::proto::tunnel::{DescribeResponse, DialCode, Open};
use culvert_tunnel::{
    AgentTunnel, AgentTunnelState, Backend, Backends, Budget, DEFAULT_MAX_STREAMS,
    DEFAULT_STREAM_WINDOW, DialFailure, MovableStreams, ReadAhead, STREAMS_IN_LIFE, StreamEnd,
    TunnelError, tune,
};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::counts::{Counts, Failure};

/// To connect, with TLS; and again until the proxy uses the tunnel.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of HTTP/2's preface.
const PREFACE: usize = 24;
/// As the agent waits after a refusal of its certificate.
const REFUSED_WAIT: Duration = Duration::from_secs(60);

type Connection = BufReader<TlsStream<ReadAhead<TcpStream>>>;

/// Why an attempt failed, and what follows.
enum Failed {
    /// The proxy says from when to when to come again.
    Busy([Duration; 2]),
    Otherwise(Failure),
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self::Otherwise(failure)
    }
}

impl Failed {
    fn kind(&self) -> Failure {
        match self {
            Self::Busy(_) => Failure::Busy,
            Self::Otherwise(failure) => *failure,
        }
    }
}

/// A tunnel of an agent.
pub(crate) struct Tunnel {
    pub(crate) proxy: SocketAddr,
    /// The address that the agent dials from, if it is not the loopback's own. Only then is the
    /// port chosen before the proxy is known, and one address has no more than 28,000.
    pub(crate) source: Option<IpAddr>,
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) describe: DescribeResponse,
    pub(crate) budget: Budget,
    pub(crate) counts: Arc<Counts>,
}

impl Tunnel {
    /// Sets the tunnel up again and again.
    pub(crate) async fn run(self) {
        let mut backoff = Backoff::for_tunnels();
        let mut lost = Instant::now();
        loop {
            let wait = match self.establish().await {
                Ok(connection) => {
                    self.counts.up(lost.elapsed());
                    let started = Instant::now();
                    // Its end is what counts: the next one has to be set up.
                    drop(self.serve(connection).await);
                    self.counts.down();
                    lost = Instant::now();
                    let life = started.elapsed();
                    if life < Duration::from_secs(1) {
                        self.counts.failed(Failure::ShortLived);
                    }
                    backoff.wait_after(life)
                }
                Err(failure) => {
                    self.counts.failed(failure.kind());
                    match failure {
                        Failed::Busy([from, to]) => from + jittered(to - from),
                        Failed::Otherwise(Failure::Refused) => REFUSED_WAIT,
                        Failed::Otherwise(_) => backoff.wait(),
                    }
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn establish(&self) -> Result<Connection, Failed> {
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let tls = connected.map_err(|_| Failed::Otherwise(Failure::TimedOut))??;
        let mut connection = BufReader::with_capacity(PREFACE, tls);
        let first = timeout(CONNECT_TIMEOUT, connection.fill_buf()).await;
        match first.map_err(|_| Failure::TimedOut)? {
            Ok([]) => Err(Failure::Dismissed.into()),
            Ok(bytes) if bytes.starts_with(REFUSED.as_bytes()) => Err(Failure::Refused.into()),
            Ok(_) => Ok(connection),
            Err(error) => Err(failure(&error)),
        }
    }

    fn socket(&self) -> io::Result<TcpSocket> {
        let socket = TcpSocket::new_v4()?;
        if let Some(source) = self.source {
            socket.bind(SocketAddr::new(source, 0))?;
        }
        Ok(socket)
    }

    async fn connect(&self) -> Result<TlsStream<ReadAhead<TcpStream>>, Failed> {
        let socket = self.socket().map_err(|_| Failure::Unreachable)?;
        let socket = socket.connect(self.proxy).await.map_err(|error| {
            if error.kind() == io::ErrorKind::TimedOut {
                Failure::TimedOut
            } else {
                Failure::Unreachable
            }
        })?;
        tune(&socket).map_err(|_| Failure::Unreachable)?;
        let name = ServerName::try_from(PROXY_SERVER_NAME).map_err(|_| Failure::Tls)?;
        TlsConnector::from(self.tls.clone())
            .connect(name, ReadAhead::new(socket))
            .await
            .map_err(|error| failure(&error))
    }

    async fn serve(&self, connection: Connection) -> Result<(), TunnelError> {
        let tunnel = AgentTunnel {
            stream_window: DEFAULT_STREAM_WINDOW,
            max_streams: DEFAULT_MAX_STREAMS,
            streams_in_life: STREAMS_IN_LIFE,
            budget: self.budget.clone(),
            movable: MovableStreams::default(),
            describe: self.describe.clone(),
        };
        let socket_state = connection.get_ref().get_ref().0.socket_state();
        let state = AgentTunnelState::default();
        let backends = Arc::new(NoBackend);
        tunnel
            .serve(
                connection,
                socket_state,
                state,
                backends,
                std::future::pending(),
            )
            .await
    }
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "only this alert has a meaning of its own"
)]
fn failure(error: &io::Error) -> Failed {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::AlertReceived(AlertDescription::Unknown(description))) => {
            busy::times(*description).map_or(Failed::Otherwise(Failure::Tls), Failed::Busy)
        }
        Some(rustls::Error::AlertReceived(AlertDescription::InternalError)) => Failure::Busy.into(),
        Some(_) => Failure::Tls.into(),
        None => Failure::Dismissed.into(),
    }
}

/// Nothing is dialled here.
struct NoBackend;

impl Backends for NoBackend {
    async fn dial(&self, _open: &Open) -> Result<Backend, DialFailure> {
        Err(DialFailure {
            code: DialCode::Failed,
            message: "no backend".to_owned(),
        })
    }

    fn stream_ended(&self, _open: &Open, _end: &StreamEnd) {}
}
