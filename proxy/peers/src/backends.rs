//! Streams of other proxies: each goes on into a tunnel of its node that ends here, and nowhere
//! else.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use culvert_api::NodeName;
use culvert_proxy_streams::limits::MAX_STREAMS_PER_AGENT;
use culvert_proxy_streams::live::Forwarded;
use culvert_proxy_streams::registry::Candidate;
use culvert_tunnel::proto::tunnel::{DialCode, DialProxyRequest, Open};
use culvert_tunnel::{Backend, Backends, DialFailure, StreamEnd, ThroughTunnel};
use parking_lot::Mutex;

use super::Peers;

/// The backends of one link from another proxy.
pub(super) struct PeerBackends {
    peers: Arc<Peers>,
    peer: SocketAddr,
    /// The streams under way, by their numbers at the other proxy.
    forwarded: Mutex<HashMap<u64, Forwarded>>,
    /// Held while an agent is asked for tunnels to the other proxy.
    asking: tokio::sync::Mutex<()>,
}

impl PeerBackends {
    pub(super) fn new(peers: Arc<Peers>, peer: SocketAddr) -> Self {
        Self {
            peers,
            peer,
            forwarded: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    fn choose(&self, open: &Open) -> Result<ThroughTunnel, DialFailure> {
        if open.hops != 1 {
            return Err(failure(
                DialCode::Invalid,
                "a stream passes one other proxy at most".to_owned(),
            ));
        }
        let node: NodeName = open
            .node
            .parse()
            .map_err(|error| failure(DialCode::Invalid, format!("{error}")))?;
        let mut tunnels = Vec::new();
        for candidate in self.peers.registry.candidates(&node) {
            if let Candidate::Agent(registered) = candidate {
                tunnels.push(registered.tunnel.clone());
            }
        }
        let Some(tunnel) = tunnels.first() else {
            let host = &self.peers.own.host;
            let message = format!("proxy {host} has no tunnel of {node}");
            return Err(failure(DialCode::Offline, message));
        };
        let streams: u32 = tunnels.iter().map(|tunnel| tunnel.streams()).sum();
        if streams >= MAX_STREAMS_PER_AGENT {
            let message = format!("{node} has {MAX_STREAMS_PER_AGENT} streams");
            return Err(failure(DialCode::TooManyStreams, message));
        }
        Ok(ThroughTunnel {
            tunnel: tunnel.clone(),
            open: open.clone(),
        })
    }
}

impl Backends for PeerBackends {
    async fn dial(&self, open: &Open) -> Result<Backend, DialFailure> {
        let through = self.choose(open)?;
        let forwarded = self.peers.streams.forward();
        self.forwarded.lock().insert(open.stream, forwarded);
        Ok(Backend::Agent(Box::new(through)))
    }

    /// One request of a link at a time is passed on: the other proxy repeats what is lost.
    async fn request_tunnels_to(&self, request: DialProxyRequest) {
        let Ok(_asking) = self.asking.try_lock() else {
            return;
        };
        let Ok(node) = request.node.parse::<NodeName>() else {
            return;
        };
        let Some(registered) = self.peers.registry.preferred(&node) else {
            return;
        };
        if let Err(error) = registered.tunnel.dial_proxy(&request).await {
            let reason = culvert_daemon::chain(&error);
            tracing::debug!(%node, reason, "ask an agent for tunnels to a peer");
        }
    }

    fn stream_ended(&self, open: &Open, end: &StreamEnd) {
        self.forwarded.lock().remove(&open.stream);
        let result = end.result.as_ref();
        tracing::info!(
            stream = open.stream,
            peer.addr = %self.peer,
            original_dst = open.original_dst,
            node = open.node,
            bytes_to_backend = end.out_of_tunnel,
            bytes_to_client = end.into_tunnel,
            duration_s = end.duration.as_secs_f64(),
            reason = result.err().map(|error| culvert_daemon::chain(error)),
            "stream of another proxy ended"
        );
    }
}

fn failure(code: DialCode, message: String) -> DialFailure {
    DialFailure { code, message }
}
