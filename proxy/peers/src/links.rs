//! Links to a peer: tunnels between two proxies, which carry streams for nodes of the other one.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::ALPN_TUNNEL;
use culvert_daemon::{Backoff, Problem, VERSION, chain};
use culvert_proxy_core::instance::Instance;
use culvert_proxy_streams::peers::PeerInfo;
use culvert_tunnel::TunnelError;
use culvert_tunnel::proto::tunnel::DescribeRequest;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Peers;
use super::dial::{DialError, dial};

/// Links to one peer. With one, all streams between two proxies would share one thread and one
/// connection's losses.
const LINKS: usize = 2;

/// Why a link is not up.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the link ended")]
    Tunnel(#[from] TunnelError),
    #[error("another proxy is at the address now")]
    OtherProxy,
}

/// Sets up the links to `peer`, again and again, until the set is dropped.
pub(super) fn spawn_links(peers: &Arc<Peers>, address: SocketAddr, peer: &PeerInfo) -> JoinSet<()> {
    let mut links = JoinSet::new();
    for _ in 0..LINKS {
        let link = reconnect_link(peers.clone(), address, peer.clone());
        links.spawn_on(link, peers.workers.next().handle());
    }
    links
}

async fn reconnect_link(peers: Arc<Peers>, address: SocketAddr, peer: PeerInfo) {
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
    let mut problem = Problem::default();
    loop {
        let started = Instant::now();
        let ended = run_link(&peers, address, &peer).await;
        let reason = ended.err().map(|error| chain(&error));
        if let Some(reason) = problem.record(reason) {
            tracing::warn!(peer.addr = %address, peer = %peer.instance, reason, "link to a peer");
        }
        tokio::time::sleep(backoff.wait_after(started.elapsed())).await;
    }
}

/// Sets up one link, and serves it to its end.
async fn run_link(peers: &Peers, address: SocketAddr, peer: &PeerInfo) -> Result<(), LinkError> {
    let connection = dial(peers, address, ALPN_TUNNEL).await?;
    let socket_state = connection.get_ref().0.socket_state();
    let (tunnel, driver) = peers.link(peer).establish(connection, socket_state).await?;
    let mut driven = pin!(driver.run());
    let request = DescribeRequest {
        version: VERSION.to_owned(),
        instance: peers.own.instance.to_string(),
    };
    let described = tokio::select! {
        described = tunnel.describe(&request) => described?,
        ended = &mut driven => return Ok(ended?),
    };
    if Instance::from(described.instance.as_str()) != peer.instance {
        return Err(LinkError::OtherProxy);
    }
    let Some(_registered) = peers.registry.register_link(&peer.instance, tunnel) else {
        return Err(LinkError::OtherProxy);
    };
    Ok(driven.await?)
}
