//! Local writes that were acknowledged without the API server, laid over the cached objects. Only
//! what its sender sends again by itself may be here, because the next answer of the API server
//! about an object ends its overlay.
//!
//! A write is held in the encoding in which it can be written: readers of the other one see the
//! API server's last answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{ObjectName, Representation, Resource, Selection};
use crate::wire::{Encoding, Object, Shape, TypeMeta};

/// Far more objects than a node writes: itself, and some 110 pods.
const MAX_OVERLAYS: usize = 1_000;

/// What local writes made of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Overlay {
    /// What the API server had under this name is gone. Whatever was written came after that.
    pub(super) replaced: bool,
    pub(super) written: BTreeMap<Encoding, Written>,
}

/// An object as a local write left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) object: Arc<Object>,
    pub(super) item_type: TypeMeta,
}

/// What the readers of one representation see of an overlay.
#[derive(Clone, Copy, Debug)]
pub(super) enum Overlaid<'a> {
    Object(&'a Written),
    Deleted,
    /// There is an object that was never written in this representation.
    Elsewhere,
}

impl Overlay {
    fn seen_in(&self, of: &Representation) -> Option<Overlaid<'_>> {
        let written = self.written.get(&of.encoding);
        match written.filter(|_| of.shape == Shape::Object) {
            Some(written) => Some(Overlaid::Object(written)),
            None if !self.replaced => None,
            None if self.written.is_empty() => Some(Overlaid::Deleted),
            None => Some(Overlaid::Elsewhere),
        }
    }
}

/// All overlays.
#[derive(Debug, Default)]
pub(super) struct Overlays {
    by_resource: BTreeMap<Resource, BTreeMap<ObjectName, Overlay>>,
    /// Came, changed or went since the last batch was taken for the disk.
    unsaved: BTreeSet<(Resource, ObjectName)>,
}

/// Whether a change of an overlay is worth a write to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    Saving,
    /// A heartbeat: only its time changed.
    Nothing,
}

impl Overlays {
    /// Lays a written object over what there was. `false`: there are too many overlays.
    pub(super) fn write(
        &mut self,
        resource: &Resource,
        name: &ObjectName,
        encoding: Encoding,
        written: Written,
        worth: Worth,
    ) -> bool {
        self.change(resource, name, worth, |overlay| {
            overlay.written.insert(encoding, written);
        })
    }

    /// The object is gone, and `created` is there now, if it is given. `false`: there are too many
    /// overlays.
    pub(super) fn replace(
        &mut self,
        resource: &Resource,
        name: &ObjectName,
        created: Option<(Encoding, Written)>,
    ) -> bool {
        self.change(resource, name, Worth::Saving, |overlay| {
            overlay.replaced = true;
            overlay.written = created.into_iter().collect();
        })
    }

    fn change(
        &mut self,
        resource: &Resource,
        name: &ObjectName,
        worth: Worth,
        change: impl FnOnce(&mut Overlay),
    ) -> bool {
        let count: usize = self.by_resource.values().map(BTreeMap::len).sum();
        let names = self.by_resource.entry(resource.clone()).or_default();
        if count >= MAX_OVERLAYS && !names.contains_key(name) {
            return false;
        }
        change(names.entry(name.clone()).or_default());
        if worth == Worth::Saving {
            self.mark_unsaved(resource, name);
        }
        true
    }

    /// Puts back what was on disk.
    pub(super) fn restore(&mut self, resource: Resource, name: ObjectName, overlay: Overlay) {
        let names = self.by_resource.entry(resource).or_default();
        names.insert(name, overlay);
    }

    /// The API server said something about an object, in whatever encoding.
    pub(super) fn end(&mut self, resource: &Resource, name: &ObjectName) {
        let Some(names) = self.by_resource.get_mut(resource) else {
            return;
        };
        let ended = names.remove(name).is_some();
        if names.is_empty() {
            self.by_resource.remove(resource);
        }
        if ended {
            self.mark_unsaved(resource, name);
        }
    }

    /// The API server listed all that is selected: `named` are the objects of the list. Overlays
    /// of these end, and those of objects whose absence the list proves.
    pub(super) fn end_listed(
        &mut self,
        resource: &Resource,
        selection: &Selection,
        named: impl Fn(&ObjectName) -> bool,
    ) {
        let Some(names) = self.by_resource.get(resource) else {
            return;
        };
        let ended: Vec<ObjectName> = names
            .keys()
            .filter(|name| {
                named(name) || (selection.is_by_name_only() && selection.may_contain(name))
            })
            .cloned()
            .collect();
        for name in ended {
            self.end(resource, &name);
        }
    }

    /// What the readers of a representation see. `None`: what the API server said.
    pub(super) fn shown_object(
        &self,
        of: &Representation,
        name: &ObjectName,
    ) -> Option<Overlaid<'_>> {
        self.find(&of.resource, name)?.seen_in(of)
    }

    /// All that the readers of a representation see.
    pub(super) fn all_seen<'a>(
        &'a self,
        of: &'a Representation,
    ) -> impl Iterator<Item = (&'a ObjectName, Overlaid<'a>)> {
        let names = self.by_resource.get(&of.resource).into_iter().flatten();
        names.filter_map(move |(name, overlay)| Some((name, overlay.seen_in(of)?)))
    }

    pub(super) fn find(&self, resource: &Resource, name: &ObjectName) -> Option<&Overlay> {
        self.by_resource.get(resource)?.get(name)
    }

    /// All overlays that are kept on disk.
    pub(super) fn saved(&self) -> impl Iterator<Item = (&Resource, &ObjectName, &Overlay)> {
        let kept = self.by_resource.iter().filter(|(it, _)| !it.is_lease());
        kept.flat_map(|(resource, names)| {
            let of_resource = names.iter();
            of_resource.map(move |(name, overlay)| (resource, name, overlay))
        })
    }

    fn mark_unsaved(&mut self, resource: &Resource, name: &ObjectName) {
        if !resource.is_lease() {
            self.unsaved.insert((resource.clone(), name.clone()));
        }
    }

    pub(super) fn take_unsaved(&mut self) -> BTreeSet<(Resource, ObjectName)> {
        std::mem::take(&mut self.unsaved)
    }

    pub(super) fn has_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    /// How many objects have one.
    pub(super) fn len(&self) -> usize {
        self.by_resource.values().map(BTreeMap::len).sum()
    }
}
