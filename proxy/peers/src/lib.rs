//! The other proxies of the installation. Each proxy dials every other one: it watches which
//! tunnels end there and what was revoked, and opens streams for nodes that have none here.
//! Without a cluster one of them, the primary, has the nodes, VIPs and tokens. The others follow it.
#![forbid(unsafe_code)]

mod addresses;
mod backends;
mod calls;
mod connected;
mod contact;
mod dial;
mod follow;
mod links;
mod port;
mod primary;
mod service;
mod wire;

use std::sync::Arc;

use culvert_api::proto::enroll::JoinRequest;
use culvert_daemon::{Drain, VERSION, Workers};
use culvert_proxy_core::instance::Instance;
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::peers::PeerInfo;
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::sockets::listen::AgentTarget;
use culvert_proxy_trust::Trust;
use culvert_tunnel::{Budget, FarEnd, ProxyTunnel, STREAMS_IN_LIFE};
use tokio::sync::watch::Receiver;

pub use addresses::PeerAddresses;
pub use calls::{Calls, Grpc};
pub use connected::{ConnectedPeers, JoinAnswer};
pub use contact::follow_contact;
pub use port::PeerPort;
pub use primary::{Primary, PrimaryClient};

/// Streams that one link between two proxies carries at once.
const STREAMS_PER_LINK: u32 = 16 << 10;

/// What is needed to reach peers, and to be reached by them.
pub struct Peers {
    /// What this proxy says about itself.
    pub own: PeerInfo,
    /// Who is who.
    pub trust: Trust,
    /// The tunnels.
    pub registry: Registry,
    /// The open connections.
    pub streams: Streams,
    /// The threads that serve connections.
    pub workers: Arc<Workers>,
    /// The memory in which data may wait.
    pub budget: Budget,
    /// Bytes that one stream may have under way.
    pub stream_window: u32,
    /// Where agents are to go. When it is elsewhere, peers learn that this proxy drains.
    pub agents: Receiver<AgentTarget>,
    /// Starts when the program is about to end.
    pub drain: Drain,
    /// The peers that are connected now.
    pub connected: ConnectedPeers,
    /// The proxy of `--follow`.
    pub primary: Option<Arc<Primary>>,
}

impl Peers {
    /// Asks the peers for a certificate in exchange for a token that this proxy does not know.
    pub async fn join(&self, request: &JoinRequest) -> JoinAnswer {
        let answer = self.connected.join(request).await;
        if let JoinAnswer::Unknown = answer
            && let Some(primary) = &self.primary
            && self.connected.primary().is_none()
        {
            return JoinAnswer::Answered(Err(primary.unavailable()));
        }
        answer
    }

    /// The near end of a link to a peer.
    fn link(&self, peer: &PeerInfo) -> ProxyTunnel {
        ProxyTunnel {
            far_end: FarEnd::Proxy,
            stream_window: self.stream_window,
            max_streams: STREAMS_PER_LINK,
            streams_in_life: STREAMS_IN_LIFE,
            budget: self.budget.of(&peer.host),
        }
    }
}

/// What this proxy says about itself.
pub fn own_info(instance: Instance, addresses: Vec<String>) -> PeerInfo {
    let host = nix::unistd::gethostname().unwrap_or_default();
    PeerInfo {
        instance,
        host: host.to_string_lossy().into_owned(),
        version: VERSION.to_owned(),
        addresses,
        certificate_ends: None,
    }
}
