//! Local writes as the client of a watch sees them. They are sent as events while the API server
//! cannot be asked, and reverted before its own events come: it has not seen these writes. So
//! kubelet notices that they did not arrive, and sends them again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Session;
use crate::cache::{ObjectName, Snapshot};
use crate::watches::position::Position;
use crate::wire::{Bookmark, Event, EventKind, Object, TypeMeta};

/// One object, or none.
type State = Option<Arc<Object>>;

/// The local writes that the client has seen.
#[derive(Debug, Default)]
pub(super) struct SentOverlays {
    by_name: BTreeMap<ObjectName, SentObject>,
}

/// One object as the client has seen it.
#[derive(Clone, Debug)]
struct SentObject {
    /// What the API server sent.
    original: State,
    shown: State,
}

impl SentOverlays {
    /// The client has seen all of this snapshot.
    pub(super) fn set_all(&mut self, snapshot: &Snapshot) {
        self.by_name = Self::of(snapshot);
    }

    fn of(snapshot: &Snapshot) -> BTreeMap<ObjectName, SentObject> {
        let overlaid = snapshot.overlaid();
        overlaid
            .map(|(name, original, shown)| {
                let original = original.map(|it| Arc::new(it.object()));
                let shown = shown.cloned();
                (name.clone(), SentObject { original, shown })
            })
            .collect()
    }

    /// Goes to what the snapshot shows; returns the events that lead there.
    fn advance(&mut self, snapshot: &Snapshot) -> Vec<(EventKind, Arc<Object>)> {
        let mut events = Vec::new();
        let mut earlier = std::mem::take(&mut self.by_name);
        for (name, SentObject { original, shown }) in Self::of(snapshot) {
            let sent = earlier.remove(&name).unwrap_or_else(|| SentObject {
                shown: original.clone(),
                original,
            });
            events.extend(between(&sent.shown, &shown));
            let original = sent.original;
            self.by_name.insert(name, SentObject { original, shown });
        }
        // Another client has got a newer state of these from the API server.
        for sent in earlier.into_values() {
            events.extend(between(&sent.shown, &sent.original));
        }
        events
    }

    /// Goes back to what the API server sent; returns the events that lead there.
    fn revert(&mut self) -> Vec<(EventKind, Arc<Object>)> {
        let mut events = Vec::new();
        for sent in std::mem::take(&mut self.by_name).into_values() {
            events.extend(between(&sent.shown, &sent.original));
        }
        events
    }
}

/// The events that lead from one state of an object to another.
fn between(from: &State, to: &State) -> Vec<(EventKind, Arc<Object>)> {
    match (from, to) {
        (None, None) => Vec::new(),
        (Some(from), Some(to)) if from == to => Vec::new(),
        (Some(from), Some(to)) if from.metadata.uid == to.metadata.uid => {
            vec![(EventKind::Modified, to.clone())]
        }
        (from, to) => {
            let deleted = from.iter().map(|it| (EventKind::Deleted, it.clone()));
            let added = to.iter().map(|it| (EventKind::Added, it.clone()));
            deleted.chain(added).collect()
        }
    }
}

impl Session {
    /// Sends what was written locally since the last time.
    pub(super) fn send_overlays(&mut self, version: u64) {
        if let Some(snapshot) = self.client.snapshot() {
            let events = self.overlays.advance(&snapshot);
            self.send_all(&events, &snapshot.item_type, version);
            self.item_type.get_or_insert(snapshot.item_type);
        }
    }

    /// Before the API server's own events: what it does not know did not happen.
    pub(super) fn revert_overlays(&mut self) {
        let events = self.overlays.revert();
        if let (Position::At(version), Some(item_type)) = (self.position, self.item_type.clone()) {
            self.send_all(&events, &item_type, version);
        }
    }

    /// A client that asks for the events after a version may have seen all overlays that there are.
    /// Events after that version come from the API server.
    pub(super) fn assume_overlays(&mut self) {
        let Position::At(version) = self.position else {
            return;
        };
        let Some(snapshot) = self.client.snapshot() else {
            return;
        };
        self.overlays.set_all(&snapshot);
        self.overlays
            .by_name
            .retain(|_, sent| match &sent.original {
                Some(original) => original.metadata.resource_version <= version,
                None => true,
            });
        self.item_type = Some(snapshot.item_type);
    }

    /// The versions of these objects are not those of the watch: a bookmark says where it is.
    fn send_all(
        &mut self,
        events: &[(EventKind, Arc<Object>)],
        item_type: &TypeMeta,
        version: u64,
    ) {
        for (kind, object) in events {
            let event = Event {
                kind: *kind,
                type_meta: item_type.clone(),
                object: (**object).clone(),
            };
            self.output.push(&event);
        }
        if !events.is_empty() {
            self.send_bookmark(version, Bookmark::Progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Metadata;

    fn state(uid: &str, bytes: &'static str) -> State {
        Some(Arc::new(Object {
            metadata: Metadata {
                uid: uid.to_owned(),
                ..Metadata::default()
            },
            bytes: bytes.into(),
        }))
    }

    #[test]
    fn a_remade_object_is_deleted_and_added_and_a_changed_one_modified() {
        let kinds = |from: &State, to: &State| {
            let events = between(from, to);
            events.into_iter().map(|it| it.0).collect::<Vec<_>>()
        };
        let one = state("u", "1");
        let changed = state("u", "2");
        let remade = state("v", "1");
        assert_eq!(kinds(&one, &one), []);
        assert_eq!(kinds(&one, &changed), [EventKind::Modified]);
        assert_eq!(kinds(&one, &None), [EventKind::Deleted]);
        assert_eq!(kinds(&None, &one), [EventKind::Added]);
        let both = [EventKind::Deleted, EventKind::Added];
        assert_eq!(kinds(&one, &remade), both);
    }
}
