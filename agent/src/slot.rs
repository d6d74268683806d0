//! One tunnel's place: sets a tunnel up, serves it, and when it ends sets up the next, for ever.

use std::sync::Arc;
use std::time::Duration;

use culvert_daemon::{Drain, VERSION};
use culvert_tunnel::proto::tunnel::DescribeResponse;
use culvert_tunnel::{ALPN_TUNNEL, AgentTunnel, AgentTunnelState, DEFAULT_MAX_STREAMS, TunnelError};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::{Instant, timeout};

use crate::allow::AllowList;
use crate::backends::{NodeBackends, own_addresses};
use crate::backoff::{Backoff, Ended};
use crate::certificates::Certificates;
use crate::connect::{CONNECT_TIMEOUT, ConnectError, Connection, connect};
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::outbound::Outbound;
use crate::proxy_address::ProxyAddress;
use crate::tls::{self, TlsError};
use crate::tunnels::{Place, SlotName};

/// Bytes of HTTP/2's preface: enough to see that the proxy took the tunnel.
const PREFACE: usize = 24;

/// What all slots share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) outbound: Arc<Outbound>,
    pub(crate) allow: Arc<AllowList>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stream_window: u32,
    /// Random for each run of the agent.
    pub(crate) instance: String,
}

/// Why there is no tunnel (any more).
#[derive(Debug, thiserror::Error)]
enum SlotError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the proxy closed the tunnel before using it: it does not take this node; see the proxy's log")]
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
            Self::Dismissed | Self::Unused | Self::Tunnel(_) => false,
        }
    }

    /// Label for metrics; none for a tunnel that was up.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Connect(error) => Some(error.reason()),
            Self::Tls(_) if self.is_refusal() => Some("refused"),
            Self::Tls(_) => Some("tls"),
            Self::Dismissed => Some("dismissed"),
            Self::Unused => Some("timed_out"),
            Self::Tunnel(_) => None,
        }
    }
}

/// One slot.
pub(crate) struct Slot {
    pub(crate) name: SlotName,
    pub(crate) shared: Arc<Shared>,
    pub(crate) place: Place,
}

impl Slot {
    /// Keeps a tunnel until the drain begins.
    pub(crate) async fn run(self, drain: Drain) {
        let mut backoff = Backoff::default();
        let mut changes = self.shared.certificates.changes();
        while !drain.has_begun() {
            changes.mark_unchanged();
            let started = Instant::now();
            self.place.connecting();
            let Err(error) = self.live(&drain).await else { return };
            let ended = if error.is_refusal() { Ended::Refused } else { Ended::After(started.elapsed()) };
            let wait = backoff.wait(ended);
            self.report(&error, wait);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A new certificate may be what was missing.
                Ok(()) = changes.changed() => {}
                () = drain.begun() => return,
            }
        }
    }

    /// One tunnel's life. Ends well only by the drain.
    async fn live(&self, drain: &Drain) -> Result<(), SlotError> {
        let identity = self.shared.certificates.refresh();
        let connection = tokio::select! {
            connection = self.establish(&identity) => connection?,
            () = drain.begun() => return Ok(()),
        };
        let last_read = connection.get_ref().get_ref().0.last_read();
        let state = AgentTunnelState::default();
        let _up = self.shared.metrics.tunnel();
        self.place.up(state.clone());
        tracing::info!(node = %identity.node, tunnel = %self.name, "tunnel up");
        let backends = NodeBackends::new(identity.node.clone(), self.shared.allow.clone(), self.shared.metrics.clone());
        let served = self.tunnel().serve(connection, last_read, state, Arc::new(backends), drain.begun()).await;
        Ok(served?)
    }

    async fn establish(&self, identity: &Identity) -> Result<BufReader<Connection>, SlotError> {
        let config = tls::mutual(identity, ALPN_TUNNEL)?;
        let connection = connect(&self.shared.outbound, self.proxy(), config, &identity.server_name).await?;
        taken(connection, &identity.server_name).await
    }

    fn proxy(&self) -> &ProxyAddress {
        &self.name.proxy
    }

    fn tunnel(&self) -> AgentTunnel {
        let addresses = own_addresses().map(|own| own.0.iter().map(ToString::to_string).collect());
        AgentTunnel {
            stream_window: self.shared.stream_window,
            max_streams: DEFAULT_MAX_STREAMS,
            describe: DescribeResponse {
                version: VERSION.to_owned(),
                instance: self.shared.instance.clone(),
                slot: self.name.to_string(),
                addresses: addresses.unwrap_or_default(),
            },
        }
    }

    fn report(&self, error: &SlotError, wait: Duration) {
        if let Some(reason) = error.reason() {
            self.shared.metrics.tunnel_attempt(reason);
        }
        let text = crate::chain::Chain(error).to_string();
        let retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        if self.place.waiting(&text) {
            tracing::warn!(tunnel = %self.name, reason = text, retry_ms, "no tunnel; trying again");
        } else {
            tracing::debug!(tunnel = %self.name, reason = text, retry_ms, "no tunnel; trying again");
        }
    }
}

/// Waits for the proxy's first bytes. In TLS 1.3 a client's handshake is done before the server has looked at its certificate: only
/// now is it known whether the proxy takes this agent.
async fn taken(connection: Connection, server_name: &ServerName<'_>) -> Result<BufReader<Connection>, SlotError> {
    let mut connection = BufReader::with_capacity(PREFACE, connection);
    match timeout(CONNECT_TIMEOUT, connection.fill_buf()).await {
        Ok(Ok([])) => Err(SlotError::Dismissed),
        Ok(Ok(_)) => Ok(connection),
        Ok(Err(error)) => Err(TlsError::of(error, server_name).into()),
        Err(_) => Err(SlotError::Unused),
    }
}
