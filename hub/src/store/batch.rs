//! Rows that go to the disk and come from it. What they mean is known to those who write them.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::packed::Packed;

/// The tables of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Table {
    Objects,
    Sets,
    Members,
    Grants,
    Tokens,
    Overlay,
    Events,
    Documents,
    DocumentReaders,
    Meta,
}

impl Table {
    /// All of them.
    pub(crate) const ALL: [Self; 10] = [
        Self::Objects,
        Self::Sets,
        Self::Members,
        Self::Grants,
        Self::Tokens,
        Self::Overlay,
        Self::Events,
        Self::Documents,
        Self::DocumentReaders,
        Self::Meta,
    ];

    /// Its name on disk.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Objects => "objects",
            Self::Sets => "sets",
            Self::Members => "members",
            Self::Grants => "grants",
            Self::Tokens => "tokens",
            Self::Overlay => "overlay",
            Self::Events => "events",
            Self::Documents => "documents",
            Self::DocumentReaders => "document_readers",
            Self::Meta => "meta",
        }
    }

    /// The table with this name on disk.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }
}

/// The value of a row.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    head: Vec<u8>,
    /// Follows the head. It stays compressed: a batch can be all that is in memory.
    rest: Packed,
}

impl Value {
    pub(crate) fn new(head: Vec<u8>, rest: impl Into<Packed>) -> Self {
        let rest = rest.into();
        Self { head, rest }
    }

    /// Its two parts.
    pub(super) fn parts(&self) -> (&[u8], Bytes) {
        (&self.head, self.rest.bytes())
    }

    pub(super) fn len(&self) -> usize {
        self.head.len() + self.rest.len()
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes, Bytes::new())
    }
}

/// Changes that are written together or not at all. The later change of a row wins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// `None` removes the row.
    rows: BTreeMap<(Table, String), Option<Value>>,
    /// These tables are replaced: rows that are not in the batch are removed.
    replaced: Vec<Table>,
}

impl Batch {
    /// A batch that replaces these tables.
    pub(crate) fn replacing(tables: &[Table]) -> Self {
        Self {
            rows: BTreeMap::new(),
            replaced: tables.to_vec(),
        }
    }

    /// Rows of this table that are not in the batch are removed.
    pub(crate) fn replace(&mut self, table: Table) {
        self.replaced.push(table);
    }

    /// Writes a row.
    pub(crate) fn put(&mut self, table: Table, key: String, value: impl Into<Value>) {
        self.rows.insert((table, key), Some(value.into()));
    }

    /// Removes a row, if it exists.
    pub(crate) fn remove(&mut self, table: Table, key: String) {
        self.rows.insert((table, key), None);
    }

    /// Adds the changes of a later batch, which replaces no tables.
    pub(crate) fn extend(&mut self, later: Self) {
        self.rows.extend(later.rows);
    }

    /// Whether it changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.replaced.is_empty()
    }

    /// Bytes of keys and values.
    pub(crate) fn bytes(&self) -> usize {
        let mut bytes = 0;
        for ((_, key), value) in &self.rows {
            bytes += key.len();
            if let Some(value) = value {
                bytes += value.len();
            }
        }
        bytes
    }

    /// Whether it is a state and not only changes.
    pub(super) fn is_everything(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// Whether rows of this table that are not in the batch are removed.
    pub(super) fn replaces(&self, table: Table) -> bool {
        self.replaced.contains(&table)
    }

    /// Whether this row is in the batch.
    pub(super) fn names(&self, table: Table, key: &str) -> bool {
        self.rows.contains_key(&(table, key.to_owned()))
    }

    /// Changes of one table.
    pub(super) fn changes(&self, table: Table) -> impl Iterator<Item = (&str, Option<&Value>)> {
        let of_table = self.rows.range((table, String::new())..);
        of_table
            .take_while(move |((it, _), _)| *it == table)
            .map(|((_, key), value)| (key.as_str(), value.as_ref()))
    }
}

/// All that was on disk, by table and key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    by_table: BTreeMap<Table, BTreeMap<String, Vec<u8>>>,
    /// Rows that were there and could not be read. What they belong to is not whole.
    pub(crate) damaged: usize,
}

impl Rows {
    /// The same without one row of a table, chosen by a number.
    #[cfg(test)]
    pub(crate) fn without(mut self, table: Table, row: usize) -> Self {
        if let Some(rows) = self.by_table.get_mut(&table)
            && let Some(key) = rows.keys().nth(row % rows.len().max(1)).cloned()
        {
            rows.remove(&key);
        }
        self
    }

    /// What a disk with these rows has after a batch.
    #[cfg(test)]
    pub(crate) fn apply(&mut self, batch: &Batch) {
        for table in batch.replaced.iter() {
            self.by_table.remove(table);
        }
        for ((table, key), value) in &batch.rows {
            let rows = self.by_table.entry(*table).or_default();
            match value {
                Some(value) => {
                    let (head, rest) = value.parts();
                    rows.insert(key.clone(), [head, &rest].concat())
                }
                None => rows.remove(key),
            };
        }
        self.by_table.retain(|_, rows| !rows.is_empty());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_table.is_empty()
    }

    pub(super) fn insert(&mut self, table: Table, key: String, value: Vec<u8>) {
        self.by_table.entry(table).or_default().insert(key, value);
    }

    /// One row.
    pub(crate) fn find(&self, table: Table, key: &str) -> Option<&[u8]> {
        self.by_table.get(&table)?.get(key).map(Vec::as_slice)
    }

    /// Rows of one table whose key begins with `prefix`, in the order of keys.
    pub(crate) fn starting_with<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let rows = self.by_table.get(&table);
        rows.into_iter()
            .flat_map(move |rows| rows.range(prefix.to_owned()..))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.as_str(), value.as_slice()))
    }

    /// All rows of one table, in the order of keys.
    pub(crate) fn all(&self, table: Table) -> impl Iterator<Item = (&str, &[u8])> {
        self.starting_with(table, "")
    }
}
