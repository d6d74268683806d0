//! Edits of JSON.

use super::{Edit, Edited, Splice};
use crate::wire::json::scan::{Elements, Members, check, check_depth, text, trim_start};
use crate::wire::limits::SplitError;

/// Edits a whole document, which is checked first: the other functions here need JSON.
pub(super) fn document(body: &[u8], edit: &mut Edit<'_>) -> Edited {
    check_depth(trim_start(body))?;
    check(body)?;
    let start = body.len() - trim_start(body).len();
    let mut splice = Splice::of(body);
    if let Some(edited) = edit(&body[start..])? {
        splice.replace(start..body.len(), &edited);
    }
    Ok(splice.finish())
}

/// Edits the value of each member with this name.
pub(crate) fn member(object: &[u8], name: &str, mut edit: impl FnMut(&[u8]) -> Edited) -> Edited {
    let mut splice = Splice::of(object);
    for member in Members::of(object)?.filter(|member| member.is(object, name)) {
        if let Some(edited) = edit(&object[member.value.clone()])? {
            splice.replace(member.value, &edited);
        }
    }
    Ok(splice.finish())
}

/// Edits the elements of an array, given their places.
pub(crate) fn elements(array: &[u8], mut edit: impl FnMut(usize, &[u8]) -> Edited) -> Edited {
    let mut splice = Splice::of(array);
    for (place, element) in Elements::of(array)?.enumerate() {
        if let Some(edited) = edit(place, &array[element.clone()])? {
            splice.replace(element, &edited);
        }
    }
    Ok(splice.finish())
}

/// The text of the last member with this name, if it is there and not `null`.
pub(crate) fn text_member(object: &[u8], name: &str) -> Result<Option<String>, SplitError> {
    let value = crate::wire::json::object::member(object, name)?;
    value
        .filter(|value| *value != b"null")
        .map(|value| Ok(text(value)?.into_owned()))
        .transpose()
}

/// A string as JSON.
pub(crate) fn string(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}
