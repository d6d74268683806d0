//! Single fields of a message in protobuf.

use super::field::{self, Fields, put_bytes, put_number};
use super::time_fields;
use crate::wire::limits::SplitError;
use crate::wire::value::Value;

/// Text comes as [`Value::Raw`], as messages do: the wire does not tell them apart.
pub(in crate::wire) fn get(message: &[u8], path: &[u64]) -> Result<Option<Value>, SplitError> {
    let Some((number, rest)) = path.split_first() else {
        return Ok(None);
    };
    if !rest.is_empty() {
        return get(&merged(message, *number)?, rest);
    }
    let mut found = None;
    for field in Fields::of(message) {
        let field = field?;
        if field.number == *number {
            found = match field.value {
                field::Value::Varint(number) => Some(Value::Number(number)),
                field::Value::Bytes(bytes) => Some(Value::Raw(bytes.to_vec())),
                field::Value::Fixed => None,
            };
        }
    }
    Ok(found)
}

pub(in crate::wire) fn set(
    message: &[u8],
    path: &[u64],
    value: &Value,
) -> Result<Vec<u8>, SplitError> {
    let Some((number, rest)) = path.split_first() else {
        return Ok(message.to_vec());
    };
    let mut new = Vec::new();
    if rest.is_empty() {
        match value {
            Value::Text(text) => put_bytes(&mut new, *number, text.as_bytes()),
            Value::Number(value) => put_number(&mut new, *number, *value),
            Value::Raw(bytes) => put_bytes(&mut new, *number, bytes),
        }
    } else {
        let inner = set(&merged(message, *number)?, rest, value)?;
        put_bytes(&mut new, *number, &inner);
    }
    let mut out = Vec::with_capacity(message.len() + new.len());
    for field in Fields::of(message) {
        let field = field?;
        if field.number == *number {
            // Once, in the place of the first.
            out.append(&mut new);
        } else {
            out.extend_from_slice(field.whole);
        }
    }
    out.append(&mut new);
    Ok(out)
}

/// All that a message says of an inner one: of several with the same number, the later go on with
/// the earlier.
fn merged(message: &[u8], number: u64) -> Result<Vec<u8>, SplitError> {
    let mut all = Vec::new();
    for field in Fields::of(message) {
        all.extend_from_slice(field?.bytes(number).unwrap_or_default());
    }
    Ok(all)
}

/// A `meta.v1.Time`.
pub(in crate::wire) fn time(seconds: u64) -> Vec<u8> {
    let mut message = Vec::new();
    put_number(&mut message, time_fields::SECONDS, seconds);
    put_number(&mut message, time_fields::NANOS, 0);
    message
}

/// The seconds of a `meta.v1.Time`; zero if there are none.
pub(in crate::wire) fn seconds(message: &[u8]) -> Result<u64, SplitError> {
    Ok(match get(message, &[time_fields::SECONDS])? {
        Some(Value::Number(seconds)) => seconds,
        Some(Value::Text(_) | Value::Raw(_)) | None => 0,
    })
}
