//! The events that lead a client from one state of a collection to another. Pure.

use std::collections::BTreeMap;

use crate::cache::{Item, has_same_content};
use crate::wire::{EventKind, Metadata};

/// Whether the resource versions of two states can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    OfOneHistory,
    /// The cluster was restored in between: a version may have been given a second time.
    OfTwoHistories,
}

/// What happened to objects between two states: deletions first, then the rest by resource version.
/// An object that was deleted and made again is both.
pub(crate) fn between<'a>(
    before: impl Iterator<Item = Item<'a>>,
    after: impl Iterator<Item = Item<'a>>,
    versions: Versions,
) -> Vec<(EventKind, Item<'a>)> {
    let mut before: BTreeMap<_, _> = before
        .map(|object| (name_of(object.metadata()), object))
        .collect();
    let mut deleted = Vec::new();
    let mut changed = Vec::new();
    for object in after {
        let old = before.remove(&name_of(object.metadata()));
        let new = object.metadata();
        match old.map(|old| (old, old.metadata())) {
            Some((item, old)) if old.uid == new.uid => {
                let is_same = old.resource_version == new.resource_version
                    && (versions == Versions::OfOneHistory
                        || has_same_content(&item.bytes(), &object.bytes()));
                if !is_same {
                    changed.push((EventKind::Modified, object));
                }
            }
            Some((old, _)) => {
                deleted.push((EventKind::Deleted, old));
                changed.push((EventKind::Added, object));
            }
            None => changed.push((EventKind::Added, object)),
        }
    }
    deleted.extend(before.into_values().map(|old| (EventKind::Deleted, old)));
    changed.sort_by_key(|(_, object)| object.metadata().resource_version);
    deleted.extend(changed);
    deleted
}

fn name_of(metadata: &Metadata) -> (&str, &str) {
    (&metadata.namespace, &metadata.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Object;

    fn object(name: &str, uid: &str, resource_version: u64) -> Object {
        Object {
            metadata: Metadata {
                name: name.to_owned(),
                uid: uid.to_owned(),
                resource_version,
                ..Metadata::default()
            },
            bytes: "{}".into(),
        }
    }

    #[test]
    fn deletions_come_first_and_a_remade_object_is_deleted_and_added() {
        let before = [
            object("gone", "1", 1),
            object("kept", "2", 2),
            object("remade", "3", 3),
            object("changed", "4", 4),
        ];
        let after = [
            object("kept", "2", 2),
            object("remade", "9", 8),
            object("changed", "4", 9),
            object("new", "5", 7),
        ];
        let events = between(
            before.iter().map(Item::Written),
            after.iter().map(Item::Written),
            Versions::OfOneHistory,
        );
        let mut told: Vec<_> = events
            .iter()
            .map(|(kind, object)| (*kind, object.metadata().name.as_str()))
            .collect();
        told[..2].sort_by_key(|(_, name)| *name);
        assert_eq!(
            told,
            [
                (EventKind::Deleted, "gone"),
                (EventKind::Deleted, "remade"),
                (EventKind::Added, "new"),
                (EventKind::Added, "remade"),
                (EventKind::Modified, "changed"),
            ]
        );
    }

    #[test]
    fn the_same_state_is_no_event() {
        let state = [object("a", "1", 1)];
        let typed = Object {
            bytes: r#"{"kind":"Pod"}"#.into(),
            ..object("a", "1", 1)
        };
        let changed = Object {
            bytes: r#"{"a":"b"}"#.into(),
            ..object("a", "1", 1)
        };
        let events = |after: &Object, versions| {
            let after = std::iter::once(Item::Written(after));
            between(state.iter().map(Item::Written), after, versions).len()
        };
        assert_eq!(events(&state[0], Versions::OfTwoHistories), 0);
        assert_eq!(events(&typed, Versions::OfTwoHistories), 0);
        assert_eq!(events(&changed, Versions::OfOneHistory), 0);
        assert_eq!(events(&changed, Versions::OfTwoHistories), 1);
    }
}
