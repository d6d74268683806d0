//! Objects, each version held once however many sets have it, and compressed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::{ObjectName, Representation};
use crate::packed::{Packed, Sample};
use crate::wire::{Metadata, Object};

/// What an object costs in memory besides its bytes: names, maps, counters; rounded up.
const OVERHEAD: usize = 256;

/// An object whose bytes are compressed.
#[derive(Clone, Debug)]
pub(crate) struct HeldObject {
    pub(crate) metadata: Metadata,
    pub(super) packed: Packed,
}

impl HeldObject {
    pub(super) fn new(object: Object, sample: &Sample) -> Self {
        Self {
            metadata: object.metadata,
            packed: Packed::new(object.bytes, sample),
        }
    }

    /// As [`Object::bytes`].
    pub(crate) fn bytes(&self) -> Bytes {
        self.packed.bytes()
    }

    /// The object as it came.
    pub(crate) fn object(&self) -> Object {
        Object {
            metadata: self.metadata.clone(),
            bytes: self.bytes(),
        }
    }

    pub(super) fn name(&self) -> ObjectName {
        name_of(&self.metadata)
    }

    /// Memory that it takes.
    pub(super) fn size(&self) -> usize {
        self.packed.held_len() + OVERHEAD
    }
}

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
    by_kind: BTreeMap<Representation, Kind>,
    bytes: usize,
    /// Came or went since the last batch was taken for the disk.
    unsaved: BTreeMap<Representation, BTreeSet<(ObjectName, u64)>>,
    unsaved_bytes: usize,
}

/// The objects of one representation.
#[derive(Debug, Default)]
struct Kind {
    /// They are compressed beside it.
    sample: Sample,
    by_name: BTreeMap<ObjectName, Vec<Version>>,
}

#[derive(Debug)]
struct Version {
    object: Arc<HeldObject>,
    /// How many sets refer to it.
    references: usize,
}

impl StoredObjects {
    /// The sample beside which objects that will be held are compressed.
    pub(super) fn sample(&self, of: &Representation) -> Sample {
        let kind = self.by_kind.get(of);
        kind.map(|kind| kind.sample.clone()).unwrap_or_default()
    }

    /// Adds a reference.
    pub(super) fn share(&mut self, of: &Representation, object: HeldObject) -> Arc<HeldObject> {
        let name = object.name();
        if !self.by_kind.contains_key(of) {
            let kind = Kind {
                sample: object.packed.sample().cloned().unwrap_or_default(),
                by_name: BTreeMap::new(),
            };
            self.by_kind.insert(of.clone(), kind);
        }
        let kind = self.by_kind.entry(of.clone()).or_default();
        let versions = kind.by_name.entry(name.clone()).or_default();
        let resource_version = object.metadata.resource_version;
        if let Some(held) = versions
            .iter_mut()
            .find(|it| it.object.metadata.resource_version == resource_version)
        {
            held.references += 1;
            // The latest counts: the cells of a row say how old its object was when it was read, and
            // after a backup of etcd was restored a version may be given a second time.
            let is_same = held.object.packed.is_same(&object.packed)
                || has_same_content(&held.object.bytes(), &object.bytes());
            if is_same {
                return held.object.clone();
            }
            let later = Arc::new(object);
            self.bytes = self.bytes + later.size() - held.object.size();
            self.unsaved_bytes += later.packed.len() + OVERHEAD;
            held.object = later.clone();
            self.mark_unsaved(of, name, resource_version);
            return later;
        }
        let object = Arc::new(object);
        // Most objects have one version.
        versions.reserve_exact(1);
        versions.push(Version {
            object: object.clone(),
            references: 1,
        });
        self.bytes += object.size();
        self.unsaved_bytes += object.packed.len() + OVERHEAD;
        self.mark_unsaved(of, name, resource_version);
        object
    }

    /// Takes a reference away; without any, the object is dropped.
    pub(super) fn release(&mut self, of: &Representation, object: &HeldObject) {
        let Some(kind) = self.by_kind.get_mut(of) else {
            return;
        };
        let name = object.name();
        let Some(versions) = kind.by_name.get_mut(&name) else {
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
            kind.by_name.remove(&name);
        }
        if kind.by_name.is_empty() {
            self.by_kind.remove(of);
        }
        self.bytes -= held.object.size();
        self.unsaved_bytes += OVERHEAD;
        self.mark_unsaved(of, name, resource_version);
    }

    fn mark_unsaved(&mut self, of: &Representation, name: ObjectName, resource_version: u64) {
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
    pub(super) fn find(&self, version: &ObjectVersion) -> Option<&Arc<HeldObject>> {
        let kind = self.by_kind.get(&version.representation)?;
        let versions = kind.by_name.get(&version.name)?;
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

/// Whether two objects say the same. In JSON an object of a list has no `kind` and `apiVersion`, and in
/// an event or alone it begins with them.
pub(crate) fn has_same_content(one: &[u8], other: &[u8]) -> bool {
    let (shorter, longer) = if one.len() < other.len() {
        (one, other)
    } else {
        (other, one)
    };
    match shorter.strip_prefix(b"{") {
        Some(rest) if longer.len() > shorter.len() => {
            longer.starts_with(br#"{"kind":""#) && longer.ends_with(rest)
        }
        Some(_) | None => one == other,
    }
}

/// An object's name.
pub(super) fn name_of(metadata: &Metadata) -> ObjectName {
    ObjectName {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
    }
}
