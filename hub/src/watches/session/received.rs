//! What the API server sends on a watch: whole events go to the client and to the memory.

use bytes::Bytes;
use hyper::body::Frame;
use tokio::time::Instant;

use super::{Session, State};
use crate::cache::{Applied, WatchCopy, WatchStart};
use crate::metrics::GAP;
use crate::upstream::pool::AnswerBody;
use crate::wire::split::{EventSplitter, SplitError};
use crate::wire::{Event, EventKind};

/// Capacity that the buffer of an event keeps between two of them.
const MIN_CAPACITY: usize = 4 << 10;
/// The API server has forgotten what happened since the version that it was asked for.
const GONE: EventKind = EventKind::Error { code: 410 };

/// A watch that the API server answers.
pub(super) struct OpenWatch {
    pub(super) body: AnswerBody,
    splitter: EventSplitter,
    /// The beginning of an event. The client gets whole events only, so that the watch can be
    /// resumed on another connection after any of them.
    partial: Vec<u8>,
    copy: WatchCopy,
}

impl OpenWatch {
    /// The next event that is complete, and its bytes. `received` loses what was read of it.
    fn next_event(&mut self, received: &mut &[u8]) -> Result<Option<(Event, Bytes)>, SplitError> {
        let before = *received;
        let Some(event) = self.splitter.next_event(received)? else {
            self.partial.extend_from_slice(before);
            return Ok(None);
        };
        // Clients that read lines wait for the end of the line.
        *received = received.strip_prefix(b"\n").unwrap_or(received);
        let end = before.len() - received.len();
        self.partial.extend_from_slice(&before[..end]);
        // A copy has no spare capacity, and may wait for long.
        let bytes = Bytes::copy_from_slice(&self.partial);
        self.partial.clear();
        self.partial.shrink_to(MIN_CAPACITY);
        Ok(Some((event, bytes)))
    }

    /// Memory that it occupies. The splitter has the beginning of an event too.
    pub(super) fn bytes(&self) -> usize {
        2 * self.partial.capacity() + self.copy.bytes()
    }
}

impl Session {
    /// Follows a watch that the API server has begun to answer.
    pub(super) fn follow(&mut self, body: AnswerBody, start: WatchStart) {
        self.opened = Instant::now();
        self.missing = 0;
        let client = &self.client;
        let memory = &client.hub.memory;
        let copy = memory.lock().cache.start_watch(&client.read.scope, start);
        self.state = State::Open(Box::new(OpenWatch {
            body,
            splitter: EventSplitter::new(client.encoding(), client.read.shape()),
            partial: Vec::new(),
            copy,
        }));
    }

    /// Handles bytes of the API server.
    pub(super) fn receive(&mut self, frame: Frame<Bytes>) {
        let Ok(received) = frame.into_data() else {
            return;
        };
        let mut rest = &received[..];
        while let State::Open(watch) = &mut self.state {
            let before = rest;
            match watch.next_event(&mut rest) {
                Ok(Some((event, bytes))) => self.receive_event(event, bytes),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "a watch was not understood, and is passed on as it is");
                    self.pass_on(before, error.reason());
                    return;
                }
            }
        }
    }

    fn receive_event(&mut self, event: Event, bytes: Bytes) {
        if event.kind == GONE && self.client_has.is_some() {
            self.state = State::Forgotten;
            return;
        }
        self.client_has = None;
        let client = &self.client;
        if let State::Open(watch) = &mut self.state {
            let now = client.hub.memory.now();
            let cache = &mut client.hub.memory.lock().cache;
            let applied = cache.apply(&mut watch.copy, &event, &client.reader, now);
            if applied == Applied::Behind {
                client.hub.metrics.copy_is_behind(GAP);
            }
        }
        self.position = self.position.after(&event);
        if matches!(event.kind, EventKind::Error { .. }) {
            self.state = State::Ended;
        } else {
            self.item_type = Some(event.type_meta);
        }
        self.output.push_written(bytes);
    }

    /// From here on passes bytes on as they come.
    fn pass_on(&mut self, rest: &[u8], reason: &'static str) {
        let state = std::mem::replace(&mut self.state, State::Ended);
        let State::Open(mut watch) = state else {
            return;
        };
        watch.partial.extend_from_slice(rest);
        self.state = State::PassedOn(watch.body);
        self.output.push_unfiltered(watch.partial.into());
        self.output.record_unfiltered();
        let hub = &self.client.hub;
        hub.metrics.copy_is_behind(reason);
        hub.memory.lock().cache.mark_behind(&self.client.read.scope);
    }
}
