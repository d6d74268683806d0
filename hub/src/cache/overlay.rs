//! Local writes that were acknowledged without the API server, laid over the cached objects. Only
//! what its sender sends again by itself may be here, because the next word of the API server about
//! an object ends its overlay.

use std::collections::{BTreeMap, BTreeSet};

use super::{ObjectName, Representation, Resource, Selection};
use crate::wire::{Object, TypeMeta};

/// What a local write made of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Overlay {
    /// It was written, or created. A created object is seen by GETs and by lists without
    /// selectors; whether another selector selects it is not known here.
    Object { object: Object, item_type: TypeMeta },
    /// It was deleted.
    Deleted,
}

/// All overlays.
#[derive(Debug, Default)]
pub(super) struct Overlays {
    by_resource: BTreeMap<Resource, BTreeMap<ObjectName, BTreeMap<Representation, Overlay>>>,
    /// Came or went since the last batch was taken for the disk.
    unsaved: BTreeSet<(Representation, ObjectName)>,
}

impl Overlays {
    pub(super) fn insert(&mut self, of: &Representation, name: ObjectName, overlay: Overlay) {
        self.unsaved.insert((of.clone(), name.clone()));
        let names = self.by_resource.entry(of.resource.clone()).or_default();
        names.entry(name).or_default().insert(of.clone(), overlay);
    }

    /// The API server said something about an object, in whatever encoding.
    pub(super) fn end(&mut self, resource: &Resource, name: &ObjectName) {
        let Some(names) = self.by_resource.get_mut(resource) else {
            return;
        };
        let ended = names.remove(name).unwrap_or_default();
        self.unsaved
            .extend(ended.into_keys().map(|of| (of, name.clone())));
        if names.is_empty() {
            self.by_resource.remove(resource);
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

    pub(super) fn find(&self, of: &Representation, name: &ObjectName) -> Option<&Overlay> {
        self.by_resource.get(&of.resource)?.get(name)?.get(of)
    }

    /// Overlays of one representation.
    pub(super) fn of<'a>(
        &'a self,
        of: &'a Representation,
    ) -> impl Iterator<Item = (&'a ObjectName, &'a Overlay)> {
        let names = self.by_resource.get(&of.resource).into_iter().flatten();
        names.filter_map(move |(name, overlays)| Some((name, overlays.get(of)?)))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&Representation, &ObjectName, &Overlay)> {
        self.by_resource
            .values()
            .flatten()
            .flat_map(|(name, overlays)| {
                overlays
                    .iter()
                    .map(move |(of, overlay)| (of, name, overlay))
            })
    }

    pub(super) fn take_unsaved(&mut self) -> BTreeSet<(Representation, ObjectName)> {
        std::mem::take(&mut self.unsaved)
    }

    pub(super) fn has_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }
}
