//! A row of a `Table` in JSON. It has the object that it is about, or its metadata; without these
//! it is not known which object changed, and the row is refused.

use super::object::read;
use super::scan::{Members, check};
use crate::wire::Object;
use crate::wire::limits::SplitError;

/// Reads a row: the metadata are those of its object, the bytes are the row.
pub(super) fn read_row(row: &[u8]) -> Result<Object, SplitError> {
    check(row)?;
    let found = Members::of(row)?
        .filter(|member| member.is(row, "object"))
        .last();
    let value = found.ok_or(SplitError::Unnamed)?.value;
    let object = read(&row[value.clone()])?;
    let bytes = [&row[..value.start], &object.bytes, &row[value.end..]].concat();
    Ok(Object {
        metadata: object.metadata,
        bytes: bytes.into(),
    })
}
