//! The queue of Events to write, in order. Events that are no longer true are removed. Pure.

use std::collections::VecDeque;

use super::occurrence::{Occurrence, Reason};

/// The capacity. More would not be read.
const CAPACITY: usize = 1000;

/// Occurrences that wait.
#[derive(Debug, Default)]
pub(super) struct Queue(VecDeque<Occurrence>);

impl Queue {
    /// A node that comes back before its absence was reported needs no Event. The same holds for a
    /// node that leaves again.
    pub(super) fn extend(&mut self, occurrences: impl IntoIterator<Item = Occurrence>) {
        for occurrence in occurrences {
            let opposite = match occurrence.reason {
                Reason::EdgeOnline => Some(Reason::EdgeOffline),
                Reason::EdgeOffline => Some(Reason::EdgeOnline),
                Reason::AddressClaimedTwice
                | Reason::ClaimRefused
                | Reason::InvalidPorts
                | Reason::InvalidForwards => None,
            };
            let undone = self.0.iter().position(|waiting| {
                Some(waiting.reason) == opposite && waiting.about == occurrence.about
            });
            match undone {
                Some(at) => drop(self.0.remove(at)),
                None if self.0.contains(&occurrence) || self.0.len() >= CAPACITY => {}
                None => self.0.push_back(occurrence),
            }
        }
    }

    pub(super) fn pop(&mut self) -> Option<Occurrence> {
        self.0.pop_front()
    }

    pub(super) fn put_back(&mut self, occurrence: Occurrence) {
        self.0.push_front(occurrence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_become_untrue_is_not_told() {
        let node = "edge-1".parse().unwrap();
        let mut queue = Queue::default();
        queue.extend([
            Occurrence::offline(&node),
            Occurrence::claimed_twice(&node, "of two"),
        ]);
        queue.extend([
            Occurrence::claimed_twice(&node, "of two"),
            Occurrence::online(&node),
        ]);
        assert_eq!(
            queue.pop(),
            Some(Occurrence::claimed_twice(&node, "of two"))
        );
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn a_queue_that_nobody_empties_does_not_grow() {
        let mut queue = Queue::default();
        queue.extend(
            (0..=CAPACITY)
                .map(|number| Occurrence::offline(&format!("edge-{number}").parse().unwrap())),
        );
        assert_eq!(queue.0.len(), CAPACITY);
    }
}
