//! The tunnels that end at other proxies, as these report them, and the links to these proxies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use culvert_api::NodeName;
use culvert_daemon::Worker;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::instance::Instance;
use culvert_tunnel::Tunnel;

use crate::rank::Rank;

/// What a proxy says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Which run of a proxy it is.
    pub instance: Instance,
    /// Name of its host, for people.
    pub host: String,
    /// The version of its program.
    pub version: String,
    /// Where agents may reach this very proxy.
    pub addresses: Vec<String>,
    /// When the certificate ends that it showed; `None` for this proxy, which replaces its own.
    pub certificate_ends: Option<UnixTime>,
}

/// A connection to a peer that carries streams.
pub struct PeerLink {
    pub(crate) peer: Arc<PeerInfo>,
    pub(crate) tunnel: Tunnel,
    /// The worker thread that relays the bytes of the link and of its streams.
    pub(crate) worker: Worker,
    number: u64,
}

impl fmt::Debug for PeerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerLink")
            .field("peer", &self.peer)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// A change of a peer's tunnels.
#[derive(Debug, Default)]
pub struct PeerChange {
    /// New tunnels by their numbers at the peer.
    pub opened: Vec<(u64, NodeName, Rank)>,
    /// The numbers of tunnels that have ended.
    pub closed: Vec<u64>,
    /// Whether it is about to end.
    pub draining: bool,
}

/// A peer, for people and for agents.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// What it says about itself.
    pub info: Arc<PeerInfo>,
    /// Since when there is a link.
    pub since: Instant,
    /// Tunnels of agents that end there.
    pub tunnels: usize,
    /// Nodes that have any.
    pub nodes: usize,
    /// Connections to it that carry streams.
    pub links: usize,
    /// The open connections.
    pub streams: u32,
    /// As last measured.
    pub round_trip: Option<std::time::Duration>,
    /// Whether it is about to end.
    pub draining: bool,
}

/// All peers and their tunnels. Pure except for the links.
#[derive(Default)]
pub(crate) struct Peers {
    peers: BTreeMap<Instance, Peer>,
    links: u64,
}

struct Peer {
    info: Arc<PeerInfo>,
    since: Instant,
    tunnels: HashMap<u64, (NodeName, Rank)>,
    nodes: HashMap<NodeName, BTreeSet<u64>>,
    draining: bool,
    links: Vec<Arc<PeerLink>>,
}

impl Peers {
    /// Adds a peer without tunnels. `None`: it is there already.
    pub(crate) fn add(&mut self, info: Arc<PeerInfo>) -> Option<()> {
        if self.peers.contains_key(&info.instance) {
            return None;
        }
        let peer = Peer {
            info: info.clone(),
            since: Instant::now(),
            tunnels: HashMap::new(),
            nodes: HashMap::new(),
            draining: false,
            links: Vec::new(),
        };
        self.peers.insert(info.instance.clone(), peer);
        Some(())
    }

    /// Applies a change. Returns the nodes whose tunnels it concerns.
    pub(crate) fn change(&mut self, peer: &Instance, change: PeerChange) -> BTreeSet<NodeName> {
        let Some(peer) = self.peers.get_mut(peer) else {
            return BTreeSet::new();
        };
        let mut concerned = BTreeSet::new();
        for number in change.closed {
            concerned.extend(peer.remove(number));
        }
        for (number, node, rank) in change.opened {
            concerned.extend(peer.remove(number));
            peer.nodes.entry(node.clone()).or_default().insert(number);
            peer.tunnels.insert(number, (node.clone(), rank));
            concerned.insert(node);
        }
        peer.draining = change.draining;
        concerned
    }

    /// The numbers of the peer's tunnels.
    pub(crate) fn numbers(&self, peer: &Instance) -> Vec<u64> {
        let peer = self.peers.get(peer);
        peer.map(|peer| peer.tunnels.keys().copied().collect())
            .unwrap_or_default()
    }

    /// Forgets a peer. Returns its nodes.
    pub(crate) fn remove(&mut self, peer: &Instance) -> Vec<NodeName> {
        let peer = self.peers.remove(peer);
        peer.map(|peer| peer.nodes.into_keys().collect())
            .unwrap_or_default()
    }

    /// Whether a peer has a tunnel of the node.
    pub(crate) fn has(&self, node: &NodeName) -> bool {
        self.peers
            .values()
            .any(|peer| peer.nodes.contains_key(node))
    }

    /// Adds a link, and returns its number; `None`: the peer was forgotten.
    pub(crate) fn add_link(&mut self, peer: &Instance, tunnel: Tunnel) -> Option<u64> {
        let peer = self.peers.get_mut(peer)?;
        self.links += 1;
        peer.links.push(Arc::new(PeerLink {
            peer: peer.info.clone(),
            tunnel,
            worker: Worker::current(),
            number: self.links,
        }));
        Some(self.links)
    }

    pub(crate) fn remove_link(&mut self, peer: &Instance, number: u64) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.links.retain(|link| link.number != number);
        }
    }

    /// Whether bulk data keeps a link busy.
    pub(crate) fn has_busy_link(&self) -> bool {
        let mut links = self.peers.values().flat_map(|peer| &peer.links);
        links.any(|link| link.tunnel.is_busy())
    }

    /// The ranks of the node's tunnels at all peers.
    pub(crate) fn ranks(&self, node: &NodeName) -> Vec<Rank> {
        let mut ranks = Vec::new();
        for peer in self.peers.values() {
            ranks.extend(peer.ranks(node));
        }
        ranks
    }

    /// For each peer that has tunnels of the node and a link: the link with the fewest streams, and
    /// the ranks of these tunnels. The best peer comes first: one that answers and stays, then the
    /// one with the fewest streams.
    pub(crate) fn links(&self, node: &NodeName) -> Vec<(Arc<PeerLink>, Vec<Rank>)> {
        let mut holders = Vec::new();
        for peer in self.peers.values() {
            if peer.nodes.contains_key(node)
                && let Some(link) = peer.best_link()
            {
                holders.push((peer, link));
            }
        }
        holders
            .sort_by_key(|(peer, link)| (link.tunnel.is_silent(), peer.draining, peer.streams()));
        holders
            .into_iter()
            .map(|(peer, link)| (link, peer.ranks(node)))
            .collect()
    }

    /// Every peer, by instance.
    pub(crate) fn views(&self) -> Vec<PeerView> {
        self.peers.values().map(Peer::view).collect()
    }

    /// The peers that have a tunnel of the node.
    pub(crate) fn holders(&self, node: &NodeName) -> Vec<PeerView> {
        let mut holders = Vec::new();
        for peer in self.peers.values() {
            if peer.nodes.contains_key(node) {
                holders.push(peer.view());
            }
        }
        holders
    }
}

impl Peer {
    fn remove(&mut self, number: u64) -> Option<NodeName> {
        let (node, _) = self.tunnels.remove(&number)?;
        if let Some(numbers) = self.nodes.get_mut(&node) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.nodes.remove(&node);
            }
        }
        Some(node)
    }

    fn ranks(&self, node: &NodeName) -> Vec<Rank> {
        let mut ranks = Vec::new();
        for number in self.nodes.get(node).into_iter().flatten() {
            if let Some((_, rank)) = self.tunnels.get(number) {
                ranks.push(rank.clone());
            }
        }
        ranks
    }

    fn best_link(&self) -> Option<Arc<PeerLink>> {
        let links = self.links.iter();
        links
            .min_by_key(|link| (link.tunnel.is_silent(), link.tunnel.streams()))
            .cloned()
    }

    fn streams(&self) -> u32 {
        self.links.iter().map(|link| link.tunnel.streams()).sum()
    }

    fn view(&self) -> PeerView {
        PeerView {
            info: self.info.clone(),
            since: self.since,
            tunnels: self.tunnels.len(),
            nodes: self.nodes.len(),
            links: self.links.len(),
            streams: self.streams(),
            round_trip: self.links.iter().find_map(|link| link.tunnel.round_trip()),
            draining: self.draining,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(instance: &str) -> Arc<PeerInfo> {
        Arc::new(PeerInfo {
            instance: instance.into(),
            host: instance.to_owned(),
            version: String::new(),
            addresses: Vec::new(),
            certificate_ends: None,
        })
    }

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn opened(numbers: &[(u64, &str)]) -> PeerChange {
        let opened = numbers.iter();
        PeerChange {
            opened: opened
                .map(|(number, name)| (*number, node(name), Rank::default()))
                .collect(),
            ..PeerChange::default()
        }
    }

    #[test]
    fn a_node_is_at_peers_while_any_peer_has_any_tunnel_of_it() {
        let mut peers = Peers::default();
        let a = peer("a");
        let b = peer("b");
        peers.add(a.clone()).unwrap();
        peers.add(b.clone()).unwrap();
        assert!(peers.add(a.clone()).is_none(), "it is there");
        peers.change(&a.instance, opened(&[(1, "edge-1"), (2, "edge-1")]));
        peers.change(&b.instance, opened(&[(1, "edge-1"), (2, "edge-2")]));
        let closed = |numbers: &[u64]| PeerChange {
            closed: numbers.to_vec(),
            ..PeerChange::default()
        };
        peers.change(&a.instance, closed(&[1]));
        assert_eq!(peers.holders(&node("edge-1")).len(), 2);
        peers.change(&a.instance, closed(&[2, 9]));
        assert_eq!(peers.holders(&node("edge-1"))[0].info, b);
        let gone = peers.remove(&b.instance);
        assert_eq!(gone.len(), 2);
        assert!(!peers.has(&node("edge-1")) && !peers.has(&node("edge-2")));
    }

    #[test]
    fn a_number_that_a_peer_uses_again_is_another_tunnel() {
        let mut peers = Peers::default();
        let a = peer("a");
        peers.add(a.clone()).unwrap();
        peers.change(&a.instance, opened(&[(1, "edge-1")]));
        let concerned = peers.change(&a.instance, opened(&[(1, "edge-2")]));
        assert_eq!(concerned.len(), 2);
        assert!(!peers.has(&node("edge-1")) && peers.has(&node("edge-2")));
    }
}
