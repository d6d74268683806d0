//! The open streams by the way that they take: a tunnel here, or another proxy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use culvert_api::NodeName;
use culvert_tunnel::{MovableStream, MoveError, Transferred};
use parking_lot::{Mutex, MutexGuard};

use super::heavy::Looks;
use super::{Candidate, Registered, Registry};
use crate::peers::PeerInfo;

/// An open stream and the way that it takes.
#[derive(Debug)]
pub(crate) struct TrackedStream {
    number: u64,
    node: NodeName,
    /// `None`: it stays where it is.
    stream: Option<MovableStream>,
    transferred: Arc<Transferred>,
    location: Mutex<Location>,
}

#[derive(Debug)]
struct Location {
    /// `None` once it has ended: those who still show it keep no tunnel alive.
    way: Option<Candidate>,
    place: StreamPlace,
    list: TrackedStreams,
    looks: Looks,
    /// It does not move before.
    pause: Option<Instant>,
    /// Why it moved last.
    reason: Option<MoveReason>,
}

/// Where a stream is, for operators.
#[derive(Clone, Debug)]
pub(crate) enum StreamPlace {
    /// In the tunnel here of this number.
    Tunnel(u64),
    /// It goes by way of this proxy.
    Peer(Arc<PeerInfo>),
}

impl From<&Candidate> for StreamPlace {
    fn from(way: &Candidate) -> Self {
        match way {
            Candidate::Agent(registered) => Self::Tunnel(registered.generation),
            Candidate::Peer(link) => Self::Peer(link.peer.clone()),
        }
    }
}

/// Why a stream moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveReason {
    /// Other streams use its tunnel.
    SharedTunnel,
    /// It goes by way of another proxy.
    ByPeer,
}

impl MoveReason {
    /// As operators read it.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::SharedTunnel => "shared_tunnel",
            Self::ByPeer => "by_peer",
        }
    }
}

/// The streams of one way, by number. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrackedStreams(Arc<Mutex<BTreeMap<u64, Arc<TrackedStream>>>>);

/// The heavy streams of a tunnel.
#[derive(Debug)]
pub(crate) struct HeavyStreams {
    /// They should have other tunnels.
    pub(crate) leaving: Vec<Arc<TrackedStream>>,
    /// Whether there are others, which stay.
    pub(crate) some_stay: bool,
}

/// Keeps a stream in the list of the way that it takes.
#[derive(Debug)]
pub(crate) struct Tracking(pub(crate) Arc<TrackedStream>);

impl Registry {
    /// Tracks stream `number`, which was opened by this way.
    pub(crate) fn track(
        &self,
        number: u64,
        node: &NodeName,
        way: Candidate,
        stream: Option<MovableStream>,
        transferred: Arc<Transferred>,
    ) -> Tracking {
        let list = match &way {
            Candidate::Agent(registered) => registered.streams.clone(),
            Candidate::Peer(_) => self.0.by_peer.clone(),
        };
        let location = Location {
            place: (&way).into(),
            way: Some(way),
            list: list.clone(),
            looks: Looks::default(),
            pause: None,
            reason: None,
        };
        let tracked = Arc::new(TrackedStream {
            number,
            node: node.clone(),
            stream,
            transferred,
            location: Mutex::new(location),
        });
        list.add(&tracked);
        Tracking(tracked)
    }

    /// The heavy streams that go by way of other proxies and may move, by node, after a look at all
    /// of them. Without bulk data nothing is looked at.
    pub(crate) fn heavy_by_peer(
        &self,
        now: Instant,
    ) -> BTreeMap<NodeName, Vec<Arc<TrackedStream>>> {
        let mut heavy: BTreeMap<NodeName, Vec<_>> = BTreeMap::new();
        if !self.lock().peers.has_busy_link() {
            return heavy;
        }
        for stream in self.0.by_peer.all() {
            if let [true, true] = stream.look(now) {
                heavy.entry(stream.node.clone()).or_default().push(stream);
            }
        }
        heavy
    }
}

impl Drop for Tracking {
    fn drop(&mut self) {
        let mut location = self.0.lock();
        location.way = None;
        location.list.remove(self.0.number);
    }
}

impl TrackedStream {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The way that it takes; `None`: it has ended.
    pub(crate) fn way(&self) -> Option<Candidate> {
        self.lock().way.clone()
    }

    /// Where it is, or was at its end.
    pub(crate) fn place(&self) -> StreamPlace {
        self.lock().place.clone()
    }

    /// Why it moved last.
    pub(crate) fn move_reason(&self) -> Option<MoveReason> {
        self.lock().reason
    }

    /// How often it has moved.
    pub(crate) fn moves(&self) -> u32 {
        match &self.stream {
            Some(stream) => stream.moves(),
            None => 0,
        }
    }

    /// It does not move before `until`.
    pub(crate) fn pause(&self, until: Instant) {
        self.lock().pause = Some(until);
    }

    /// Moves the stream to another tunnel of its agent.
    ///
    /// # Errors
    /// It stays where it is.
    pub(crate) async fn move_to(
        self: &Arc<Self>,
        registered: &Arc<Registered>,
    ) -> Result<(), MoveError> {
        let stream = self.stream.as_ref().ok_or(MoveError::Unmovable)?;
        registered.tunnel.resume(stream).await?;
        let mut location = self.lock();
        location.reason = Some(match location.place {
            StreamPlace::Tunnel(_) => MoveReason::SharedTunnel,
            StreamPlace::Peer(_) => MoveReason::ByPeer,
        });
        location.place = StreamPlace::Tunnel(registered.generation);
        if location.way.is_some() {
            location.way = Some(Candidate::Agent(registered.clone()));
            location.list.remove(self.number);
            location.list = registered.streams.clone();
            location.list.add(self);
        }
        Ok(())
    }

    /// Whether it is heavy, and whether it may move, after a look.
    fn look(&self, now: Instant) -> [bool; 2] {
        let Transferred {
            into_tunnel,
            out_of_tunnel,
        } = &*self.transferred;
        let bytes = into_tunnel.bytes() + out_of_tunnel.bytes();
        let mut location = self.lock();
        let is_paused = location.pause > Some(now);
        [
            location.looks.add(bytes, now),
            self.stream.is_some() && !is_paused,
        ]
    }

    fn lock(&self) -> MutexGuard<'_, Location> {
        self.location.lock()
    }
}

impl TrackedStreams {
    fn add(&self, stream: &Arc<TrackedStream>) {
        self.0.lock().insert(stream.number, stream.clone());
    }

    fn remove(&self, number: u64) {
        self.0.lock().remove(&number);
    }

    fn all(&self) -> Vec<Arc<TrackedStream>> {
        self.0.lock().values().cloned().collect()
    }

    /// The heavy ones of a tunnel, of so many streams in all. Beside light streams all heavy ones
    /// leave; where all are heavy, one stays.
    pub(super) fn heavy(&self, all: u32, now: Instant) -> HeavyStreams {
        let mut heavy = 0;
        let mut leaving = Vec::new();
        for stream in self.all() {
            let [is_heavy, may_move] = stream.look(now);
            heavy += usize::from(is_heavy);
            if is_heavy && may_move {
                leaving.push(stream);
            }
        }
        if heavy >= all as usize {
            leaving.pop();
        }
        let some_stay = heavy > leaving.len();
        HeavyStreams { leaving, some_stay }
    }
}
