//! What the splitters and writers do with whole bodies.

mod bodies;
mod json;
mod properties;
mod protobuf;
mod recorded;
mod table;

use super::split::{EventSplitter, ListSplitter, SplitError};
use super::{Encoding, Event, ListHead, Object, Shape};

/// The items and the head of a list that arrives at once.
pub(crate) fn split_list(
    encoding: Encoding,
    mut body: &[u8],
) -> Result<(Vec<Object>, ListHead), SplitError> {
    let mut splitter = ListSplitter::new(encoding, Shape::Object);
    let mut items = Vec::new();
    while let Some(item) = splitter.next_item(&mut body)? {
        items.push(item);
    }
    Ok((items, splitter.finish()?))
}

/// The events of a watch that arrive at once.
fn split_events(encoding: Encoding, mut body: &[u8]) -> Result<Vec<Event>, SplitError> {
    let mut splitter = EventSplitter::new(encoding, Shape::Object);
    let mut events = Vec::new();
    while let Some(event) = splitter.next_event(&mut body)? {
        events.push(event);
    }
    Ok(events)
}
