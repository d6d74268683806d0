//! One slot: sets a tunnel up, serves it, and when it ends sets up the next, for ever.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::ALPN_TUNNEL;
use culvert_daemon::{Backoff, Drain, VERSION, jittered};
use culvert_tunnel::proto::tunnel::DescribeResponse;
use culvert_tunnel::{AgentTunnel, AgentTunnelState, Budget, DEFAULT_MAX_STREAMS, TunnelError};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::backends::allow_list::DialRules;
use crate::backends::dial::{NodeBackends, own_addresses};
use crate::certificate::current::Certificates;
use crate::certificate::identity::Identity;
use crate::dial::connect::{CONNECT_TIMEOUT, ConnectError, Connection, connect};
use crate::dial::outbound::Outbound;
use crate::dial::tls::{self, TlsError};
use crate::metrics::{AttemptOutcome, Metrics};
use crate::tunnels::states::{SlotEntry, SlotName};

/// Bytes of HTTP/2's preface: enough to see that the proxy took the tunnel.
const PREFACE: usize = 24;
/// What a proxy sends in place of HTTP/2's preface when it does not take the node: this word, the
/// reason, and a line end.
const REFUSED: &[u8] = culvert_api::REFUSED.as_bytes();
/// How long a worn-out tunnel still takes new streams once the next one is up: longer than the
/// proxy takes to see that.
const OVERLAP: Duration = Duration::from_secs(5);
/// Worn-out tunnels of a slot that may still have streams; with more, the next one is used for
/// longer.
const WORN_OUT_MAX: usize = 8;
/// An agent whose certificate is refused needs a person; asking often would only fill logs.
const REFUSED_WAIT: Duration = Duration::from_secs(60);
/// Longest reason that is read.
const REASON_MAX: u64 = 512;

/// What all slots share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) outbound: Arc<Outbound>,
    pub(crate) allow: Arc<DialRules>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stream_window: u32,
    pub(crate) budget: Budget,
    pub(crate) keepalive: Duration,
    /// Of each tunnel, before another one takes its place.
    pub(crate) streams_in_life: u32,
    /// Random for each run of the agent.
    pub(crate) instance: String,
    /// Told when a proxy does not take this agent's certificate.
    pub(crate) refused: Arc<Notify>,
}

/// Why there is no tunnel (any more).
#[derive(Debug, thiserror::Error)]
enum SlotError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the proxy does not take this node: {0}")]
    Refused(String),
    #[error("the proxy closed the tunnel before using it; its log says why")]
    Dismissed,
    #[error("the proxy did not begin to use the tunnel in time")]
    Unused,
    #[error("the tunnel ended")]
    Tunnel(#[from] TunnelError),
}

impl SlotError {
    fn is_refusal(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_refusal(),
            Self::Tls(error) => matches!(error, TlsError::Refused(_)),
            Self::Refused(_) => true,
            Self::Dismissed | Self::Unused | Self::Tunnel(_) => false,
        }
    }

    /// How long the next attempt waits, after an attempt of this length.
    fn wait(&self, life: Duration, backoff: &mut Backoff) -> Duration {
        if self.is_refusal() {
            backoff.reset();
            return jittered(REFUSED_WAIT);
        }
        match self {
            Self::Tunnel(_) => backoff.wait_after(life),
            Self::Connect(_) | Self::Tls(_) | Self::Refused(_) | Self::Dismissed | Self::Unused => {
                backoff.wait()
            }
        }
    }

    /// Label for metrics; none for a tunnel that was up.
    fn outcome(&self) -> Option<AttemptOutcome> {
        match self {
            Self::Tunnel(_) => None,
            _ if self.is_refusal() => Some(AttemptOutcome::Refused),
            Self::Connect(ConnectError::Outbound { .. }) => Some(AttemptOutcome::Unreachable),
            Self::Connect(ConnectError::Tls { .. }) | Self::Tls(_) => Some(AttemptOutcome::Tls),
            Self::Refused(_) => Some(AttemptOutcome::Refused),
            Self::Dismissed => Some(AttemptOutcome::Dismissed),
            Self::Connect(ConnectError::TimedOut { .. }) | Self::Unused => {
                Some(AttemptOutcome::TimedOut)
            }
        }
    }
}

/// How a tunnel's life in its slot ended well.
enum End {
    Drained,
    /// Its certificate was renewed, or it has carried all that it may: it goes on beside the next
    /// one for as long as it has streams, and no longer than its certificate.
    WornOut,
}

/// A tunnel at work, to its end.
type Serving = Pin<Box<dyn Future<Output = Result<(), TunnelError>> + Send>>;

/// A slot's earlier tunnels. Each takes new streams until another one is up, then it ends with its
/// streams.
#[derive(Default)]
struct WornOut {
    serving: JoinSet<()>,
    replaced: Vec<Arc<Notify>>,
}

impl WornOut {
    fn is_empty(&self) -> bool {
        self.serving.is_empty()
    }

    fn has_room(&mut self) -> bool {
        while self.serving.try_join_next().is_some() {}
        self.serving.len() < WORN_OUT_MAX
    }

    fn add(&mut self, serving: Serving, replaced: Arc<Notify>) {
        self.replaced.push(replaced);
        self.serving.spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "a worn-out tunnel ended");
            }
        });
    }

    /// The slot's next tunnel is up.
    fn are_replaced(&mut self) {
        self.replaced
            .drain(..)
            .for_each(|tunnel| tunnel.notify_one());
    }

    /// Waits for their streams to end.
    async fn end(&mut self) {
        while self.serving.join_next().await.is_some() {}
    }
}

/// When a tunnel has to go: when the agent drains, or when another one has been in its place for a
/// while.
async fn leave(drain: Drain, replaced: Arc<Notify>) {
    let replaced = async {
        replaced.notified().await;
        tokio::time::sleep(OVERLAP).await;
    };
    tokio::select! {
        () = drain.begun() => {}
        () = replaced => {}
    }
}

/// One slot.
pub(crate) struct TunnelSlot {
    pub(crate) name: SlotName,
    pub(crate) shared: Arc<Shared>,
    pub(crate) entry: SlotEntry,
}

impl TunnelSlot {
    /// Keeps a tunnel until the drain begins.
    pub(crate) async fn run(self, drain: Drain) {
        let mut worn_out = WornOut::default();
        self.keep(&drain, &mut worn_out).await;
        worn_out.end().await;
    }

    async fn keep(&self, drain: &Drain, worn_out: &mut WornOut) {
        let mut backoff = Backoff::for_tunnels();
        let mut changes = self.shared.certificates.changes();
        while !drain.has_begun() {
            changes.mark_unchanged();
            let started = Instant::now();
            if worn_out.is_empty() {
                self.entry.connecting();
            }
            let error = match self.live(drain, worn_out).await {
                Ok(End::Drained) => return,
                Ok(End::WornOut) => continue,
                Err(error) => error,
            };
            if drain.has_begun() {
                return;
            }
            let wait = error.wait(started.elapsed(), &mut backoff);
            self.report(&error, wait);
            if error.is_refusal() {
                self.shared.refused.notify_one();
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A new certificate is what was missing.
                Ok(()) = changes.changed(), if error.is_refusal() => {}
                () = drain.begun() => return,
            }
        }
    }

    /// One tunnel's life in this slot.
    async fn live(&self, drain: &Drain, worn_out: &mut WornOut) -> Result<End, SlotError> {
        let identity = self.shared.certificates.refresh();
        let connection = tokio::select! {
            connection = self.establish(&identity) => connection?,
            () = drain.begun() => return Ok(End::Drained),
        };
        worn_out.are_replaced();
        let last_read = connection.get_ref().get_ref().0.last_read();
        let state = AgentTunnelState::new(self.shared.metrics.transferred.clone());
        let up = self.shared.metrics.tunnel();
        self.entry.up(state.clone());
        tracing::info!(node = %identity.node, tunnel = %self.name, "tunnel up");
        let backends = NodeBackends::new(
            identity.node.clone(),
            self.shared.allow.clone(),
            self.shared.metrics.clone(),
        );
        let (tunnel, replaced) = (self.tunnel(), Arc::<Notify>::default());
        let (served, leave) = (state.clone(), leave(drain.clone(), replaced.clone()));
        let mut serving: Serving = Box::pin(async move {
            let _up = up;
            tunnel
                .serve(connection, last_read, served, Arc::new(backends), leave)
                .await
        });
        tokio::select! {
            served = &mut serving => served?,
            () = self.renewed(&identity), if worn_out.has_room() => {
                tracing::info!(
                    node = %identity.node,
                    tunnel = %self.name,
                    "certificate renewed; another tunnel takes this one's place"
                );
                worn_out.add(serving, replaced);
                return Ok(End::WornOut);
            }
            () = state.worn_out(), if worn_out.has_room() => {
                tracing::info!(
                    node = %identity.node,
                    tunnel = %self.name,
                    "tunnel worn out; another takes its place"
                );
                worn_out.add(serving, replaced);
                return Ok(End::WornOut);
            }
        }
        Ok(End::Drained)
    }

    /// Completes once there is another certificate: a tunnel ends with the one that it was set up
    /// by.
    async fn renewed(&self, identity: &Identity) {
        let mut changes = self.shared.certificates.changes();
        if changes
            .wait_for(|current| current.chain != identity.chain)
            .await
            .is_err()
        {
            std::future::pending().await
        }
    }

    async fn establish(&self, identity: &Identity) -> Result<BufReader<Connection>, SlotError> {
        let config = tls::mutual(identity, ALPN_TUNNEL)?;
        let outbound = self.shared.outbound.for_tunnel(self.name.number);
        let connection =
            connect(&outbound, &self.name.proxy, config, &identity.server_name).await?;
        taken(connection, &identity.server_name).await
    }

    fn tunnel(&self) -> AgentTunnel {
        let addresses = own_addresses(&self.shared.allow)
            .map(|own| own.0.iter().map(ToString::to_string).collect());
        AgentTunnel {
            stream_window: self.shared.stream_window,
            max_streams: DEFAULT_MAX_STREAMS,
            streams_in_life: self.shared.streams_in_life,
            budget: self.shared.budget.of(&self.name.proxy.to_string()),
            describe: DescribeResponse {
                version: VERSION.to_owned(),
                instance: self.shared.instance.clone(),
                slot: self.name.to_string(),
                addresses: addresses.unwrap_or_default(),
                allowed: self.shared.allow.reported(),
                keepalive_seconds: u32::try_from(self.shared.keepalive.as_secs())
                    .unwrap_or(u32::MAX),
                ..DescribeResponse::default()
            },
        }
    }

    fn report(&self, error: &SlotError, wait: Duration) {
        if let Some(outcome) = error.outcome() {
            self.shared.metrics.tunnel_attempt(outcome);
        }
        let text = culvert_daemon::chain(error);
        let retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        if self.entry.waiting(&text) {
            tracing::warn!(tunnel = %self.name, reason = text, retry_ms, "no tunnel; trying again");
        } else {
            tracing::debug!(
                tunnel = %self.name,
                reason = text,
                retry_ms,
                "no tunnel; trying again"
            );
        }
    }
}

/// Waits for the proxy's first bytes. In TLS 1.3 a client's handshake is done before the server has
/// looked at its certificate: only now is it known whether the proxy takes this agent.
async fn taken(
    connection: Connection,
    server_name: &ServerName<'_>,
) -> Result<BufReader<Connection>, SlotError> {
    let mut connection = BufReader::with_capacity(PREFACE, connection);
    let first = timeout(CONNECT_TIMEOUT, connection.fill_buf())
        .await
        .map_err(|_| SlotError::Unused)?;
    match first {
        Ok([]) => Err(SlotError::Dismissed),
        Ok(bytes) if bytes.starts_with(REFUSED) => Err(refusal(connection).await),
        Ok(_) => Ok(connection),
        Err(error) if is_hang_up(&error) => Err(SlotError::Dismissed),
        Err(error) => Err(TlsError::of(error, server_name).into()),
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
    )
}

async fn refusal(connection: BufReader<Connection>) -> SlotError {
    let mut line = Vec::new();
    let mut limited = connection.take(REASON_MAX);
    // Whatever came of the line in time is the reason.
    let _whole = timeout(CONNECT_TIMEOUT, limited.read_until(b'\n', &mut line)).await;
    let text = String::from_utf8_lossy(line.strip_prefix(REFUSED).unwrap_or(&line)).into_owned();
    SlotError::Refused(text.trim().replace(char::is_control, " "))
}

#[cfg(test)]
impl Shared {
    /// What an agent of node `edge-1` shares that joined at `proxy`.
    pub(crate) fn for_tests(proxy: &crate::test_proxy::TestProxy, state: &std::path::Path) -> Self {
        let state = crate::certificate::store::StateDir::new(state);
        state
            .store_join(
                &proxy.identity("edge-1"),
                std::slice::from_ref(&proxy.address),
            )
            .unwrap();
        let source = crate::certificate::current::Source::Joined {
            state,
            server_name: None,
        };
        Self {
            certificates: Arc::new(Certificates::load(source).unwrap()),
            outbound: Arc::new(Outbound::from_environment(|_| None).unwrap()),
            allow: Arc::default(),
            metrics: Arc::default(),
            stream_window: culvert_tunnel::DEFAULT_STREAM_WINDOW,
            budget: culvert_tunnel::Budget::new(1 << 20),
            keepalive: culvert_tunnel::DEFAULT_KEEPALIVE,
            streams_in_life: culvert_tunnel::STREAMS_IN_LIFE,
            instance: "test".to_owned(),
            refused: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests;
