//! A `Table` in JSON: a list whose items are rows. A row has the object that it is about, or its
//! metadata; without these it is not known which object changed, and the row is refused.

use super::list::ListSplitter;
use super::write::{bookmark_row, list_start};
use crate::wire::limits::SplitError;
use crate::wire::{Bookmark, ListHead, Metadata, Object, TypeMeta};

/// Reads a table about one object: the answer to a GET, or the object of a watch event. The row of
/// a bookmark may be missing.
pub(in crate::wire) fn read_one_row(table: &[u8]) -> Result<(TypeMeta, Object), SplitError> {
    let mut splitter = ListSplitter::of_one_row();
    let mut rest = table;
    let row = splitter.next_item(&mut rest)?;
    if row.is_some() && splitter.next_item(&mut rest)?.is_some() {
        return Err(SplitError::Json {
            expected: "a table with one row",
        });
    }
    let head = splitter.finish()?;
    let row = row.unwrap_or_else(|| Object {
        metadata: Metadata {
            resource_version: head.resource_version,
            ..Metadata::default()
        },
        bytes: bookmark_row(head.resource_version, Bookmark::Progress).into(),
    });
    Ok((head.type_meta, row))
}

/// A table with one row.
pub(in crate::wire) fn alone(row: &Object, type_meta: &TypeMeta) -> Vec<u8> {
    let head = ListHead {
        type_meta: type_meta.clone(),
        resource_version: row.metadata.resource_version,
        continue_token: String::new(),
    };
    [&list_start(&head), &row.bytes[..], b"]}"].concat()
}
