//! Watch events in protobuf: four bytes of length (big endian), then the event.

use super::field::{Fields, Value, malformed, text};
use super::object::{annotations, open, read};
use super::{status, watch_event};
use crate::wire::limits::{KEPT_CAPACITY, OBJECT_MAX, SplitError};
use crate::wire::{Event, EventKind, INITIAL_EVENTS_END};

/// The length before an event, in bytes.
const PREFIX: usize = 4;

/// Splits a watch in protobuf.
#[derive(Debug, Default)]
pub(crate) struct EventSplitter {
    /// The prefix, and what has arrived of the event.
    frame: Vec<u8>,
}

impl EventSplitter {
    pub(crate) fn next_event(&mut self, chunk: &mut &[u8]) -> Result<Option<Event>, SplitError> {
        if !self.fill(PREFIX, chunk) {
            return Ok(None);
        }
        let prefix = [self.frame[0], self.frame[1], self.frame[2], self.frame[3]];
        let length = u32::from_be_bytes(prefix) as usize;
        if length > OBJECT_MAX {
            return Err(SplitError::ObjectTooLong { limit: OBJECT_MAX });
        }
        if !self.fill(PREFIX + length, chunk) {
            return Ok(None);
        }
        let event = event(&self.frame[PREFIX..])?;
        self.frame.clear();
        self.frame.shrink_to(KEPT_CAPACITY);
        Ok(Some(event))
    }

    /// Moves bytes out of `chunk` until the frame has so many. `false`: the chunk is used up.
    fn fill(&mut self, length: usize, chunk: &mut &[u8]) -> bool {
        let missing = length.saturating_sub(self.frame.len());
        let (part, rest) = chunk.split_at(missing.min(chunk.len()));
        self.frame.extend_from_slice(part);
        *chunk = rest;
        self.frame.len() >= length
    }
}

fn event(message: &[u8]) -> Result<Event, SplitError> {
    let mut word = String::new();
    let mut envelope = &[][..];
    for field in Fields::of(message) {
        let field = field?;
        if let Some(bytes) = field.bytes(watch_event::TYPE) {
            word = text(bytes)?;
        } else if let Some(extension) = field.bytes(watch_event::OBJECT) {
            for inner in Fields::of(extension) {
                envelope = inner?.bytes(watch_event::OBJECT_RAW).unwrap_or(envelope);
            }
        }
    }
    let kind = EventKind::from_word(&word).ok_or(SplitError::EventType)?;
    let (type_meta, raw) = open(envelope)?;
    let kind = match kind {
        EventKind::Bookmark { .. } => EventKind::Bookmark {
            initial_events_end: annotations(raw)?
                .get(INITIAL_EVENTS_END)
                .is_some_and(|value| value == "true"),
        },
        EventKind::Error { .. } => return Ok(Event::error(code(raw)?, type_meta, raw)),
        EventKind::Added | EventKind::Modified | EventKind::Deleted => kind,
    };
    Event::checked(kind, type_meta, read(raw)?)
}

/// `Status.code`; zero if it is missing.
fn code(message: &[u8]) -> Result<u16, SplitError> {
    let mut code = 0;
    for field in Fields::of(message) {
        let field = field?;
        if let (status::CODE, Value::Varint(value)) = (field.number, field.value) {
            code = u16::try_from(value).map_err(|_| malformed("the code of a status"))?;
        }
    }
    Ok(code)
}
