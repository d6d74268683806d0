//! Where JSON values begin and end.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr2;
use serde::de::IgnoredAny;

use crate::wire::limits::{DEPTH_MAX, KEPT_CAPACITY, SplitError};

/// Finds the end of one value whose bytes arrive in pieces. It looks at brackets and quotes only,
/// so the end is right for values that are JSON; whether a value is JSON, [`check`] says.
#[derive(Debug, Default)]
struct ValueScanner {
    position: Position,
    depth: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Start,
    /// In a number, `true`, `false` or `null`.
    Word,
    /// In an object or array, outside of strings.
    Container,
    String,
    /// After the backslash in a string.
    Escape,
}

impl ValueScanner {
    /// The offset in `input` after the value. `None`: all of `input` belongs to the value, which
    /// goes on. The first byte must not be whitespace.
    fn end(&mut self, input: &[u8]) -> Result<Option<usize>, SplitError> {
        let mut offset = 0;
        loop {
            if self.position == Position::String {
                // Most bytes are in strings, where only these two mean something.
                let rest = &input[offset..];
                offset += memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            }
            let Some(&byte) = input.get(offset) else {
                return Ok(None);
            };
            match (self.position, byte) {
                (Position::Start | Position::Container, b'{' | b'[') => self.open()?,
                (Position::Start | Position::Container, b'"') => self.position = Position::String,
                (Position::Start, b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
                    self.position = Position::Word
                }
                (Position::Start, _) => {
                    return Err(SplitError::Json {
                        expected: "a value",
                    });
                }
                (Position::Word, b',' | b']' | b'}' | b':') => return Ok(self.ended(offset)),
                (Position::Word, byte) if is_whitespace(byte) => return Ok(self.ended(offset)),
                (Position::Container, b'}' | b']') => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok(self.ended(offset + 1));
                    }
                }
                (Position::String, b'\\') => self.position = Position::Escape,
                (Position::String, b'"') if self.depth == 0 => return Ok(self.ended(offset + 1)),
                (Position::String, b'"') => self.position = Position::Container,
                (Position::Escape, _) => self.position = Position::String,
                (Position::Word | Position::Container | Position::String, _) => {}
            }
            offset += 1;
        }
    }

    fn open(&mut self) -> Result<(), SplitError> {
        self.position = Position::Container;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(SplitError::TooDeep { limit: DEPTH_MAX });
        }
        Ok(())
    }

    fn ended(&mut self, offset: usize) -> Option<usize> {
        *self = Self::default();
        Some(offset)
    }
}

/// Collects one value after another out of chunks.
#[derive(Debug, Default)]
pub(super) struct ValueBuffer {
    scanner: ValueScanner,
    bytes: Vec<u8>,
}

impl ValueBuffer {
    /// Whether a value has begun and not ended.
    pub(super) fn is_inside_value(&self) -> bool {
        self.scanner.position != Position::Start
    }

    /// Moves bytes of one value from `chunk` into the buffer. `true`: the value is complete.
    /// `too_long` is the error for more than `limit` bytes.
    pub(super) fn collect(
        &mut self,
        chunk: &mut &[u8],
        limit: usize,
        too_long: SplitError,
    ) -> Result<bool, SplitError> {
        let end = self.scanner.end(chunk)?;
        let (part, rest) = chunk.split_at(end.unwrap_or(chunk.len()));
        if self.bytes.len() + part.len() > limit {
            return Err(too_long);
        }
        self.bytes.extend_from_slice(part);
        *chunk = rest;
        Ok(end.is_some())
    }

    /// The complete value.
    pub(super) fn value(&self) -> &[u8] {
        &self.bytes
    }

    /// Makes the buffer ready for the next value.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_CAPACITY);
    }
}

/// `key: value` in an object, as ranges of the object's bytes.
#[derive(Clone, Debug)]
pub(in crate::wire) struct Member {
    /// With its quotes.
    key: Range<usize>,
    pub(in crate::wire) value: Range<usize>,
}

impl Member {
    /// Key, colon and value.
    pub(super) fn range(&self) -> Range<usize> {
        self.key.start..self.value.end
    }

    /// The decoded key of this member of `object`.
    pub(super) fn key<'a>(&self, object: &'a [u8]) -> Result<Cow<'a, str>, SplitError> {
        text(&object[self.key.clone()])
    }

    /// Whether the decoded key of this member of `object` is `name`.
    pub(in crate::wire) fn is(&self, object: &[u8], name: &str) -> bool {
        self.key(object).is_ok_and(|key| key == name)
    }
}

/// The members of an object that [`check`] has found to be JSON. `null` has no members.
#[derive(Debug)]
pub(in crate::wire) struct Members<'a> {
    object: &'a [u8],
    position: usize,
}

impl<'a> Members<'a> {
    pub(in crate::wire) fn of(object: &'a [u8]) -> Result<Self, SplitError> {
        let position = match object.first() {
            Some(b'{') => 1,
            Some(b'n') => object.len(),
            Some(_) | None => {
                return Err(SplitError::Json {
                    expected: "an object",
                });
            }
        };
        Ok(Self { object, position })
    }

    /// The range of the value at the position, and goes to its end.
    fn value(&mut self) -> Option<Range<usize>> {
        let start = self.after(|byte| is_whitespace(byte) || byte == b':' || byte == b',');
        let length = ValueScanner::default()
            .end(&self.object[start..])
            .ok()
            .flatten()?;
        self.position = start + length;
        Some(start..self.position)
    }

    fn after(&self, skipped: impl Fn(u8) -> bool) -> usize {
        let rest = &self.object[self.position..];
        let length = rest.iter().take_while(|byte| skipped(**byte)).count();
        self.position + length
    }
}

impl Iterator for Members<'_> {
    type Item = Member;

    fn next(&mut self) -> Option<Member> {
        let key = self.value()?;
        let value = self.value()?;
        Some(Member { key, value })
    }
}

/// The elements of an array that [`check`] has found to be JSON, as ranges of its bytes. `null` has
/// none.
#[derive(Debug)]
pub(in crate::wire) struct Elements<'a>(Members<'a>);

impl<'a> Elements<'a> {
    pub(in crate::wire) fn of(array: &'a [u8]) -> Result<Self, SplitError> {
        let position = match array.first() {
            Some(b'[') => 1,
            Some(b'n') => array.len(),
            Some(_) | None => {
                return Err(SplitError::Json {
                    expected: "an array",
                });
            }
        };
        Ok(Self(Members {
            object: array,
            position,
        }))
    }
}

impl Iterator for Elements<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        self.0.value()
    }
}

/// Whether `value` is one JSON value.
pub(in crate::wire) fn check(value: &[u8]) -> Result<(), SplitError> {
    serde_json::from_slice::<IgnoredAny>(value)
        .map(|_| ())
        .map_err(|_| SplitError::Json { expected: "JSON" })
}

/// Refuses a value that nests too deep. The values of a [`ValueBuffer`] do not.
pub(in crate::wire) fn check_depth(value: &[u8]) -> Result<(), SplitError> {
    ValueScanner::default().end(value).map(|_| ())
}

/// The text of a string.
pub(in crate::wire) fn text(string: &[u8]) -> Result<Cow<'_, str>, SplitError> {
    let plain = string
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""))
        .filter(|inner| !inner.contains(&b'\\'))
        .and_then(|inner| std::str::from_utf8(inner).ok());
    match plain {
        Some(plain) => Ok(Cow::Borrowed(plain)),
        None => serde_json::from_slice(string)
            .map(Cow::Owned)
            .map_err(|_| SplitError::Json {
                expected: "a string",
            }),
    }
}

/// `chunk` without the whitespace at its start.
pub(in crate::wire) fn trim_start(chunk: &[u8]) -> &[u8] {
    let length = chunk
        .iter()
        .take_while(|byte| is_whitespace(**byte))
        .count();
    &chunk[length..]
}

fn is_whitespace(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}
