//! The cache as rows of the store, and back. A set comes back whole or not at all: its head has the
//! number and a checksum of its members, and every member's object must be there.

mod documents;
mod rows;
mod sets;

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use self::documents::{
    put_document_changes, put_documents, put_essential_documents, restore_documents,
};
use self::rows::{
    grant_key, object_key, overlay_key, parse_grant, parse_overlay, parse_type, put_grant,
    put_object, put_overlay,
};
use self::sets::{
    SavedSet, checksum, member_key, put_set_changes, put_whole_set, read_members, set_key,
};
use super::set::{Generation, Members, Set, Unsaved};
use super::{Cache, Clock, Identity, ObjectName, Scope, Verdict};
use crate::store::{Batch, Rows, Table};

/// The tables that the cache owns.
const TABLES: [Table; 7] = [
    Table::Objects,
    Table::Sets,
    Table::Members,
    Table::Grants,
    Table::Overlay,
    Table::Documents,
    Table::DocumentReaders,
];

/// What came back from the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) sets: usize,
    /// Sets that were damaged. They are unknown, and must be filled again.
    pub(crate) damaged_sets: usize,
}

/// About the bytes of a row that says that an object is in a set.
const ROW: usize = 192;

impl Cache {
    /// About how many bytes the next batch has. Zero: nothing that is worth a write. Resource
    /// versions and ages alone are not: they go with the next batch.
    pub(crate) fn unsaved_bytes(&self) -> usize {
        let grants = usize::from(self.grants.has_unsaved() || self.overlays.has_unsaved());
        let documents = self.documents.unsaved_bytes();
        let mut rows = 0;
        for removed in &self.removed {
            rows += 1 + removed.members.len();
        }
        for sets in self.sets.values() {
            for set in sets.values() {
                if set.is_new {
                    rows += set.generation.members.len();
                }
            }
        }
        self.objects.unsaved_bytes() + documents + grants + rows * ROW
    }

    /// Takes all that changed since the last batch: the rows lead from that state to this one.
    pub(crate) fn take_changes(&mut self) -> Batch {
        let mut batch = Batch::default();
        for version in self.objects.take_unsaved() {
            match self.objects.find(&version) {
                Some(object) => put_object(&mut batch, &version.representation, object),
                None => batch.remove(Table::Objects, object_key(&version)),
            }
        }
        for removed in std::mem::take(&mut self.removed) {
            if !is_saved(&removed.scope) {
                continue;
            }
            batch.remove(Table::Sets, set_key(removed.id));
            for name in &removed.members {
                batch.remove(Table::Members, member_key(removed.id, name));
            }
        }
        for (representation, sets) in &mut self.sets {
            for (selection, set) in sets {
                put_set_changes(&mut batch, representation, selection, set);
            }
        }
        for key in self.grants.take_unsaved() {
            match self.grants.find(&key) {
                Some(grant) => put_grant(&mut batch, &key, grant),
                None => batch.remove(Table::Grants, grant_key(&key)),
            }
        }
        for (resource, name) in self.overlays.take_unsaved() {
            match self.overlays.find(&resource, &name) {
                Some(overlay) => put_overlay(&mut batch, &resource, &name, overlay),
                None => batch.remove(Table::Overlay, overlay_key(&resource, &name)),
            }
        }
        put_document_changes(&mut batch, &mut self.documents);
        batch
    }

    /// Takes everything, for a disk that may have anything: nothing is unsaved then.
    pub(crate) fn take_everything(&mut self) -> Batch {
        drop(self.take_changes());
        let mut batch = Batch::replacing(&TABLES);
        for (representation, sets) in &self.sets {
            for (selection, set) in sets {
                put_whole_set(&mut batch, representation, selection, set);
            }
        }
        for (key, grant) in self.grants.all() {
            put_grant(&mut batch, key, *grant);
        }
        for (resource, name, overlay) in self.overlays.saved() {
            put_overlay(&mut batch, resource, name, overlay);
        }
        put_documents(&mut batch, &self.documents);
        batch
    }

    /// What the node needs to start, and what these identities were shown.
    pub(crate) fn essentials(&self, identities: &BTreeSet<Identity>) -> Batch {
        let mut batch = Batch::replacing(&TABLES);
        let mut shown = BTreeSet::new();
        for (key, grant) in self.grants.all() {
            let is_of_pod = identities.contains(&key.identity);
            if is_of_pod && grant.verdict == Verdict::Allowed {
                shown.insert((&key.resource, &key.selection));
            }
            if is_of_pod || key.identity == Identity::Node {
                put_grant(&mut batch, key, *grant);
            }
        }
        for (representation, sets) in &self.sets {
            for (selection, set) in sets {
                if set.essential || shown.contains(&(&representation.resource, selection)) {
                    put_whole_set(&mut batch, representation, selection, set);
                }
            }
        }
        for (resource, name, overlay) in self.overlays.saved() {
            put_overlay(&mut batch, resource, name, overlay);
        }
        put_essential_documents(&mut batch, &self.documents, identities);
        batch
    }

    /// Whether the node reads a set of which nothing was taken for the disk yet.
    pub(crate) fn has_unsaved_essential(&self) -> bool {
        for (representation, sets) in &self.sets {
            let mut sets = sets.values();
            if !representation.resource.is_lease() && sets.any(|set| set.essential && set.is_new) {
                return true;
            }
        }
        false
    }

    /// Whether the disk lacks something that was written locally. Heartbeats are not worth it.
    pub(crate) fn has_unsaved_local_writes(&self) -> bool {
        self.overlays.has_unsaved()
    }

    /// Fills an empty cache with what was on disk.
    pub(crate) fn restore(&mut self, rows: &Rows) -> Restored {
        self.restore_rows(rows, SetOrigin::Database)
    }

    /// Adds what an older state has and this one has not. Its sets are behind.
    pub(crate) fn restore_missing(&mut self, older: &Rows) -> Restored {
        self.restore_rows(older, SetOrigin::OlderState)
    }

    /// Brings times that are later than `now` back to it: a clock was ahead when they were saved.
    /// Otherwise all that is asked for from now on would count as older.
    pub(crate) fn believe_no_later_than(&mut self, now: Clock) {
        self.grants.believe_no_later_than(now.wall);
        for sets in self.sets.values_mut() {
            for set in sets.values_mut() {
                set.generation.confirmed = set.generation.confirmed.min(now.wall);
            }
        }
        self.documents.believe_no_later_than(now.wall);
    }

    fn restore_rows(&mut self, rows: &Rows, origin: SetOrigin) -> Restored {
        let mut restored = Restored::default();
        for (key, head) in rows.all(Table::Sets) {
            match self.restore_set(rows, key, head, origin) {
                Some(()) => restored.sets += 1,
                None => restored.damaged_sets += 1,
            }
        }
        for (key, grant) in rows.all(Table::Grants) {
            if let Some((key, grant)) = parse_grant(key, grant) {
                self.grants.restore(key, grant);
            }
        }
        for (key, overlay) in rows.all(Table::Overlay) {
            if let Some((resource, name, overlay)) = parse_overlay(key, overlay)
                && self.overlays.find(&resource, &name).is_none()
            {
                self.overlays.restore(resource, name, overlay);
            }
        }
        if origin == SetOrigin::Database || self.documents.len() == 0 {
            restore_documents(rows, &mut self.documents);
        }
        // What came from the disk is there already.
        drop(self.take_changes());
        restored
    }

    fn restore_set(
        &mut self,
        rows: &Rows,
        key: &str,
        head: &[u8],
        origin: SetOrigin,
    ) -> Option<()> {
        let mut id = u64::from_str_radix(key, 16).ok()?;
        if origin == SetOrigin::OlderState {
            // Its number may be that of another set now.
            id = self.next_set_id;
        }
        // Also the number of a damaged set is not given to another: its members may be on disk.
        self.next_set_id = self.next_set_id.max(id + 1);
        let saved: SavedSet = serde_json::from_slice(head).ok()?;
        let scope = Scope::parse(&saved.scope)?;
        let sample = self.objects.sample(&scope.representation);
        let members = read_members(rows, key, &scope.representation, &sample)?;
        let intact = members.len() == saved.members && checksum(&members) == saved.members_checksum;
        if !intact || self.set_mut(&scope).is_some() {
            return None;
        }
        let members = members
            .into_iter()
            .map(|(name, object)| (name, self.objects.share(&scope.representation, object)))
            .collect();
        let columns = Bytes::from(saved.columns);
        let mut item_type = parse_type(saved.item_type);
        item_type.columns = columns.clone();
        let mut list_type = saved.list_type.map(parse_type);
        if let Some(list_type) = &mut list_type {
            list_type.columns = columns;
        }
        let set = Set {
            id,
            generation: Generation {
                resource_version: saved.resource_version,
                item_type,
                list_type,
                exact: saved.exact,
                members: Members::new(members),
                lacking: object_names(saved.lacking),
                made_by: None,
                confirmed: UNIX_EPOCH + Duration::from_secs(saved.confirmed),
            },
            behind: saved.behind || origin == SetOrigin::OlderState,
            is_new: false,
            essential: saved.essential,
            last_used: 0,
            reader: None,
            epoch: saved.epoch,
            smaller_since: None,
            is_of_before_restore: false,
            unsaved: Unsaved::default(),
        };
        self.sets
            .entry(scope.representation)
            .or_default()
            .insert(scope.selection, set);
        Some(())
    }
}

fn object_names(names: Vec<(String, String)>) -> BTreeSet<ObjectName> {
    let mut set = BTreeSet::new();
    for (namespace, name) in names {
        set.insert(ObjectName { namespace, name });
    }
    set
}

/// Where the rows of a set are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetOrigin {
    Database,
    /// The rescue file.
    OlderState,
}

fn is_saved(scope: &Scope) -> bool {
    !scope.representation.resource.is_lease()
}
