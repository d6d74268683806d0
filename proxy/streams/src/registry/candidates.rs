//! The ways to a node, and their order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use culvert_api::NodeName;
use culvert_daemon::Worker;
use culvert_tunnel::Tunnel;

use super::{Registered, Registry, State};
use crate::elsewhere::PeerLink;
use crate::rank::Rank;

/// A way to a node.
#[derive(Clone)]
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

    /// Whether both are the same tunnel here, or lead to the same proxy.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Agent(one), Self::Agent(other)) => Arc::ptr_eq(one, other),
            (Self::Peer(one), Self::Peer(other)) => one.peer == other.peer,
            (Self::Agent(_), Self::Peer(_)) | (Self::Peer(_), Self::Agent(_)) => false,
        }
    }

    /// The thread that moves its bytes.
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

impl Registry {
    /// The ways to the node in the order in which a new stream tries them: tunnels here, those that
    /// are not busy first, then peers, then what is superseded, worn out or ending, then what leads
    /// to an agent on another host than the node's, and last what is silent.
    pub fn candidates(&self, node: &NodeName) -> Vec<Candidate> {
        let (tunnels, peers, ranks) = {
            let state = self.lock();
            let State { elsewhere, .. } = &*state;
            (
                state.tunnels(node),
                elsewhere.links(node),
                elsewhere.ranks(node),
            )
        };
        let strangers = self.strangers(node, &tunnels);
        let is_stranger = |rank: &Rank| strangers.contains(&rank.instance);
        // A stranger's tunnels are later where a copy of the disk was started: they replace none of
        // the node's own.
        let counts = |other: &Rank, rank: &Rank| is_stranger(rank) || !is_stranger(other);
        let is_last = |tunnel: &Registered| {
            tunnel.tunnel.is_worn_out()
                || !tunnel.tunnel.takes_streams()
                || tunnels
                    .iter()
                    .any(|other| other.supersedes(tunnel) && counts(&other.rank, &tunnel.rank))
                || ranks
                    .iter()
                    .any(|other| other.supersedes(&tunnel.rank) && counts(other, &tunnel.rank))
        };
        let is_superseded = |rank: &Rank| {
            let here = tunnels.iter().map(|tunnel| &tunnel.rank);
            here.chain(&ranks)
                .any(|other| other.supersedes(rank) && counts(other, rank))
        };
        let here = tunnels.iter().map(|tunnel| {
            let order = (
                tunnel.tunnel.is_silent(),
                is_stranger(&tunnel.rank),
                is_last(tunnel),
                false,
            );
            // A stream of another proxy is on a thread already: two would wake each other.
            let is_away = !tunnel.worker.is_current();
            (
                (
                    order,
                    tunnel.tunnel.is_busy(),
                    is_away,
                    tunnel.tunnel.streams() + tunnel.on_their_way.load(Ordering::Relaxed),
                ),
                Candidate::Agent(tunnel.clone()),
            )
        });
        // The peers are in order already.
        let elsewhere = peers.into_iter().zip(0..).map(|((link, ranks), place)| {
            let order = (
                link.tunnel.is_silent(),
                ranks.iter().all(is_stranger),
                ranks.iter().all(is_superseded),
                true,
            );
            ((order, false, true, place), Candidate::Peer(link))
        });
        let mut all: Vec<_> = here.chain(elsewhere).collect();
        all.sort_by_key(|(order, _)| *order);
        all.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// The runs of agents whose host has none of the node's addresses, while another one's host has
    /// some.
    fn strangers(&self, node: &NodeName, tunnels: &[Arc<Registered>]) -> Vec<String> {
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
        let (own, strange): (Vec<_>, Vec<_>) = tunnels
            .iter()
            .partition(|tunnel| !tunnel.addresses_of(&view).is_empty());
        if own.is_empty() {
            return Vec::new();
        }
        let strange = strange.iter().map(|tunnel| tunnel.rank.instance.clone());
        strange.collect()
    }
}
