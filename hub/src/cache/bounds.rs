//! How much may be remembered, and what goes first when it is too much.

use std::collections::BTreeMap;

use super::{Cache, Identity, RemovedSet, Scope};

/// Sets, whether or not they have objects: a question alone has up to 2 KiB. A node with 100 pods
/// has some 500.
const MAX_SETS: usize = 8192;

/// Limits of memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// A larger object is not kept; a set that has one is not whole.
    pub(crate) object: usize,
    /// All objects. Sets of the node may exceed it: without them the node does not start.
    pub(crate) total: usize,
}

impl Default for Bounds {
    /// etcd takes 1.5 MiB an object by default; a node with 100 pods reads some 30 MB.
    fn default() -> Self {
        Self {
            object: 2 << 20,
            total: 64 << 20,
        }
    }
}

impl Cache {
    /// Marks a set as used now, and as essential if the node reads it.
    pub(super) fn touch(&mut self, scope: &Scope, reader: &Identity) {
        self.uses += 1;
        let uses = self.uses;
        let Some(set) = self.set_mut(scope) else {
            return;
        };
        set.last_used = uses;
        if *reader == Identity::Node && !set.essential {
            set.essential = true;
            set.unsaved.head = true;
        }
    }

    /// Evicts sets, least recently used first, until the total is kept or only the node's are left.
    pub(super) fn keep_bounds(&mut self) {
        while self.objects.bytes() > self.bounds.total || self.count_sets() > MAX_SETS {
            let Some(scope) = self.least_recently_used() else {
                return;
            };
            self.evict(&scope);
        }
    }

    fn count_sets(&self) -> usize {
        self.sets.values().map(BTreeMap::len).sum()
    }

    fn least_recently_used(&self) -> Option<Scope> {
        let all = self.sets.iter().flat_map(|(representation, sets)| {
            sets.iter()
                .map(move |(selection, set)| (representation, selection, set))
        });
        let (representation, selection, _) = all
            .filter(|(_, _, set)| !set.essential)
            .min_by_key(|(_, _, set)| set.last_used)?;
        Some(Scope {
            representation: representation.clone(),
            selection: selection.clone(),
        })
    }

    /// Forgets a set. Its answer is then unknown.
    pub(super) fn evict(&mut self, scope: &Scope) {
        let Some(sets) = self.sets.get_mut(&scope.representation) else {
            return;
        };
        let Some(set) = sets.remove(&scope.selection) else {
            return;
        };
        if sets.is_empty() {
            self.sets.remove(&scope.representation);
        }
        for object in set.generation.members.values() {
            self.objects.release(&scope.representation, object);
        }
        let members = set
            .generation
            .members
            .keys()
            .cloned()
            .chain(set.unsaved.members)
            .collect();
        self.removed.push(RemovedSet {
            id: set.id,
            scope: scope.clone(),
            members,
        });
    }
}
