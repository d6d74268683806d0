//! Fields of protobuf messages.

use crate::wire::limits::SplitError;

/// The longest varint, in bytes.
const VARINT_MAX: usize = 10;

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint,
    /// Eight bytes.
    Fixed64,
    /// A length, and so many bytes.
    Bytes,
    /// Four bytes.
    Fixed32,
}

/// The field number and wire type in the tag of a field.
pub(super) fn tag(tag: u64) -> Result<(u64, WireType), SplitError> {
    let wire_type = match tag & 7 {
        0 => WireType::Varint,
        1 => WireType::Fixed64,
        2 => WireType::Bytes,
        5 => WireType::Fixed32,
        _ => return Err(malformed("a wire type")),
    };
    match tag >> 3 {
        0 => Err(malformed("a field number")),
        number => Ok((number, wire_type)),
    }
}

/// A varint whose bytes arrive one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Varint {
    value: u64,
    length: usize,
}

impl Varint {
    /// Whether no byte has been read yet.
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The value, if `byte` is its last; it is then ready for the next.
    pub(super) fn push(&mut self, byte: u8) -> Result<Option<u64>, SplitError> {
        if self.length == VARINT_MAX {
            return Err(malformed("a varint of ten bytes at most"));
        }
        // The tenth byte has one bit that counts; protobuf ignores the others.
        self.value |= u64::from(byte & 0x7f) << (7 * self.length);
        self.length += 1;
        if byte & 0x80 != 0 {
            return Ok(None);
        }
        Ok(Some(std::mem::take(self).value))
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(in crate::wire) struct Field<'a> {
    pub(in crate::wire) number: u64,
    pub(in crate::wire) value: Value<'a>,
    /// Tag and value as they were.
    pub(in crate::wire) whole: &'a [u8],
}

impl<'a> Field<'a> {
    /// The bytes, if this field has the number and is of bytes.
    pub(in crate::wire) fn bytes(&self, number: u64) -> Option<&'a [u8]> {
        match self.value {
            Value::Bytes(bytes) if self.number == number => Some(bytes),
            Value::Bytes(_) | Value::Varint(_) | Value::Fixed => None,
        }
    }
}

/// The fields of a complete message.
#[derive(Clone, Copy, Debug)]
pub(in crate::wire) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(in crate::wire) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Result<Field<'a>, SplitError> {
        let whole = self.rest;
        let (number, wire_type) = tag(self.varint()?)?;
        let value = match wire_type {
            WireType::Varint => Value::Varint(self.varint()?),
            WireType::Bytes => {
                let length = self.varint()?;
                Value::Bytes(self.split_off(length)?)
            }
            WireType::Fixed64 => self.split_off(8).map(|_| Value::Fixed)?,
            WireType::Fixed32 => self.split_off(4).map(|_| Value::Fixed)?,
        };
        Ok(Field {
            number,
            value,
            whole: &whole[..whole.len() - self.rest.len()],
        })
    }

    fn varint(&mut self) -> Result<u64, SplitError> {
        let mut varint = Varint::default();
        loop {
            let byte = self.split_off(1)?[0];
            if let Some(value) = varint.push(byte)? {
                return Ok(value);
            }
        }
    }

    fn split_off(&mut self, length: u64) -> Result<&'a [u8], SplitError> {
        let taken = usize::try_from(length)
            .ok()
            .and_then(|length| self.rest.split_at_checked(length));
        let (taken, rest) = taken.ok_or(malformed("a field within its message"))?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, SplitError>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.field())
    }
}

/// The text of a field.
pub(super) fn text(bytes: &[u8]) -> Result<String, SplitError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| malformed("UTF-8"))
}

pub(in crate::wire) fn malformed(expected: &'static str) -> SplitError {
    SplitError::Protobuf { expected }
}

/// Appends a varint.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the tag and length of a field of bytes.
pub(super) fn put_length(out: &mut Vec<u8>, number: u64, length: u64) {
    put_varint(out, number << 3 | 2);
    put_varint(out, length);
}

/// Appends a field of bytes.
pub(in crate::wire) fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_length(out, number, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a field with a number.
pub(in crate::wire) fn put_number(out: &mut Vec<u8>, number: u64, value: u64) {
    put_varint(out, number << 3);
    put_varint(out, value);
}
