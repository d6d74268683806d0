//! The ways to a node, and their order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use culvert_api::NodeName;
use culvert_daemon::Worker;
use culvert_tunnel::Tunnel;

use super::{Registered, Registry};
use crate::peers::PeerLink;
use crate::rank::Rank;

/// A way to a node.
#[derive(Clone, Debug)]
pub enum Candidate {
    /// A tunnel of its agent that ends here.
    Agent(Arc<Registered>),
    /// A link to a proxy where a tunnel of its agent ends.
    Peer(Arc<PeerLink>),
}

impl Candidate {
    /// The tunnel that carries the stream from here.
    pub(crate) fn tunnel(&self) -> &Tunnel {
        match self {
            Self::Agent(registered) => &registered.tunnel,
            Self::Peer(link) => &link.tunnel,
        }
    }

    /// The tunnel of the agent, if it ends here.
    pub(crate) fn registered(&self) -> Option<&Arc<Registered>> {
        match self {
            Self::Agent(registered) => Some(registered),
            Self::Peer(_) => None,
        }
    }

    /// Whether both are the same tunnel here, or lead to the same proxy.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Agent(one), Self::Agent(other)) => Arc::ptr_eq(one, other),
            (Self::Peer(one), Self::Peer(other)) => one.peer.instance == other.peer.instance,
            (Self::Agent(_), Self::Peer(_)) | (Self::Peer(_), Self::Agent(_)) => false,
        }
    }

    /// The thread that relays its bytes.
    pub(crate) fn worker(&self) -> &Worker {
        match self {
            Self::Agent(registered) => &registered.worker,
            Self::Peer(link) => &link.worker,
        }
    }
}

/// Counts a stream at the tunnel that it will try first, until this is dropped: the tunnel itself
/// counts it as soon as it opens. Otherwise connections that come at the same moment would all go to
/// one tunnel.
pub(crate) struct StreamOnItsWay(Arc<Registered>);

impl StreamOnItsWay {
    /// A stream that goes to this tunnel.
    pub(crate) fn to(registered: &Arc<Registered>) -> Self {
        registered.on_their_way.fetch_add(1, Ordering::Relaxed);
        Self(registered.clone())
    }

    /// A stream that tries the candidates in their order.
    pub(crate) fn of(candidates: &[Candidate]) -> Option<Self> {
        match candidates.first()? {
            Candidate::Agent(registered) => Some(Self::to(registered)),
            Candidate::Peer(_) => None,
        }
    }
}

impl Drop for StreamOnItsWay {
    fn drop(&mut self) {
        self.0.on_their_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where a candidate comes among others: the least is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order {
    is_silent: bool,
    /// Its agent is on another host than the node's.
    is_misplaced: bool,
    /// It is superseded, worn out or ending.
    is_outdated: bool,
    is_by_peer: bool,
    is_busy: bool,
    /// Another thread relays its bytes.
    is_away: bool,
    /// Its streams, or of a peer the place among peers.
    load: u32,
}

/// What is known about all tunnels of a node, wherever they end.
struct NodeTunnels {
    here: Vec<Arc<Registered>>,
    at_peers: Vec<Rank>,
    /// The runs of agents on other hosts than the node's.
    misplaced: Vec<String>,
}

impl NodeTunnels {
    fn is_misplaced(&self, rank: &Rank) -> bool {
        self.misplaced.contains(&rank.instance)
    }

    /// Whether `other` may replace `rank`. Where a copy of the disk was started, the tunnels of the
    /// misplaced agent are later: they replace none of the node's own.
    fn may_replace(&self, other: &Rank, rank: &Rank) -> bool {
        self.is_misplaced(rank) || !self.is_misplaced(other)
    }

    fn is_superseded_at_peers(&self, rank: &Rank) -> bool {
        let mut others = self.at_peers.iter();
        others.any(|other| other.supersedes(rank) && self.may_replace(other, rank))
    }

    fn is_superseded(&self, rank: &Rank) -> bool {
        let mut here = self.here.iter().map(|tunnel| &tunnel.rank);
        self.is_superseded_at_peers(rank)
            || here.any(|other| other.supersedes(rank) && self.may_replace(other, rank))
    }

    fn is_outdated(&self, registered: &Registered) -> bool {
        let rank = &registered.rank;
        let mut here = self.here.iter();
        registered.tunnel.is_worn_out()
            || !registered.tunnel.takes_streams()
            || here.any(|other| other.supersedes(registered) && self.may_replace(&other.rank, rank))
            || self.is_superseded_at_peers(rank)
    }

    fn order(&self, registered: &Registered) -> Order {
        let tunnel = &registered.tunnel;
        Order {
            is_silent: tunnel.is_silent(),
            is_misplaced: self.is_misplaced(&registered.rank),
            is_outdated: self.is_outdated(registered),
            is_by_peer: false,
            is_busy: tunnel.is_busy(),
            // A stream of another proxy is on a thread already: two would wake each other.
            is_away: !registered.worker.is_current(),
            load: tunnel.streams() + registered.on_their_way.load(Ordering::Relaxed),
        }
    }

    /// The order of a link to a peer, where the node's tunnels have these ranks.
    fn order_of_link(&self, link: &PeerLink, ranks: &[Rank], place: u32) -> Order {
        Order {
            is_silent: link.tunnel.is_silent(),
            is_misplaced: ranks.iter().all(|rank| self.is_misplaced(rank)),
            is_outdated: ranks.iter().all(|rank| self.is_superseded(rank)),
            is_by_peer: true,
            is_busy: false,
            is_away: true,
            load: place,
        }
    }
}

impl Registry {
    /// The ways to the node in the order in which a new stream tries them: tunnels here, those that
    /// are not busy first, then peers, then what is superseded, worn out or ending, then what leads
    /// to an agent on another host than the node's, and last what is silent.
    pub fn candidates(&self, node: &NodeName) -> Vec<Candidate> {
        let state = self.lock();
        let here = state.tunnels(node);
        let links = state.peers.links(node);
        let at_peers = state.peers.ranks(node);
        drop(state);
        let tunnels = NodeTunnels {
            misplaced: self.misplaced_runs(node, &here),
            here,
            at_peers,
        };
        let mut ordered = Vec::new();
        for registered in &tunnels.here {
            ordered.push((
                tunnels.order(registered),
                Candidate::Agent(registered.clone()),
            ));
        }
        // The peers are in order already.
        for (place, (link, ranks)) in (0..).zip(links) {
            let order = tunnels.order_of_link(&link, &ranks, place);
            ordered.push((order, Candidate::Peer(link)));
        }
        ordered.sort_by_key(|(order, _)| *order);
        ordered
            .into_iter()
            .map(|(_, candidate)| candidate)
            .collect()
    }

    /// The runs of agents whose host has none of the node's addresses, while another one's host has
    /// some.
    fn misplaced_runs(&self, node: &NodeName, tunnels: &[Arc<Registered>]) -> Vec<String> {
        let Some((first, others)) = tunnels.split_first() else {
            return Vec::new();
        };
        // Nearly always there is one run: nothing else is asked then.
        if others
            .iter()
            .all(|other| other.rank.instance == first.rank.instance)
        {
            return Vec::new();
        }
        let Some(view) = self.0.directory.node(node) else {
            return Vec::new();
        };
        let mut misplaced = Vec::new();
        let mut has_own = false;
        for tunnel in tunnels {
            if tunnel.addresses_of(&view).is_empty() {
                misplaced.push(tunnel.rank.instance.clone());
            } else {
                has_own = true;
            }
        }
        if !has_own {
            misplaced.clear();
        }
        misplaced
    }
}
