//! Watch events in JSON: one document after another.

use super::object::{annotation, member, read, type_meta};
use super::scan::{ValueBuffer, check, text, trim_start};
use crate::wire::split::{OBJECT_MAX, SplitError};
use crate::wire::{Event, EventKind, INITIAL_EVENTS_END};

/// Splits a watch in JSON.
#[derive(Debug, Default)]
pub(crate) struct EventSplitter {
    buffer: ValueBuffer,
}

impl EventSplitter {
    pub(crate) fn next_event(&mut self, chunk: &mut &[u8]) -> Result<Option<Event>, SplitError> {
        if !self.buffer.is_inside_value() {
            *chunk = trim_start(chunk);
        }
        if chunk.is_empty() {
            return Ok(None);
        }
        let too_long = SplitError::ObjectTooLong { limit: OBJECT_MAX };
        if !self.buffer.collect(chunk, OBJECT_MAX, too_long)? {
            return Ok(None);
        }
        let event = event(self.buffer.value())?;
        self.buffer.clear();
        Ok(Some(event))
    }

    pub(crate) fn is_between_events(&self) -> bool {
        !self.buffer.is_inside_value()
    }
}

fn event(document: &[u8]) -> Result<Event, SplitError> {
    check(document)?;
    let word = member(document, "type")?.ok_or(SplitError::EventType)?;
    let bytes = member(document, "object")?.ok_or(SplitError::Json {
        expected: "the object of an event",
    })?;
    let kind = match EventKind::from_word(&text(word)?).ok_or(SplitError::EventType)? {
        EventKind::Bookmark { .. } => EventKind::Bookmark {
            initial_events_end: annotation(bytes, INITIAL_EVENTS_END)?.as_deref() == Some("true"),
        },
        EventKind::Error { .. } => {
            return Ok(Event::error(code(bytes)?, type_meta(bytes)?, bytes));
        }
        kind @ (EventKind::Added | EventKind::Modified | EventKind::Deleted) => kind,
    };
    let object = read(bytes)?;
    Event::checked(kind, type_meta(bytes)?, object)
}

/// `Status.code`; zero if it is missing.
fn code(status: &[u8]) -> Result<u16, SplitError> {
    match member(status, "code")? {
        Some(code) => serde_json::from_slice(code).map_err(|_| SplitError::Json {
            expected: "the code of a status",
        }),
        None => Ok(0),
    }
}
