//! Lists in protobuf.

use super::field::{Field, Fields, Value, Varint, WireType, malformed, tag, text};
use super::object::{check_content, read, read_type_meta};
use super::{MAGIC, list_fields, list_meta, unknown};
use crate::wire::limits::{HEAD_MAX, OBJECT_MAX, SplitError};
use crate::wire::{ListHead, Object, TypeMeta, resource_version};

/// Splits a list in protobuf.
#[derive(Debug, Default)]
pub(crate) struct ListSplitter {
    position: Position,
    varint: Varint,
    /// What has arrived of a value that is collected.
    buffer: Vec<u8>,
    list: ListProgress,
    type_meta: TypeMeta,
    resource_version: u64,
    continue_token: String,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Magic,
    Tag,
    /// The length of the field with this number.
    Length(u64),
    /// A varint that is not needed.
    Varint,
    /// So many bytes that are not needed.
    Skip(u64),
    /// The value of the field with this number, which is so long.
    Collect(u64, usize),
}

/// Where the list is that the envelope contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListProgress {
    #[default]
    NotBegun,
    /// So many bytes of it are still to come.
    Inside(u64),
    Ended,
}

/// What one step has read.
enum Step {
    Item(Object),
    Other,
    ChunkUsedUp,
}

impl ListSplitter {
    pub(crate) fn next_item(&mut self, chunk: &mut &[u8]) -> Result<Option<Object>, SplitError> {
        loop {
            match self.step(chunk)? {
                Step::Item(object) => return Ok(Some(object)),
                Step::Other => {}
                Step::ChunkUsedUp => return Ok(None),
            }
        }
    }

    pub(crate) fn begin_items(
        &mut self,
        chunk: &mut &[u8],
    ) -> Result<Option<ListHead>, SplitError> {
        while !self.is_at_item() {
            if let Step::ChunkUsedUp = self.step(chunk)? {
                return Ok(None);
            }
        }
        Ok(Some(ListHead {
            type_meta: self.type_meta.clone(),
            resource_version: self.resource_version,
            continue_token: self.continue_token.clone(),
        }))
    }

    fn is_at_item(&self) -> bool {
        self.position == Position::Length(list_fields::ITEMS)
            && matches!(self.list, ListProgress::Inside(_))
    }

    fn step(&mut self, chunk: &mut &[u8]) -> Result<Step, SplitError> {
        if let (Position::Tag, ListProgress::Inside(0)) = (self.position, self.list) {
            self.list = ListProgress::Ended;
        }
        if let Position::Collect(number, length) = self.position
            && self.buffer.len() == length
        {
            return Ok(self.collected(number)?.map_or(Step::Other, Step::Item));
        }
        if self.position == Position::Skip(0) {
            self.position = Position::Tag;
        } else if chunk.is_empty() {
            return Ok(Step::ChunkUsedUp);
        } else {
            self.read(chunk)?;
        }
        Ok(Step::Other)
    }

    pub(crate) fn finish(self) -> Result<ListHead, SplitError> {
        if self.position != Position::Tag
            || !self.varint.is_empty()
            || self.list != ListProgress::Ended
        {
            return Err(SplitError::EndsEarly);
        }
        self.check_kind()?;
        Ok(ListHead {
            type_meta: self.type_meta,
            resource_version: self.resource_version,
            continue_token: self.continue_token,
        })
    }

    /// Reads at least one byte of `chunk`.
    fn read(&mut self, chunk: &mut &[u8]) -> Result<(), SplitError> {
        match self.position {
            Position::Magic => {
                let missing = MAGIC.len() - self.buffer.len();
                let part = self.consume(chunk, missing as u64)?;
                self.buffer.extend_from_slice(part);
                if !MAGIC.starts_with(&self.buffer) {
                    return Err(malformed("an envelope"));
                }
                if self.buffer == MAGIC {
                    self.buffer.clear();
                    self.position = Position::Tag;
                }
            }
            Position::Skip(left) => {
                let part = self.consume(chunk, left)?;
                self.position = Position::Skip(left - part.len() as u64);
            }
            Position::Collect(_, length) => {
                let missing = length - self.buffer.len();
                let part = self.consume(chunk, missing as u64)?;
                self.buffer.extend_from_slice(part);
            }
            Position::Tag | Position::Length(_) | Position::Varint => {
                let byte = self.consume(chunk, 1)?[0];
                if let Some(value) = self.varint.push(byte)? {
                    self.position = self.after_varint(value)?;
                }
            }
        }
        Ok(())
    }

    /// Up to `most` bytes of `chunk`, all of which must belong to the list if it has begun.
    fn consume<'a>(&mut self, chunk: &mut &'a [u8], most: u64) -> Result<&'a [u8], SplitError> {
        let length = usize::try_from(most).map_or(chunk.len(), |most| most.min(chunk.len()));
        let (part, rest) = chunk.split_at(length);
        if let ListProgress::Inside(left) = &mut self.list {
            *left = left
                .checked_sub(length as u64)
                .ok_or(malformed("a field within the list"))?;
        }
        *chunk = rest;
        Ok(part)
    }

    fn after_varint(&mut self, value: u64) -> Result<Position, SplitError> {
        match self.position {
            Position::Tag => {
                let (number, wire_type) = tag(value)?;
                Ok(match wire_type {
                    WireType::Varint => Position::Varint,
                    WireType::Bytes => Position::Length(number),
                    WireType::Fixed64 => Position::Skip(8),
                    WireType::Fixed32 => Position::Skip(4),
                })
            }
            Position::Length(number) => self.after_length(number, value),
            Position::Varint | Position::Magic | Position::Skip(_) | Position::Collect(..) => {
                Ok(Position::Tag)
            }
        }
    }

    fn after_length(&mut self, number: u64, length: u64) -> Result<Position, SplitError> {
        let (limit, too_long) = match (self.list, number) {
            (ListProgress::NotBegun, unknown::RAW) => {
                self.list = ListProgress::Inside(length);
                return Ok(Position::Tag);
            }
            (ListProgress::Ended, unknown::RAW) => return Err(malformed("one list")),
            (ListProgress::Inside(left), _) if length > left => {
                return Err(malformed("a field within the list"));
            }
            (ListProgress::Inside(_), list_fields::ITEMS) => {
                self.check_kind()?;
                (OBJECT_MAX, SplitError::ObjectTooLong { limit: OBJECT_MAX })
            }
            (ListProgress::Inside(_), list_fields::METADATA)
            | (
                ListProgress::NotBegun | ListProgress::Ended,
                unknown::TYPE_META | unknown::CONTENT_TYPE | unknown::CONTENT_ENCODING,
            ) => (HEAD_MAX, SplitError::HeadTooLong { limit: HEAD_MAX }),
            (ListProgress::Inside(_) | ListProgress::NotBegun | ListProgress::Ended, _) => {
                return Ok(Position::Skip(length));
            }
        };
        match usize::try_from(length) {
            Ok(length) if length <= limit => Ok(Position::Collect(number, length)),
            Ok(_) | Err(_) => Err(too_long),
        }
    }

    /// The value of the field with this number is complete.
    fn collected(&mut self, number: u64) -> Result<Option<Object>, SplitError> {
        let value = std::mem::take(&mut self.buffer);
        self.position = Position::Tag;
        match (self.list, number) {
            (ListProgress::Inside(_), list_fields::ITEMS) => {
                let object = read(&value)?;
                if object.metadata.name.is_empty() {
                    return Err(SplitError::Unnamed);
                }
                return Ok(Some(object));
            }
            (ListProgress::Inside(_), _) => self.read_metadata(&value)?,
            (ListProgress::NotBegun | ListProgress::Ended, unknown::TYPE_META) => {
                read_type_meta(&value, &mut self.type_meta)?;
            }
            (ListProgress::NotBegun | ListProgress::Ended, _) => check_content(&Field {
                number,
                value: Value::Bytes(&value),
                whole: &value,
            })?,
        }
        Ok(None)
    }

    fn read_metadata(&mut self, message: &[u8]) -> Result<(), SplitError> {
        for field in Fields::of(message) {
            let field = field?;
            if let Some(bytes) = field.bytes(list_meta::RESOURCE_VERSION) {
                self.resource_version = resource_version(&text(bytes)?)?;
            } else if let Some(bytes) = field.bytes(list_meta::CONTINUE) {
                self.continue_token = text(bytes)?;
            }
        }
        Ok(())
    }

    /// Any message has a second field: only the kind tells whether it is that of items. The kinds
    /// of all lists in protobuf end in `List`.
    fn check_kind(&self) -> Result<(), SplitError> {
        match self.type_meta.item() {
            Some(_) => Ok(()),
            None => Err(SplitError::NotAList),
        }
    }
}
