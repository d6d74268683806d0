//! The other proxies of the installation. Each proxy dials every other one: it watches which
//! tunnels end there and what was revoked, and opens streams for nodes that have none here.
//! Without a cluster one of them, the primary, has the nodes, VIPs and tokens. The others follow it.

mod addresses;
mod backends;
mod calls;
mod contact;
mod dial;
mod follow;
mod port;
mod primary;
mod reached;
mod watch;
mod wire;

use std::sync::Arc;

use culvert_api::proto::enroll::JoinRequest;
use culvert_daemon::{Drain, VERSION, Workers};
use culvert_tunnel::{Budget, FarEnd, ProxyTunnel, STREAMS_IN_LIFE};
use tokio::sync::watch::Receiver;

use crate::sockets::listen::AgentsGo;
use crate::instance::Instance;
use crate::streams::elsewhere::PeerInfo;
use crate::streams::live::Streams;
use crate::streams::registry::Registry;
use crate::trust::Trust;

pub(crate) use addresses::PeerAddresses;
pub(crate) use calls::{Calls, Grpc};
pub(crate) use contact::follow_contact;
pub(crate) use port::PeerPort;
pub(crate) use primary::{Primary, PrimaryClient};
pub(crate) use reached::{Asked, Reached};

/// Streams that one link between two proxies carries at once.
const STREAMS_PER_LINK: u32 = 16 << 10;

/// What is needed to reach peers, and to be reached by them.
pub(crate) struct Peers {
    pub(crate) own: PeerInfo,
    pub(crate) trust: Trust,
    pub(crate) registry: Registry,
    pub(crate) streams: Streams,
    pub(crate) workers: Arc<Workers>,
    pub(crate) budget: Budget,
    pub(crate) stream_window: u32,
    /// Peers are told that this proxy is about to end when agents are.
    pub(crate) agents: Receiver<AgentsGo>,
    pub(crate) drain: Drain,
    pub(crate) reached: Reached,
    /// The proxy of `--follow`.
    pub(crate) primary: Option<Arc<Primary>>,
}

impl Peers {
    /// Asks the peers for a certificate in exchange for a token that this proxy does not know.
    pub(crate) async fn join(&self, request: &JoinRequest) -> Asked {
        let asked = self.reached.join(request).await;
        match (&asked, &self.primary) {
            (Asked::Unknown, Some(primary)) if self.reached.primary().is_none() => {
                Asked::Answered(Err(primary.unanswered()))
            }
            _ => asked,
        }
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
pub(crate) fn own_info(instance: Instance, addresses: Vec<String>) -> PeerInfo {
    let host = nix::unistd::gethostname().unwrap_or_default();
    PeerInfo {
        instance,
        host: host.to_string_lossy().into_owned(),
        version: VERSION.to_owned(),
        addresses,
        certificate_ends: None,
    }
}
