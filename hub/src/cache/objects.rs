//! Objects, each version held once however many sets have it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{ObjectName, Representation};
use crate::wire::Object;

/// What an object costs in memory besides its bytes: names, maps, counters; rounded up.
const OVERHEAD: usize = 256;

/// One version of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectVersion {
    pub(super) representation: Representation,
    pub(super) name: ObjectName,
    pub(super) resource_version: u64,
}

/// All objects that sets refer to.
#[derive(Debug, Default)]
pub(super) struct StoredObjects {
    by_name: BTreeMap<Representation, BTreeMap<ObjectName, Vec<Held>>>,
    bytes: usize,
    /// Came or went since the last batch was taken for the disk.
    unsaved: BTreeMap<Representation, BTreeSet<(ObjectName, u64)>>,
    unsaved_bytes: usize,
}

#[derive(Debug)]
struct Held {
    object: Arc<Object>,
    /// How many sets refer to it.
    references: usize,
}

impl StoredObjects {
    /// Adds a reference.
    pub(super) fn hold(&mut self, of: &Representation, object: Object) -> Arc<Object> {
        let name = name_of(&object);
        if !self.by_name.contains_key(of) {
            self.by_name.insert(of.clone(), BTreeMap::new());
        }
        let versions = self
            .by_name
            .entry(of.clone())
            .or_default()
            .entry(name.clone())
            .or_default();
        let resource_version = object.metadata.resource_version;
        if let Some(held) = versions
            .iter_mut()
            .find(|it| it.object.metadata.resource_version == resource_version)
        {
            held.references += 1;
            // The cells of a row say how old its object was when it was read: the latest counts.
            if !of.shape.is_table() || held.object.bytes == object.bytes {
                return held.object.clone();
            }
            let later = Arc::new(object);
            self.bytes = self.bytes + size(&later) - size(&held.object);
            self.unsaved_bytes += size(&later);
            held.object = later.clone();
            self.note_unsaved(of, name, resource_version);
            return later;
        }
        let object = Arc::new(object);
        // Of most objects there is one.
        versions.reserve_exact(1);
        versions.push(Held {
            object: object.clone(),
            references: 1,
        });
        self.bytes += size(&object);
        self.unsaved_bytes += size(&object);
        self.note_unsaved(of, name, resource_version);
        object
    }

    /// Takes a reference away; without any, the object is dropped.
    pub(super) fn release(&mut self, of: &Representation, object: &Arc<Object>) {
        let Some(names) = self.by_name.get_mut(of) else {
            return;
        };
        let name = name_of(object);
        let Some(versions) = names.get_mut(&name) else {
            return;
        };
        let resource_version = object.metadata.resource_version;
        let Some(at) = versions
            .iter()
            .position(|it| it.object.metadata.resource_version == resource_version)
        else {
            return;
        };
        versions[at].references -= 1;
        if versions[at].references > 0 {
            return;
        }
        let held = versions.swap_remove(at);
        if versions.is_empty() {
            names.remove(&name);
        }
        if names.is_empty() {
            self.by_name.remove(of);
        }
        self.bytes -= size(&held.object);
        self.unsaved_bytes += OVERHEAD;
        self.note_unsaved(of, name, resource_version);
    }

    fn note_unsaved(&mut self, of: &Representation, name: ObjectName, resource_version: u64) {
        if of.resource.is_lease() {
            return;
        }
        if !self.unsaved.contains_key(of) {
            self.unsaved.insert(of.clone(), BTreeSet::new());
        }
        if let Some(versions) = self.unsaved.get_mut(of) {
            versions.insert((name, resource_version));
        }
    }

    /// One version, if a set refers to it.
    pub(super) fn find(&self, version: &ObjectVersion) -> Option<&Arc<Object>> {
        let versions = self
            .by_name
            .get(&version.representation)?
            .get(&version.name)?;
        let held = versions
            .iter()
            .find(|it| it.object.metadata.resource_version == version.resource_version)?;
        Some(&held.object)
    }

    /// Memory of all objects.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How much the next batch will write, about.
    pub(super) fn unsaved_bytes(&self) -> usize {
        self.unsaved_bytes
    }

    /// Takes the list of what came and went.
    pub(super) fn take_unsaved(&mut self) -> impl Iterator<Item = ObjectVersion> + use<> {
        self.unsaved_bytes = 0;
        let unsaved = std::mem::take(&mut self.unsaved);
        unsaved.into_iter().flat_map(|(representation, versions)| {
            versions
                .into_iter()
                .map(move |(name, resource_version)| ObjectVersion {
                    representation: representation.clone(),
                    name,
                    resource_version,
                })
        })
    }
}

/// An object's name.
pub(super) fn name_of(object: &Object) -> ObjectName {
    ObjectName {
        namespace: object.metadata.namespace.clone(),
        name: object.metadata.name.clone(),
    }
}

/// Memory of an object.
pub(super) fn size(object: &Object) -> usize {
    object.bytes.len() + OVERHEAD
}
