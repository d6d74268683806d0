//! Local writes as the client of a watch sees them. They are told while the API server cannot be
//! asked, and taken back before it speaks again: it has not seen them. So kubelet notices that its
//! writes did not arrive, and sends them again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Session;
use crate::answers::local;
use crate::cache::{ObjectName, Snapshot};
use crate::watches::position::Position;
use crate::wire::{Bookmark, Event, EventKind, Object, TypeMeta};

/// One object, or none.
type State = Option<Arc<Object>>;

/// What the client was told of local writes.
#[derive(Debug, Default)]
pub(super) struct ToldOverlays {
    by_name: BTreeMap<ObjectName, ToldObject>,
}

/// What a client was told of one object.
#[derive(Clone, Debug)]
struct ToldObject {
    /// By the API server.
    original: State,
    shown: State,
}

impl ToldOverlays {
    /// The client has been told all of this snapshot.
    pub(super) fn note_all(&mut self, snapshot: &Snapshot) {
        self.by_name = Self::of(snapshot);
    }

    fn of(snapshot: &Snapshot) -> BTreeMap<ObjectName, ToldObject> {
        let overlaid = snapshot.overlaid();
        overlaid
            .map(|(name, original, shown)| {
                let original = original.map(|it| Arc::new(it.object()));
                let shown = shown.cloned();
                (name.clone(), ToldObject { original, shown })
            })
            .collect()
    }

    /// Goes to what the snapshot shows; returns what has to be told for it.
    fn advance(&mut self, snapshot: &Snapshot) -> Vec<(EventKind, Arc<Object>)> {
        let mut events = Vec::new();
        let mut earlier = std::mem::take(&mut self.by_name);
        for (name, ToldObject { original, shown }) in Self::of(snapshot) {
            let told = earlier.remove(&name).unwrap_or_else(|| ToldObject {
                shown: original.clone(),
                original,
            });
            events.extend(between(&told.shown, &shown));
            let ToldObject { original, .. } = told;
            self.by_name.insert(name, ToldObject { original, shown });
        }
        // The API server has spoken of these to somebody else.
        for told in earlier.into_values() {
            events.extend(between(&told.shown, &told.original));
        }
        events
    }

    /// Goes back to what the API server said.
    fn take_back(&mut self) -> Vec<(EventKind, Arc<Object>)> {
        let told = std::mem::take(&mut self.by_name).into_values();
        told.flat_map(|told| between(&told.shown, &told.original))
            .collect()
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
    /// Tells what was written locally since the last time.
    pub(super) fn tell_overlays(&mut self, version: u64) {
        if let Some(snapshot) = self.snapshot() {
            let events = self.overlays.advance(&snapshot);
            self.tell_all(&events, &snapshot.item_type, version);
            self.item_type.get_or_insert(snapshot.item_type);
        }
    }

    /// Before the API server speaks: what it does not know did not happen.
    pub(super) fn take_overlays_back(&mut self) {
        let events = self.overlays.take_back();
        if let (Position::At(version), Some(item_type)) = (self.position, self.item_type.clone()) {
            self.tell_all(&events, &item_type, version);
        }
    }

    /// A client that goes on from a version may have been told of all overlays that there are. What
    /// is later than that version, the API server tells.
    pub(super) fn suppose_overlays(&mut self) {
        let Position::At(version) = self.position else {
            return;
        };
        let Some(snapshot) = self.snapshot() else {
            return;
        };
        self.overlays.note_all(&snapshot);
        self.overlays
            .by_name
            .retain(|_, told| match &told.original {
                Some(original) => original.metadata.resource_version <= version,
                None => true,
            });
        self.item_type = Some(snapshot.item_type);
    }

    fn snapshot(&self) -> Option<Snapshot> {
        let client = &self.client;
        local::snapshot(&client.hub.memory, &client.reader, &client.read)
    }

    /// The versions of these objects are not those of the watch: a bookmark says where it is.
    fn tell_all(
        &mut self,
        events: &[(EventKind, Arc<Object>)],
        item_type: &TypeMeta,
        version: u64,
    ) {
        let encoding = self.client.encoding();
        for (kind, object) in events {
            let event = Event {
                kind: *kind,
                type_meta: item_type.clone(),
                object: (**object).clone(),
            };
            self.send(event.frame(encoding));
        }
        if !events.is_empty() {
            self.tell_bookmark(version, Bookmark::Progress);
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
