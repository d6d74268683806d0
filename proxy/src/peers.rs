//! The other proxies of the installation. Each proxy dials every other one: it watches which
//! tunnels end there, and opens streams for nodes that have none here.

mod addresses;
mod backends;
mod dial;
mod follow;
mod port;
mod watch;

use std::sync::Arc;

use culvert_daemon::{Drain, VERSION, Workers};
use culvert_tunnel::{Budget, FarEnd, ProxyTunnel, STREAMS_IN_LIFE};

use crate::instance::Instance;
use crate::streams::elsewhere::PeerInfo;
use crate::streams::live::Streams;
use crate::streams::registry::Registry;
use crate::trust::Trust;

pub(crate) use addresses::PeerAddresses;
pub(crate) use port::PeerPort;

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
    pub(crate) drain: Drain,
}

impl Peers {
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
