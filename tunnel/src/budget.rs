//! What all streams of a process may hold in memory for sockets that take nothing.
//!
//! A stream's window lets its other end send ahead, so that each stalled socket leaves up to a window in memory. Where too many
//! stall, the stream that has waited longest is given up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// A number of bytes that stalled streams share. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    /// Who stalls, in the order in which it began.
    stalled: BTreeMap<u64, Stalled>,
    next: u64,
}

#[derive(Debug)]
struct Stalled {
    bytes: usize,
    given_up: Arc<Notify>,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shared { limit, state: Mutex::default() }))
    }

    /// Bytes held at the moment.
    #[must_use]
    pub fn held(&self) -> usize {
        self.lock().held
    }

    /// A stream's part in it, none at first.
    pub(crate) fn share(&self) -> Share {
        Share { budget: self.clone(), stalled: None }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// One more that stalls, behind all others.
    fn begin(&mut self) -> (u64, Arc<Notify>) {
        let (place, given_up) = (self.next, Arc::<Notify>::default());
        self.next += 1;
        self.stalled.insert(place, Stalled { bytes: 0, given_up: given_up.clone() });
        (place, given_up)
    }

    fn remove(&mut self, place: u64) {
        if let Some(stalled) = self.stalled.remove(&place) {
            self.held -= stalled.bytes;
        }
    }

    fn keep_within(&mut self, limit: usize) {
        while self.held > limit
            && let Some((_, longest)) = self.stalled.pop_first()
        {
            self.held -= longest.bytes;
            longest.given_up.notify_one();
        }
    }
}

/// What one stream holds.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    /// Since its socket takes nothing: its place among those that stall, and what tells it to end.
    stalled: Option<(u64, Arc<Notify>)>,
}

impl Share {
    /// The socket takes nothing, and `bytes` wait for it now. Completes when the stream has to end for the others.
    pub(crate) fn stalls(&mut self, bytes: usize) -> OwnedNotified {
        let mut state = self.budget.lock();
        let (place, given_up) = self.stalled.get_or_insert_with(|| state.begin());
        if let Some(stalled) = state.stalled.get_mut(place) {
            let before = std::mem::replace(&mut stalled.bytes, bytes);
            state.held = state.held - before + bytes;
            state.keep_within(self.budget.0.limit);
        }
        given_up.clone().notified_owned()
    }

    /// The socket has taken some.
    pub(crate) fn moves(&mut self) {
        if let Some((place, _)) = self.stalled.take() {
            self.budget.lock().remove(place);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.moves();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn is_given_up(given_up: OwnedNotified) -> bool {
        given_up.now_or_never().is_some()
    }

    #[test]
    fn the_longest_stalled_is_given_up_and_only_as_many_as_needed() {
        let budget = Budget::new(100);
        let mut shares: Vec<Share> = (0..3).map(|_| budget.share()).collect();
        let given_up: Vec<_> = shares.iter_mut().map(|share| share.stalls(40)).collect();
        assert_eq!(given_up.into_iter().map(is_given_up).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(budget.held(), 80);
    }

    #[test]
    fn one_that_moves_now_and_then_has_not_stalled_for_long() {
        let budget = Budget::new(100);
        let (mut slow, mut stuck, mut third) = (budget.share(), budget.share(), budget.share());
        drop(slow.stalls(40));
        let stuck = stuck.stalls(40);
        slow.moves();
        let given_up = [slow.stalls(30), stuck, third.stalls(40)];
        assert_eq!(given_up.map(is_given_up), [false, true, false]);
    }

    #[test]
    fn what_has_been_held_is_given_back() {
        let budget = Budget::new(100);
        let mut share = budget.share();
        drop((share.stalls(70), share.stalls(90)));
        assert_eq!(budget.held(), 90);
        share.moves();
        assert_eq!(budget.held(), 0);
        assert!(is_given_up(share.stalls(101)), "alone it may not be over it either");
        drop(share.stalls(50));
        drop(share);
        assert_eq!(budget.held(), 0);
    }
}
