//! The last of many events, for observers that come and go. Adding one never waits for them: a
//! slow observer misses the oldest ones, and knows how many.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// How many are kept: a tenth of a second of a very busy proxy, in a few MB.
const MAX_EVENTS: usize = 8_192;

/// Events by number, the first of all is 0.
#[derive(Debug)]
pub struct Recent<T> {
    events: Mutex<Events<T>>,
    /// The number of the next event.
    next_tx: watch::Sender<u64>,
}

#[derive(Debug)]
struct Events<T> {
    next: u64,
    kept: VecDeque<T>,
}

/// What an observer reads.
#[derive(Debug, PartialEq, Eq)]
pub struct Read<T> {
    /// Events that were gone before it read them.
    pub lost: u64,
    /// The events, in their order.
    pub events: Vec<T>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        let events = Events {
            next: 0,
            kept: VecDeque::new(),
        };
        Self {
            events: Mutex::new(events),
            next_tx: watch::Sender::default(),
        }
    }
}

impl<T> Events<T> {
    /// The number of the oldest that is kept.
    fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }
}

impl<T: Clone> Recent<T> {
    /// Adds an event. The oldest one goes if there are too many.
    pub fn add(&self, event: T) {
        let mut events = self.lock();
        if events.kept.len() == MAX_EVENTS {
            events.kept.pop_front();
        }
        events.kept.push_back(event);
        events.next += 1;
        let next = events.next;
        drop(events);
        // Two threads may come here in the reverse order.
        self.next_tx.send_if_modified(|known| {
            let is_later = next > *known;
            *known = next.max(*known);
            is_later
        });
    }

    /// The number of the oldest event that is kept.
    pub fn oldest(&self) -> u64 {
        self.lock().first()
    }

    /// The events from `cursor` on, `most` of them at most. The cursor moves behind them.
    pub fn read(&self, cursor: &mut u64, most: usize) -> Read<T> {
        let events = self.lock();
        let from = (*cursor).max(events.first());
        let lost = from - *cursor;
        let skipped = usize::try_from(from - events.first()).unwrap_or(usize::MAX);
        let begin = skipped.min(events.kept.len());
        let end = begin.saturating_add(most).min(events.kept.len());
        let mut read = Vec::new();
        for event in events.kept.range(begin..end) {
            read.push(event.clone());
        }
        *cursor = from + read.len() as u64;
        Read { lost, events: read }
    }

    /// Waits for an event with this number or a later one.
    pub async fn wait_for(&self, cursor: u64) {
        let mut next_rx = self.next_tx.subscribe();
        // The sender is in `self`, so there is no error.
        let _next = next_rx.wait_for(|next| *next > cursor).await;
    }

    fn lock(&self) -> MutexGuard<'_, Events<T>> {
        self.events.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_reads_everything_once_in_its_order() {
        let recent = Recent::default();
        (0..5).for_each(|event| recent.add(event));
        let mut cursor = 0;
        assert_eq!(recent.read(&mut cursor, 3).events, [0, 1, 2]);
        recent.add(5);
        let rest = recent.read(&mut cursor, 100);
        assert_eq!((rest.lost, rest.events), (0, vec![3, 4, 5]));
        assert_eq!(recent.read(&mut cursor, 100).events, [0; 0]);
    }

    #[test]
    fn a_slow_observer_is_told_how_many_it_has_missed() {
        let recent = Recent::default();
        let all = u64::try_from(MAX_EVENTS).unwrap() + 7;
        (0..all).for_each(|event| recent.add(event));
        let mut cursor = 2;
        let read = recent.read(&mut cursor, 1);
        assert_eq!((read.lost, read.events), (5, vec![7]));
        assert_eq!(recent.oldest(), 7);
    }

    #[tokio::test]
    async fn an_observer_waits_for_what_is_not_there_yet() {
        let recent = Recent::default();
        let waiting = recent.wait_for(1);
        let adding = async {
            recent.add(0);
            recent.add(1);
        };
        tokio::join!(waiting, adding);
        let mut cursor = 1;
        assert_eq!(recent.read(&mut cursor, 9).events, [1]);
    }

    /// Writers on several threads, and no reader.
    #[test]
    fn nobody_has_to_read() {
        let recent = Recent::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|event| recent.add(event)));
            }
        });
        assert_eq!(
            recent.oldest(),
            200_000 - u64::try_from(MAX_EVENTS).unwrap()
        );
    }
}
