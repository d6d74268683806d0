//! Values at a path of fields, in both encodings. An object is as in [`super::Object`].

use super::Encoding;
use super::json::object::member;
use super::json::scan::{Elements, text as json_text};
use super::limits::SplitError;
use super::protobuf::field::{Fields, Value, malformed};

/// One field: its name in JSON, and its number in protobuf. What has no name is inlined in JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step(pub(crate) &'static str, pub(crate) u64);

/// Gives out every value at the path, those of each element of a list one by one.
pub(crate) fn visit<'a>(
    encoding: Encoding,
    value: &'a [u8],
    path: &[Step],
    found: &mut dyn FnMut(&'a [u8]) -> Result<(), SplitError>,
) -> Result<(), SplitError> {
    let Some((Step(name, number), rest)) = path.split_first() else {
        return found(value);
    };
    match encoding {
        Encoding::Json if name.is_empty() => visit(encoding, value, rest, found),
        Encoding::Json => {
            let Some(member) = member(value, name)?.filter(|it| *it != b"null") else {
                return Ok(());
            };
            if !member.starts_with(b"[") {
                return visit(encoding, member, rest, found);
            }
            Elements::of(member)?
                .try_for_each(|element| visit(encoding, &member[element], rest, found))
        }
        Encoding::Protobuf => {
            for field in Fields::of(value) {
                if let Some(bytes) = field?.bytes(*number) {
                    visit(encoding, bytes, rest, found)?;
                }
            }
            Ok(())
        }
    }
}

/// The text of a value that is a string.
pub(crate) fn text(encoding: Encoding, value: &[u8]) -> Result<String, SplitError> {
    match encoding {
        Encoding::Json => json_text(value).map(|text| text.into_owned()),
        Encoding::Protobuf => std::str::from_utf8(value)
            .map(str::to_owned)
            .map_err(|_| malformed("UTF-8")),
    }
}

/// Whether a field of truth is set.
pub(crate) fn is_set(
    encoding: Encoding,
    value: &[u8],
    Step(name, number): Step,
) -> Result<bool, SplitError> {
    match encoding {
        Encoding::Json => Ok(member(value, name)? == Some(b"true")),
        Encoding::Protobuf => {
            let mut is_set = false;
            for field in Fields::of(value) {
                let field = field?;
                if field.number == number {
                    is_set = !matches!(field.value, Value::Varint(0));
                }
            }
            Ok(is_set)
        }
    }
}
