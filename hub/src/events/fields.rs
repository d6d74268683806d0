//! The fields of events, which differ between the core group and `events.k8s.io`: `generated.proto`
//! of `k8s.io/api/{core,events}/v1`.

use serde_json::Value as Json;

use crate::wire::edit::{self, Path, Value};
use crate::wire::split::{ObjectSplitter, SplitError};
use crate::wire::{Encoding, Object, Shape};

/// Where an event of one group has what.
#[derive(Debug)]
pub(super) struct EventFields {
    /// Kind, namespace, name, uid and field of the object that it is about, and the reason.
    about: [Path; 6],
    count: Path,
    first: Path,
    /// When it happened last, of an event that has no count before it happens again.
    last: Option<(Path, Path)>,
}

const CORE: EventFields = EventFields {
    about: [
        path(&["involvedObject", "kind"], &[2, 1]),
        path(&["involvedObject", "namespace"], &[2, 2]),
        path(&["involvedObject", "name"], &[2, 3]),
        path(&["involvedObject", "uid"], &[2, 4]),
        path(&["involvedObject", "fieldPath"], &[2, 7]),
        path(&["reason"], &[3]),
    ],
    count: path(&["count"], &[8]),
    first: path(&["firstTimestamp"], &[6]),
    last: None,
};

const EVENTS: EventFields = EventFields {
    about: [
        path(&["regarding", "kind"], &[8, 1]),
        path(&["regarding", "namespace"], &[8, 2]),
        path(&["regarding", "name"], &[8, 3]),
        path(&["regarding", "uid"], &[8, 4]),
        path(&["regarding", "fieldPath"], &[8, 7]),
        path(&["reason"], &[7]),
    ],
    count: path(&["series", "count"], &[3, 1]),
    first: EVENT_TIME,
    last: Some((EVENT_TIME, path(&["series", "lastObservedTime"], &[3, 2]))),
};

const EVENT_TIME: Path = path(&["eventTime"], &[2]);

const fn path(json: &'static [&'static str], protobuf: &'static [u64]) -> Path {
    Path { json, protobuf }
}

impl EventFields {
    pub(super) fn of(group: &str) -> &'static Self {
        if group.is_empty() { &CORE } else { &EVENTS }
    }

    /// Object and reason.
    pub(super) fn about(&self, encoding: Encoding, event: &[u8]) -> Result<String, SplitError> {
        let words = self.about.iter();
        let words: Result<Vec<_>, _> = words
            .map(|path| edit::text(encoding, event, *path))
            .collect();
        Ok(words?.join("\n"))
    }

    /// How often it happened.
    pub(super) fn count(&self, encoding: Encoding, event: &[u8]) -> Result<u64, SplitError> {
        Ok(edit::number(encoding, event, self.count)?.max(1))
    }

    /// The event, which follows an earlier one that had happened so often.
    pub(super) fn follow(
        &self,
        encoding: Encoding,
        event: &[u8],
        earlier: &Object,
        before: u64,
    ) -> Result<Vec<u8>, SplitError> {
        let count = before.saturating_add(self.count(encoding, event)?);
        // It is an `int32`.
        let count = Value::Number(count.min(i32::MAX as u64));
        let mut event = edit::set(encoding, event, self.count, &count)?;
        if let Some((from, to)) = self.last
            && let Some(time) = edit::get(encoding, &event, from)?
        {
            event = edit::set(encoding, &event, to, &time)?;
        }
        if let Some(first) = edit::get(encoding, &earlier.bytes, self.first)? {
            event = edit::set(encoding, &event, self.first, &first)?;
        }
        Ok(event)
    }
}

/// An event out of its body.
pub(super) fn open(encoding: Encoding, body: &[u8]) -> Result<Object, SplitError> {
    let mut splitter = ObjectSplitter::new(encoding, Shape::Object);
    splitter.push(body)?;
    Ok(splitter.finish()?.1)
}

/// The count that a patch of an event of either group sets.
pub(super) fn count_in(patch: &Json) -> Option<u64> {
    let count = patch
        .get("count")
        .or_else(|| patch.pointer("/series/count"));
    count?.as_u64()
}

/// Adds to the count that a patch sets.
pub(super) fn add_to_count(patch: &mut Json, before: u64) {
    for pointer in ["/count", "/series/count"] {
        if let Some(count) = patch.pointer_mut(pointer)
            && let Some(number) = count.as_u64()
        {
            *count = Json::from(number.saturating_add(before).min(i32::MAX as u64));
        }
    }
}

/// Makes one patch of two.
pub(super) fn extend_patch(patch: &mut Json, later: Json) {
    match (patch, later) {
        (Json::Object(patch), Json::Object(later)) => {
            for (key, value) in later {
                extend_patch(patch.entry(key).or_insert(Json::Null), value);
            }
        }
        (patch, later) => *patch = later,
    }
}
