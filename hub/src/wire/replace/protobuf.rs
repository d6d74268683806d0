//! Edits of protobuf.

use super::{Edit, Edited, Splice};
use crate::wire::limits::SplitError;
use crate::wire::protobuf::field::{Fields, Value, malformed, put_bytes, put_number};
use crate::wire::protobuf::{MAGIC, list_fields, unknown, watch_event};

/// The items of a list of any kind.
pub(super) const ITEMS: u64 = list_fields::ITEMS;
/// What precedes an event of a watch: its length.
const PREFIX: usize = 4;

/// Edits each field of bytes with this number.
pub(crate) fn messages(
    message: &[u8],
    number: u64,
    mut edit: impl FnMut(&[u8]) -> Edited,
) -> Edited {
    let mut splice = Splice::of(message);
    let mut end = 0;
    for field in Fields::of(message) {
        let field = field?;
        let start = end;
        end += field.whole.len();
        let Some(bytes) = field.bytes(number) else {
            continue;
        };
        if let Some(edited) = edit(bytes)? {
            let mut out = Vec::with_capacity(edited.len() + 16);
            put_bytes(&mut out, number, &edited);
            splice.replace(start..end, &out);
        }
    }
    Ok(splice.finish())
}

/// Puts another number into each field of a number.
pub(crate) fn set_number(message: &[u8], number: u64, to: u64) -> Edited {
    let mut splice = Splice::of(message);
    let mut end = 0;
    for field in Fields::of(message) {
        let field = field?;
        let start = end;
        end += field.whole.len();
        if field.number == number && matches!(field.value, Value::Varint(_)) {
            let mut out = Vec::new();
            put_number(&mut out, number, to);
            splice.replace(start..end, &out);
        }
    }
    Ok(splice.finish())
}

/// The last field of bytes with this number.
pub(crate) fn bytes(message: &[u8], number: u64) -> Result<Option<&[u8]>, SplitError> {
    let mut found = None;
    for field in Fields::of(message) {
        found = field?.bytes(number).or(found);
    }
    Ok(found)
}

/// Edits what is in an envelope.
pub(super) fn envelope(body: &[u8], edit: &mut Edit<'_>) -> Edited {
    let unknown = body.strip_prefix(MAGIC).ok_or(malformed("an envelope"))?;
    let edited = messages(unknown, unknown::RAW, edit)?;
    Ok(edited.map(|edited| [MAGIC, &edited].concat()))
}

/// Edits the object of an event.
pub(super) fn event(frame: &[u8], edit: &mut Edit<'_>) -> Edited {
    let (_, message) = frame
        .split_at_checked(PREFIX)
        .ok_or(malformed("a whole event"))?;
    let edited = messages(message, watch_event::OBJECT, |extension| {
        messages(extension, watch_event::OBJECT_RAW, |body| {
            envelope(body, &mut *edit)
        })
    })?;
    let Some(edited) = edited else {
        return Ok(None);
    };
    let length = u32::try_from(edited.len()).map_err(|_| malformed("an event below 4 GiB"))?;
    Ok(Some([&length.to_be_bytes(), &edited[..]].concat()))
}
