//! A limit on the memory that all streams of a process hold for stalled sockets.
//!
//! A stream's window lets its other end send ahead, so that each stalled socket leaves up to a
//! window in memory. Over the limit, the client, backend, node or proxy whose streams hold most
//! loses the stream that has stalled longest. The same limit bounds unsent data, by back-pressure
//! (`outbox.rs`).

pub(crate) mod outbox;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::budget::outbox::Outbox;

/// The bytes that stalled streams may hold together. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<TunnelAccount>);

/// One tunnel's part of the budget.
#[derive(Debug)]
struct TunnelAccount {
    process: Arc<ProcessAccount>,
    tunnel_peer: Arc<str>,
    outbox: Outbox,
}

#[derive(Debug)]
struct ProcessAccount {
    limit: usize,
    unsent: AtomicUsize,
    stalled: Mutex<StalledStreams>,
}

#[derive(Debug, Default)]
struct StalledStreams {
    held: usize,
    /// Ordered by position: the first has stalled longest.
    by_age: BTreeMap<u64, StalledStream>,
    next: u64,
}

#[derive(Debug)]
struct StalledStream {
    bytes: usize,
    socket_peer: SocketPeer,
    tunnel_peer: Arc<str>,
    evicted: Arc<Notify>,
}

/// The peer at the socket that a stream's bytes wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SocketPeer {
    /// A client by its address. IPv6 clients of one /64 count as one: it may belong to one host.
    Client(IpAddr),
    /// A backend.
    Backend(SocketAddr),
    /// A client of a Unix socket, or no socket yet.
    Unknown,
}

impl SocketPeer {
    pub(crate) fn client(address: IpAddr) -> Self {
        Self::Client(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let process = ProcessAccount {
            limit,
            unsent: AtomicUsize::default(),
            stalled: Mutex::default(),
        };
        Self(Arc::new(TunnelAccount {
            process: Arc::new(process),
            tunnel_peer: "".into(),
            outbox: Outbox::default(),
        }))
    }

    /// The same budget, for one tunnel with `tunnel_peer`, which is a node or a proxy. What the
    /// tunnel's streams hold counts as held by that peer.
    #[must_use]
    pub fn of(&self, tunnel_peer: &str) -> Self {
        Self(Arc::new(TunnelAccount {
            process: self.0.process.clone(),
            tunnel_peer: tunnel_peer.into(),
            outbox: Outbox::default(),
        }))
    }

    /// Bytes held now for stalled sockets.
    #[must_use]
    pub fn stalled_bytes(&self) -> usize {
        self.lock().held
    }

    /// A stream's share of the budget, empty at first.
    pub(crate) fn share(&self) -> Share {
        Share {
            budget: self.clone(),
            stalled: None,
            left: 0,
        }
    }

    /// Unsent data of this tunnel, and the bytes of all tunnels beyond their minimum.
    pub(crate) fn unsent(&self) -> (&Outbox, &AtomicUsize) {
        (&self.0.outbox, &self.0.process.unsent)
    }

    pub(crate) fn limit(&self) -> usize {
        self.0.process.limit
    }

    fn lock(&self) -> MutexGuard<'_, StalledStreams> {
        self.0.process.stalled.lock()
    }
}

impl StalledStreams {
    /// Adds a stream that stalls, after all others.
    fn add(&mut self, socket_peer: SocketPeer, tunnel_peer: &Arc<str>) -> (u64, Arc<Notify>) {
        let evicted = Arc::<Notify>::default();
        let stalled = StalledStream {
            bytes: 0,
            socket_peer,
            tunnel_peer: tunnel_peer.clone(),
            evicted: evicted.clone(),
        };
        (self.push(stalled), evicted)
    }

    fn push(&mut self, stalled: StalledStream) -> u64 {
        let position = self.next;
        self.next += 1;
        self.held += stalled.bytes;
        self.by_age.insert(position, stalled);
        position
    }

    fn remove(&mut self, position: u64) -> Option<StalledStream> {
        let stalled = self.by_age.remove(&position)?;
        self.held -= stalled.bytes;
        Some(stalled)
    }

    fn enforce(&mut self, limit: usize) {
        while self.held > limit
            && let Some(stalled) = victim(&self.by_age).and_then(|position| self.remove(position))
        {
            stalled.evicted.notify_one();
        }
    }
}

/// The stream that ends when the streams hold too much. It belongs to the peer that holds most, of
/// all peers at sockets and at tunnels; of its streams, to those with the one peer on the other
/// side that holds most; of these it has stalled longest. A peer with many streams pays for them,
/// not its neighbour with one.
fn victim(stalled: &BTreeMap<u64, StalledStream>) -> Option<u64> {
    let all = || stalled.iter();
    let socket = largest(all(), |stream| stream.socket_peer)?;
    let tunnel = largest(all(), |stream| &stream.tunnel_peer)?;
    if socket.bytes >= tunnel.bytes {
        let streams = all().filter(|(_, stream)| stream.socket_peer == socket.peer);
        largest(streams, |stream| &stream.tunnel_peer).map(|holding| holding.oldest)
    } else {
        let streams = all().filter(|(_, stream)| stream.tunnel_peer == *tunnel.peer);
        largest(streams, |stream| stream.socket_peer).map(|holding| holding.oldest)
    }
}

/// What the streams of one peer hold.
struct Holding<P> {
    peer: P,
    bytes: usize,
    /// The position of the stream that has stalled longest.
    oldest: u64,
}

/// The holding with most bytes; of equals, the one with the oldest stream.
fn largest<'a, P: Copy + Eq + Hash>(
    streams: impl Iterator<Item = (&'a u64, &'a StalledStream)>,
    peer_of: impl Fn(&'a StalledStream) -> P,
) -> Option<Holding<P>> {
    let mut totals: HashMap<P, (usize, u64)> = HashMap::new();
    for (position, stream) in streams {
        totals.entry(peer_of(stream)).or_insert((0, *position)).0 += stream.bytes;
    }
    let (peer, (bytes, oldest)) = totals
        .into_iter()
        .max_by_key(|(_, (bytes, oldest))| (*bytes, Reverse(*oldest)))?;
    Some(Holding {
        peer,
        bytes,
        oldest,
    })
}

/// The bytes that one stream holds.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) budget: Budget,
    /// Set while its socket is stalled: its position, and the signal that it is evicted.
    stalled: Option<(u64, Arc<Notify>)>,
    /// Bytes that it held when it took that position, less those written since.
    left: usize,
}

impl Share {
    /// The socket is stalled, and `bytes` wait for it. Completes when the stream is evicted.
    pub(crate) fn stalls(
        &mut self,
        bytes: usize,
        socket_peer: impl FnOnce() -> SocketPeer,
    ) -> OwnedNotified {
        let mut streams = self.budget.lock();
        let left = &mut self.left;
        let (position, evicted) = self.stalled.get_or_insert_with(|| {
            *left = bytes;
            streams.add(socket_peer(), &self.budget.0.tunnel_peer)
        });
        if let Some(stalled) = streams.by_age.get_mut(position) {
            let before = std::mem::replace(&mut stalled.bytes, bytes);
            streams.held = streams.held - before + bytes;
            streams.enforce(self.budget.limit());
        }
        evicted.clone().notified_owned()
    }

    /// Whether the socket stalled, and bytes still wait for it.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// The socket has taken `taken` bytes, and `waiting` bytes still wait. The stream goes to the
    /// last position once its socket took all that it held at the current one: a byte now and then
    /// does not count as progress.
    pub(crate) fn consumed(&mut self, taken: usize, waiting: usize) {
        let Some((position, _)) = &mut self.stalled else {
            return;
        };
        if waiting == 0 {
            self.ends();
            return;
        }
        self.left = self.left.saturating_sub(taken);
        if self.left == 0 {
            self.left = waiting;
            let mut streams = self.budget.lock();
            if let Some(stalled) = streams.remove(*position) {
                *position = streams.push(stalled);
            }
        }
    }

    fn ends(&mut self) {
        if let Some((position, _)) = self.stalled.take() {
            self.budget.lock().remove(position);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.ends();
    }
}

#[cfg(test)]
mod tests;
