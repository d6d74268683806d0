//! Connections to the kubelet port without the node's certificate: any process of the host can open
//! them. They have a number of places, and the oldest one goes for a new one, so that kubelet always
//! finds the port open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio_util::sync::CancellationToken;

use crate::lock::lock;

/// Of those that have shown nothing yet, in their handshake too.
const MAX_UNKNOWN: usize = 256;
/// Of those that have shown a token that the API server accepts: kube-proxy, the CNI and pods of the
/// host's network have some ten each.
const MAX_KNOWN: usize = 512;

/// The places. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Guests(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    next: u64,
    /// The oldest first.
    unknown: BTreeMap<u64, CancellationToken>,
    known: BTreeMap<u64, CancellationToken>,
}

/// A connection, with its place. Dropping it frees that.
#[derive(Debug)]
pub(crate) struct Guest {
    guests: Guests,
    number: u64,
    end: CancellationToken,
}

impl Guests {
    /// Takes a place for a connection that has shown nothing yet.
    pub(super) fn enter(&self) -> Guest {
        let end = CancellationToken::new();
        let mut places = self.places();
        places.next += 1;
        let number = places.next;
        insert(&mut places.unknown, number, end.clone(), MAX_UNKNOWN);
        drop(places);
        Guest {
            guests: self.clone(),
            number,
            end,
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        lock(&self.0)
    }
}

impl Guest {
    /// The API server knows whose the token is that was shown.
    pub(crate) fn is_known(&self) {
        let mut places = self.guests.places();
        if let Some(end) = places.unknown.remove(&self.number) {
            insert(&mut places.known, self.number, end, MAX_KNOWN);
        }
    }

    /// It has shown the node's certificate, and needs no place.
    pub(super) fn is_node(&self) {
        let mut places = self.guests.places();
        places.unknown.remove(&self.number);
        places.known.remove(&self.number);
    }

    /// Until its place is another's.
    pub(super) async fn displaced(&self) {
        self.end.cancelled().await;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.is_node();
    }
}

fn insert(
    places: &mut BTreeMap<u64, CancellationToken>,
    number: u64,
    end: CancellationToken,
    most: usize,
) {
    places.insert(number, end);
    if places.len() > most
        && let Some((_, oldest)) = places.pop_first()
    {
        oldest.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_stranger_goes_and_neither_the_node_nor_a_known_client() {
        let guests = Guests::default();
        let node = guests.enter();
        let known = guests.enter();
        let oldest = guests.enter();
        node.is_node();
        known.is_known();
        let mut strangers = Vec::new();
        for _ in 0..MAX_UNKNOWN {
            strangers.push(guests.enter());
        }
        assert!(oldest.end.is_cancelled());
        assert!(!strangers[0].end.is_cancelled());
        assert!(!node.end.is_cancelled() && !known.end.is_cancelled());
        drop((node, known, oldest, strangers));
        let places = guests.places();
        assert!(places.unknown.is_empty() && places.known.is_empty());
    }
}
