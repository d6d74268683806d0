//! Watch events in JSON: one document after another.

use super::object::{annotation, member, read, type_meta};
use super::scan::{ValueBuffer, check, text, trim_start};
use super::table::read_one_row;
use crate::wire::limits::{OBJECT_MAX, SplitError};
use crate::wire::{Event, EventKind, INITIAL_EVENTS_END};

/// Splits a watch in JSON.
#[derive(Debug, Default)]
pub(crate) struct EventSplitter {
    buffer: ValueBuffer,
    /// The objects are tables with one row.
    of_rows: bool,
}

impl EventSplitter {
    /// Splits a watch of tables.
    pub(crate) fn of_rows() -> Self {
        Self {
            of_rows: true,
            ..Self::default()
        }
    }

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
        let event = event(self.buffer.value(), self.of_rows)?;
        self.buffer.clear();
        Ok(Some(event))
    }
}

fn event(document: &[u8], of_rows: bool) -> Result<Event, SplitError> {
    check(document)?;
    let word = member(document, "type")?.ok_or(SplitError::EventType)?;
    let bytes = member(document, "object")?.ok_or(SplitError::Json {
        expected: "the object of an event",
    })?;
    let kind = match EventKind::from_word(&text(word)?).ok_or(SplitError::EventType)? {
        EventKind::Error { .. } => {
            return Ok(Event::error(code(bytes)?, type_meta(bytes)?, bytes));
        }
        kind @ (EventKind::Added
        | EventKind::Modified
        | EventKind::Deleted
        | EventKind::Bookmark { .. }) => kind,
    };
    let (type_meta, object) = if of_rows {
        read_one_row(bytes)?
    } else {
        (type_meta(bytes)?, read(bytes)?)
    };
    let kind = match kind {
        EventKind::Bookmark { .. } => EventKind::Bookmark {
            initial_events_end: is_initial_events_end(&object.bytes, of_rows)?,
        },
        EventKind::Added | EventKind::Modified | EventKind::Deleted | EventKind::Error { .. } => {
            kind
        }
    };
    Event::checked(kind, type_meta, object)
}

fn is_initial_events_end(bytes: &[u8], of_rows: bool) -> Result<bool, SplitError> {
    let object = if of_rows {
        member(bytes, "object")?
    } else {
        Some(bytes)
    };
    let annotation = match object {
        Some(object) => annotation(object, INITIAL_EVENTS_END)?,
        None => None,
    };
    Ok(annotation.as_deref() == Some("true"))
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
