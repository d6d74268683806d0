//! Events of kubelet that the API server has not got: they would be lost, because an event is not
//! sent again. They are queued, and sent with their original times when the link is back.

mod fields;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use self::fields::EventFields;
use crate::store::{Batch, Rows, Table};
use crate::wire::split::SplitError;
use crate::wire::{Encoding, Object, TypeMeta};

/// Beyond these the oldest goes.
const MAX_EVENTS: usize = 1_000;
const MAX_BYTES: usize = 1 << 20;

/// A write of an event as it will be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedEvent {
    pub(crate) head: EventHead,
    pub(crate) body: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventHead {
    pub(crate) path: String,
    pub(crate) content_type: String,
    pub(crate) kind: WriteKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WriteKind {
    Create {
        /// Object and reason.
        about: String,
        name: String,
        /// How often it had happened when this event was made: events of the same object and
        /// reason that it replaces.
        before: u64,
    },
    Patch,
}

impl QueuedEvent {
    fn size(&self) -> usize {
        self.head.path.len() + self.body.len()
    }
}

/// What is queued, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    queued: BTreeMap<u64, QueuedEvent>,
    /// The place of the next one. Not that of one that is being sent, and may come back.
    next: u64,
    bytes: usize,
    unsaved: Batch,
}

/// An event that a client creates.
pub(crate) struct NewEvent<'a> {
    /// The path of the collection.
    pub(crate) path: &'a str,
    /// Empty: the core group.
    pub(crate) group: &'a str,
    pub(crate) encoding: Encoding,
    pub(crate) type_meta: TypeMeta,
    pub(crate) object: Object,
}

impl EventQueue {
    /// What was on disk.
    pub(crate) fn restore(rows: &Rows) -> Self {
        let mut queue = Self::default();
        for (key, value) in rows.all(Table::Events) {
            if let (Ok(place), Some(event)) = (u64::from_str_radix(key, 16), parse(value)) {
                queue.put(place, event);
            }
        }
        queue.unsaved = Batch::default();
        queue
    }

    /// Queues an event, in the place of an earlier one of the same object and reason. Returns how
    /// many old events had to go for it.
    pub(crate) fn create(&mut self, new: NewEvent<'_>) -> Result<usize, SplitError> {
        let NewEvent {
            path,
            group,
            encoding,
            type_meta,
            object,
        } = new;
        let fields = EventFields::of(group);
        let about = fields.about(encoding, &object.bytes)?;
        let content_type = encoding.content_type();
        let mut earlier = None;
        for (place, event) in &self.queued {
            if matches!(&event.head.kind, WriteKind::Create { about: it, .. } if *it == about)
                && event.head.content_type == content_type
            {
                earlier = Some((*place, event.clone()));
                break;
            }
        }
        let mut bytes = object.bytes.to_vec();
        let mut before = 0;
        let place = match earlier {
            None => self.next,
            Some((place, earlier)) => {
                let first = fields::open(encoding, &earlier.body)?;
                before = self.take_count(fields, encoding, &earlier, &first)?;
                bytes = fields.follow(encoding, &bytes, &first, before)?;
                place
            }
        };
        let name = object.metadata.name.clone();
        let object = Object {
            bytes: bytes.into(),
            ..object
        };
        let head = EventHead {
            path: path.to_owned(),
            content_type: content_type.to_owned(),
            kind: WriteKind::Create {
                about,
                name,
                before,
            },
        };
        let body = object.alone(encoding, &type_meta);
        self.put(place, QueuedEvent { head, body });
        Ok(self.enforce_bounds())
    }

    /// Queues a patch of an event, after an earlier one of the same event. Returns how many old
    /// events had to go for it.
    pub(crate) fn patch(&mut self, path: &str, content_type: &str, patch: &Json) -> usize {
        let mut patch = patch.clone();
        fields::add_to_count(&mut patch, self.before(path));
        let (place, body) = match self.find_patch(path) {
            None => (self.next, patch),
            Some((place, earlier)) => {
                let mut both = serde_json::from_slice(&earlier.body).unwrap_or_default();
                fields::extend_patch(&mut both, patch);
                (place, both)
            }
        };
        let head = EventHead {
            path: path.to_owned(),
            content_type: content_type.to_owned(),
            kind: WriteKind::Patch,
        };
        let body = body.to_string().into();
        self.put(place, QueuedEvent { head, body });
        self.enforce_bounds()
    }

    /// How often the queued event had happened, also by the patch that follows it, which goes.
    fn take_count(
        &mut self,
        fields: &EventFields,
        encoding: Encoding,
        event: &QueuedEvent,
        object: &Object,
    ) -> Result<u64, SplitError> {
        let path = event.head.path.trim_end_matches('/');
        let patch = self.find_patch(&format!("{path}/{}", object.metadata.name));
        if let Some((place, patch)) = patch {
            self.remove(place);
            let patch = serde_json::from_slice(&patch.body).unwrap_or_default();
            if let Some(count) = fields::count_in(&patch) {
                return Ok(count);
            }
        }
        fields.count(encoding, &object.bytes)
    }

    /// What the queued event of this path has replaced.
    fn before(&self, path: &str) -> u64 {
        for event in self.queued.values() {
            if let WriteKind::Create { name, before, .. } = &event.head.kind
                && path == format!("{}/{name}", event.head.path)
            {
                return *before;
            }
        }
        0
    }

    fn find_patch(&self, path: &str) -> Option<(u64, QueuedEvent)> {
        let found = self
            .queued
            .iter()
            .find(|(_, event)| event.head.kind == WriteKind::Patch && event.head.path == path);
        found.map(|(place, event)| (*place, event.clone()))
    }

    pub(crate) fn put(&mut self, place: u64, event: QueuedEvent) {
        self.unsaved.put(Table::Events, key(place), row(&event));
        self.next = self.next.max(place + 1);
        self.bytes += event.size();
        if let Some(earlier) = self.queued.insert(place, event) {
            self.bytes -= earlier.size();
        }
    }

    fn remove(&mut self, place: u64) -> Option<QueuedEvent> {
        let removed = self.queued.remove(&place)?;
        self.bytes -= removed.size();
        self.unsaved.remove(Table::Events, key(place));
        Some(removed)
    }

    fn enforce_bounds(&mut self) -> usize {
        let mut gone = 0;
        while self.queued.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            if self.take_first().is_none() {
                break;
            }
            gone += 1;
        }
        gone
    }

    /// Takes the oldest, and its place.
    pub(crate) fn take_first(&mut self) -> Option<(u64, QueuedEvent)> {
        let place = *self.queued.first_key_value()?.0;
        Some((place, self.remove(place)?))
    }

    /// What came and went since the last time.
    pub(crate) fn take_unsaved(&mut self) -> Batch {
        std::mem::take(&mut self.unsaved)
    }

    /// How much the next batch will write.
    pub(crate) fn unsaved_bytes(&self) -> usize {
        self.unsaved.bytes()
    }

    /// Adds everything to a batch, for a disk that may have anything.
    pub(crate) fn put_all(&mut self, batch: &mut Batch) {
        self.unsaved = Batch::default();
        batch.replace(Table::Events);
        for (place, event) in &self.queued {
            batch.put(Table::Events, key(*place), row(event));
        }
    }
}

fn key(place: u64) -> String {
    format!("{place:016x}")
}

fn row(event: &QueuedEvent) -> Vec<u8> {
    let head = serde_json::to_vec(&event.head).expect("text and numbers are always JSON");
    [&head, &b"\n"[..], &event.body].concat()
}

fn parse(row: &[u8]) -> Option<QueuedEvent> {
    let end = row.iter().position(|byte| *byte == b'\n')?;
    Some(QueuedEvent {
        head: serde_json::from_slice(&row[..end]).ok()?,
        body: Bytes::copy_from_slice(&row[end + 1..]),
    })
}

#[cfg(test)]
mod tests;
