//! What all streams of a process may hold in memory for sockets that take nothing.
//!
//! A stream's window lets its other end send ahead, so that each stalled socket leaves up to a
//! window in memory. Where too many stall, whoever causes most of it pays: of the client, backend,
//! node or proxy whose streams hold most, the stream whose bytes have waited longest is given up.
//! What waits to be sent is bounded by the same number, by back-pressure (`outbox.rs`).

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::outbox::Outbox;

/// A number of bytes that stalled streams share. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

/// One tunnel's part in it.
#[derive(Debug)]
struct Account {
    shared: Arc<Shared>,
    far: Arc<str>,
    outbox: Outbox,
}

#[derive(Debug)]
struct Shared {
    limit: usize,
    unsent: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    /// Who stalls, in the order of what has waited longest.
    stalled: BTreeMap<u64, Stalled>,
    next: u64,
}

#[derive(Debug)]
struct Stalled {
    bytes: usize,
    near: Near,
    far: Arc<str>,
    given_up: Arc<Notify>,
}

/// Whose socket a stream's bytes wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Near {
    /// A client at this address; of an IPv6 address its /64, all of which one host may have.
    Client(IpAddr),
    /// This backend.
    Backend(SocketAddr),
    /// A client of a Unix socket, or nobody yet.
    Unknown,
}

impl Near {
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
        let shared = Shared {
            limit,
            unsent: AtomicUsize::default(),
            state: Mutex::default(),
        };
        Self(Arc::new(Account {
            shared: Arc::new(shared),
            far: "".into(),
            outbox: Outbox::default(),
        }))
    }

    /// The same budget, for one tunnel with `far`: a node, or a proxy. What its streams hold counts
    /// as that one's.
    #[must_use]
    pub fn of(&self, far: &str) -> Self {
        Self(Arc::new(Account {
            shared: self.0.shared.clone(),
            far: far.into(),
            outbox: Outbox::default(),
        }))
    }

    /// Bytes held at the moment for sockets that take nothing.
    #[must_use]
    pub fn held(&self) -> usize {
        self.lock().held
    }

    /// A stream's part in it, none at first.
    pub(crate) fn share(&self) -> Share {
        Share {
            budget: self.clone(),
            stalled: None,
            left: 0,
        }
    }

    /// What waits to be sent in this tunnel, and in all of them beyond each one's minimum.
    pub(crate) fn unsent(&self) -> (&Outbox, &AtomicUsize) {
        (&self.0.outbox, &self.0.shared.unsent)
    }

    pub(crate) fn limit(&self) -> usize {
        self.0.shared.limit
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// One more that stalls, behind all others.
    fn begin(&mut self, near: Near, far: &Arc<str>) -> (u64, Arc<Notify>) {
        let given_up = Arc::<Notify>::default();
        let stalled = Stalled {
            bytes: 0,
            near,
            far: far.clone(),
            given_up: given_up.clone(),
        };
        (self.push(stalled), given_up)
    }

    fn push(&mut self, stalled: Stalled) -> u64 {
        let place = self.next;
        self.next += 1;
        self.held += stalled.bytes;
        self.stalled.insert(place, stalled);
        place
    }

    fn remove(&mut self, place: u64) -> Option<Stalled> {
        let stalled = self.stalled.remove(&place)?;
        self.held -= stalled.bytes;
        Some(stalled)
    }

    fn keep_within(&mut self, limit: usize) {
        while self.held > limit
            && let Some(stalled) = payer(&self.stalled).and_then(|place| self.remove(place))
        {
            stalled.given_up.notify_one();
        }
    }
}

/// Whose stream is given up: of all clients and backends, nodes and proxies the one that holds
/// most; of its streams, those with the one on the other side that holds most of them; of these,
/// the one that has waited longest. Somebody with many streams pays for them, not a neighbour with
/// one that stands still for good reason.
fn payer(stalled: &BTreeMap<u64, Stalled>) -> Option<u64> {
    let all = || stalled.iter();
    let (near, near_bytes) = most(all().map(|(place, one)| (one.near, *place, one.bytes)))?;
    let (far, far_bytes) = most(all().map(|(place, one)| (&one.far, *place, one.bytes)))?;
    let (near, far) = if near_bytes >= far_bytes {
        let of_near = all().filter(|(_, one)| one.near == near);
        (
            near,
            most(of_near.map(|(place, one)| (&one.far, *place, one.bytes)))?.0,
        )
    } else {
        let of_far = all().filter(|(_, one)| one.far == *far);
        (
            most(of_far.map(|(place, one)| (one.near, *place, one.bytes)))?.0,
            far,
        )
    };
    all()
        .find(|(_, one)| one.near == near && one.far == *far)
        .map(|(place, _)| *place)
}

/// The key with most bytes, and how many; of equals, the one with the earliest place.
fn most<K: Copy + Eq + Hash>(entries: impl Iterator<Item = (K, u64, usize)>) -> Option<(K, usize)> {
    let mut totals: HashMap<K, (usize, u64)> = HashMap::new();
    for (key, place, bytes) in entries {
        totals.entry(key).or_insert((0, place)).0 += bytes;
    }
    let (key, (bytes, _)) = totals
        .into_iter()
        .max_by_key(|(_, (bytes, place))| (*bytes, std::cmp::Reverse(*place)))?;
    Some((key, bytes))
}

/// What one stream holds.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) budget: Budget,
    /// Since its socket blocked: its place among those that stall, and what tells it to end.
    stalled: Option<(u64, Arc<Notify>)>,
    /// Bytes that it held when it took that place and has not been rid of since.
    left: usize,
}

impl Share {
    /// The socket takes nothing, and `bytes` wait for it now. Completes when the stream has to end
    /// for the others.
    pub(crate) fn stalls(&mut self, bytes: usize, near: impl FnOnce() -> Near) -> OwnedNotified {
        let mut state = self.budget.lock();
        let left = &mut self.left;
        let (place, given_up) = self.stalled.get_or_insert_with(|| {
            *left = bytes;
            state.begin(near(), &self.budget.0.far)
        });
        if let Some(stalled) = state.stalled.get_mut(place) {
            let before = std::mem::replace(&mut stalled.bytes, bytes);
            state.held = state.held - before + bytes;
            state.keep_within(self.budget.limit());
        }
        given_up.clone().notified_owned()
    }

    /// Whether the socket took nothing lately, and bytes still wait for it.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// The socket has taken `taken` bytes, and `waiting` bytes still wait. It has waited for less
    /// long once it took all that it held when it began: a byte now and then is no progress.
    pub(crate) fn moves(&mut self, taken: usize, waiting: usize) {
        let Some((place, _)) = &mut self.stalled else {
            return;
        };
        if waiting == 0 {
            self.ends();
            return;
        }
        self.left = self.left.saturating_sub(taken);
        if self.left == 0 {
            self.left = waiting;
            let mut state = self.budget.lock();
            if let Some(stalled) = state.remove(*place) {
                *place = state.push(stalled);
            }
        }
    }

    fn ends(&mut self) {
        if let Some((place, _)) = self.stalled.take() {
            self.budget.lock().remove(place);
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
