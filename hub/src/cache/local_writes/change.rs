//! Whether a local write changes anything, and whether that is worth a write to the disk.

use serde_json::Value as Json;

use crate::wire::{Encoding, Object};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Nothing but the time of it.
    Heartbeat,
    Other,
}

/// What differs between two states of an object, which have the same resource version.
pub(super) fn change(encoding: Encoding, earlier: &Object, later: &Object) -> Change {
    if earlier.bytes == later.bytes {
        return Change::None;
    }
    if encoding != Encoding::Json {
        return Change::Other;
    }
    let Ok(earlier) = serde_json::from_slice::<Json>(&earlier.bytes) else {
        return Change::Other;
    };
    let Ok(later) = serde_json::from_slice::<Json>(&later.bytes) else {
        return Change::Other;
    };
    if earlier == later {
        return Change::None;
    }
    if without_heartbeats(earlier) == without_heartbeats(later) {
        Change::Heartbeat
    } else {
        Change::Other
    }
}

fn without_heartbeats(mut object: Json) -> Json {
    if let Some(Json::Array(conditions)) = object.pointer_mut("/status/conditions") {
        for condition in conditions {
            if let Some(condition) = condition.as_object_mut() {
                condition.remove("lastHeartbeatTime");
            }
        }
    }
    object
}
