//! Sets as rows: a head, and a row for each member that says which version it is.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rows::{json, object_key, parse_object, put_object, seconds, type_pair};
use crate::cache::objects::{HeldObject, ObjectVersion};
use crate::cache::scope::{join, split};
use crate::cache::set::Set;
use crate::cache::{ObjectName, Representation, Scope, Selection};
use crate::packed::Sample;
use crate::store::{Batch, Rows, Table};

/// The head of a set on disk.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedSet {
    pub(super) scope: String,
    pub(super) resource_version: u64,
    pub(super) epoch: u64,
    pub(super) item_type: (String, String),
    pub(super) list_type: Option<(String, String)>,
    /// The columns of a table.
    #[serde(default)]
    pub(super) columns: String,
    pub(super) exact: bool,
    /// Namespaces and names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) lacking: Vec<(String, String)>,
    pub(super) behind: bool,
    pub(super) essential: bool,
    /// Seconds since 1970.
    pub(super) confirmed: u64,
    pub(super) members: usize,
    pub(super) members_checksum: u32,
}

pub(super) fn put_set_changes(
    batch: &mut Batch,
    of: &Representation,
    selection: &Selection,
    set: &mut Set,
) {
    let unsaved = std::mem::take(&mut set.unsaved);
    set.is_new = false;
    if of.resource.is_lease() || (!unsaved.head && unsaved.members.is_empty()) {
        return;
    }
    for name in &unsaved.members {
        let key = member_key(set.id, name);
        match set.generation.members.get(name) {
            Some(object) => batch.put(Table::Members, key, member_value(object)),
            None => batch.remove(Table::Members, key),
        }
    }
    put_head(batch, of, selection, set);
}

pub(super) fn put_whole_set(
    batch: &mut Batch,
    of: &Representation,
    selection: &Selection,
    set: &Set,
) {
    if of.resource.is_lease() {
        return;
    }
    for (name, object) in set.generation.members.iter() {
        batch.put(
            Table::Members,
            member_key(set.id, name),
            member_value(object),
        );
        put_object(batch, of, object);
    }
    put_head(batch, of, selection, set);
}

pub(super) fn put_head(batch: &mut Batch, of: &Representation, selection: &Selection, set: &Set) {
    let scope = Scope {
        representation: of.clone(),
        selection: selection.clone(),
    };
    let generation = &set.generation;
    let lacking = generation.lacking.iter();
    let saved = SavedSet {
        lacking: lacking
            .map(|it| (it.namespace.clone(), it.name.clone()))
            .collect(),
        scope: scope.text(),
        resource_version: generation.resource_version,
        epoch: set.epoch,
        item_type: type_pair(&generation.item_type),
        list_type: generation.list_type.as_ref().map(type_pair),
        columns: String::from_utf8_lossy(&generation.item_type.columns).into_owned(),
        exact: generation.exact,
        behind: set.behind,
        essential: set.essential,
        confirmed: seconds(generation.confirmed),
        members: generation.members.len(),
        members_checksum: checksum(&generation.members),
    };
    batch.put(Table::Sets, set_key(set.id), json(&saved));
}

/// `None`: an object is missing, or something is damaged.
pub(super) fn read_members(
    rows: &Rows,
    set: &str,
    of: &Representation,
    sample: &Sample,
) -> Option<BTreeMap<ObjectName, HeldObject>> {
    let prefix = join(&[set, ""]);
    let mut members = BTreeMap::new();
    for (key, value) in rows.starting_with(Table::Members, &prefix) {
        let [_, namespace, name] = split(key)?;
        let name = ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let resource_version = u64::from_le_bytes(value.try_into().ok()?);
        let version = ObjectVersion {
            representation: of.clone(),
            name,
            resource_version,
        };
        let object = parse_object(&version, rows.find(Table::Objects, &object_key(&version))?)?;
        members.insert(version.name, HeldObject::new(object, sample));
    }
    Some(members)
}

/// The checksum of names and versions, in order.
pub(super) fn checksum(members: &BTreeMap<ObjectName, impl Borrow<HeldObject>>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for (name, object) in members {
        for text in [&name.namespace, &name.name] {
            hasher.update(text.as_bytes());
            hasher.update(&[0]);
        }
        hasher.update(&member_value(object.borrow()));
    }
    hasher.finalize()
}

pub(super) fn set_key(id: u64) -> String {
    format!("{id:016x}")
}

pub(super) fn member_key(set: u64, name: &ObjectName) -> String {
    join(&[&set_key(set), &name.namespace, &name.name])
}

pub(super) fn member_value(object: &HeldObject) -> Vec<u8> {
    object.metadata.resource_version.to_le_bytes().to_vec()
}
