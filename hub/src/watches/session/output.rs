//! What the client of a watch gets next, in order.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::cache::{Cursor, Snapshot};
use crate::filters::Filter;
use crate::wire::{Encoding, Event, EventKind};

/// Events that the client has not read yet.
pub(super) struct Output {
    encoding: Encoding,
    /// What the client sees otherwise than the API server says it.
    filter: Option<Filter>,
    queue: VecDeque<Outgoing>,
    /// Bytes of `queue`.
    bytes: usize,
}

enum Outgoing {
    Bytes(Bytes),
    /// An event for each object, made when its turn comes.
    Members(Box<Snapshot>, Cursor),
}

impl Output {
    pub(super) const fn new(encoding: Encoding, filter: Option<Filter>) -> Self {
        Self {
            encoding,
            filter,
            queue: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many bytes wait.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends an event of the hub.
    pub(super) fn push(&mut self, event: &Event) {
        self.push_written(event.frame(self.encoding));
    }

    /// Appends an event that is written already.
    pub(super) fn push_written(&mut self, event: Bytes) {
        let event = self.filtered(event);
        self.push_unfiltered(event);
    }

    /// Appends bytes that no filter changes.
    pub(super) fn push_unfiltered(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        self.queue.push_back(Outgoing::Bytes(bytes));
    }

    /// Appends an event for each object.
    pub(super) fn push_members(&mut self, members: Snapshot) {
        let members = Outgoing::Members(Box::new(members), Cursor::default());
        self.queue.push_back(members);
    }

    /// Counts that events were not understood, so that no filter changes them.
    pub(super) fn record_unfiltered(&self) {
        if let Some(filter) = &self.filter {
            filter.failed();
        }
    }

    /// The bytes whose turn it is.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        while let Some(outgoing) = self.queue.front_mut() {
            let event = match outgoing {
                Outgoing::Bytes(bytes) => {
                    let bytes = std::mem::take(bytes);
                    self.queue.pop_front();
                    self.bytes -= bytes.len();
                    return Some(bytes);
                }
                Outgoing::Members(members, cursor) => next_added(members, cursor),
            };
            match event {
                Some(event) => return Some(self.filtered(event.frame(self.encoding))),
                None => drop(self.queue.pop_front()),
            }
        }
        None
    }

    fn filtered(&self, event: Bytes) -> Bytes {
        match &self.filter {
            Some(filter) => filter.event(event),
            None => event,
        }
    }
}

fn next_added(members: &Snapshot, cursor: &mut Cursor) -> Option<Event> {
    let member = members.next_item(cursor)?;
    Some(Event {
        kind: EventKind::Added,
        type_meta: members.item_type.clone(),
        object: member.object(),
    })
}
