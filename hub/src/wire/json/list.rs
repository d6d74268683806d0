//! Lists in JSON; tables are lists of rows.

use bytes::Bytes;

use super::object::read;
use super::row::read_row;
use super::scan::{Members, ValueBuffer, check, text, trim_start};
use crate::wire::limits::{HEAD_MAX, OBJECT_MAX, SplitError};
use crate::wire::{ListHead, Object, TypeMeta, resource_version};

/// Splits a list in JSON. Its members may come in any order.
#[derive(Debug, Default)]
pub(crate) struct ListSplitter {
    position: Position,
    buffer: ValueBuffer,
    kind: String,
    api_version: String,
    resource_version: u64,
    continue_token: String,
    columns: Bytes,
    items_seen: bool,
    expected: Expected,
}

/// What kind of list it is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Items,
    Rows,
    /// A row may be without a name, as that of a bookmark.
    OneRow,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Start,
    FirstKey,
    Key,
    Colon(Part),
    Value(Part),
    /// A comma, or the end of the list.
    AfterValue,
    FirstItem,
    Item,
    /// A comma, or the end of the items.
    AfterItem,
    End,
}

/// A member of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Kind,
    ApiVersion,
    Metadata,
    /// The items, or the rows of a table.
    Items,
    Columns,
    /// Is dropped: no list of the API server has more members.
    Unknown,
}

impl ListSplitter {
    /// Splits a table.
    pub(crate) fn of_rows() -> Self {
        Self {
            expected: Expected::Rows,
            ..Self::default()
        }
    }

    /// Splits a table about one object.
    pub(super) fn of_one_row() -> Self {
        Self {
            expected: Expected::OneRow,
            ..Self::default()
        }
    }

    pub(crate) fn next_item(&mut self, chunk: &mut &[u8]) -> Result<Option<Object>, SplitError> {
        loop {
            if !self.buffer.is_inside_value() {
                *chunk = trim_start(chunk);
            }
            let Some(&byte) = chunk.first() else {
                return Ok(None);
            };
            if let Position::FirstItem | Position::Item = self.position {
                let item = self.item(byte, chunk)?;
                if item.is_some() {
                    return Ok(item);
                }
            } else {
                self.head(byte, chunk)?;
            }
        }
    }

    pub(crate) fn begin_items(
        &mut self,
        chunk: &mut &[u8],
    ) -> Result<Option<ListHead>, SplitError> {
        while self.position != Position::FirstItem {
            if !self.buffer.is_inside_value() {
                *chunk = trim_start(chunk);
            }
            let Some(&byte) = chunk.first() else {
                return Ok(None);
            };
            self.head(byte, chunk)?;
        }
        Ok(Some(ListHead {
            type_meta: self.type_meta(),
            resource_version: self.resource_version,
            continue_token: self.continue_token.clone(),
        }))
    }

    fn type_meta(&self) -> TypeMeta {
        TypeMeta {
            columns: self.columns.clone(),
            ..TypeMeta::new(&*self.api_version, &*self.kind)
        }
    }

    pub(crate) fn finish(self) -> Result<ListHead, SplitError> {
        if self.position != Position::End {
            return Err(SplitError::EndsEarly);
        }
        if !self.items_seen {
            return Err(SplitError::NotAList);
        }
        let type_meta = self.type_meta();
        if type_meta.is_table() != (self.expected != Expected::Items) {
            return Err(SplitError::NotAList);
        }
        Ok(ListHead {
            type_meta,
            resource_version: self.resource_version,
            continue_token: self.continue_token,
        })
    }

    /// Reads an item, or the end of the items before the first.
    fn item(&mut self, byte: u8, chunk: &mut &[u8]) -> Result<Option<Object>, SplitError> {
        if self.position == Position::FirstItem && byte == b']' && !self.buffer.is_inside_value() {
            *chunk = &chunk[1..];
            self.position = Position::AfterValue;
            return Ok(None);
        }
        let too_long = SplitError::ObjectTooLong { limit: OBJECT_MAX };
        if !self.buffer.collect(chunk, OBJECT_MAX, too_long)? {
            return Ok(None);
        }
        let object = match self.expected {
            Expected::Items => read(self.buffer.value())?,
            Expected::Rows | Expected::OneRow => read_row(self.buffer.value())?,
        };
        if object.metadata.name.is_empty() && self.expected != Expected::OneRow {
            return Err(SplitError::Unnamed);
        }
        self.buffer.clear();
        self.position = Position::AfterItem;
        Ok(Some(object))
    }

    /// Reads all but the items. `byte` is the first of `chunk`.
    fn head(&mut self, byte: u8, chunk: &mut &[u8]) -> Result<(), SplitError> {
        let next = match (self.position, byte) {
            (Position::Value(Part::Items), b'[') if !self.buffer.is_inside_value() => {
                Position::FirstItem
            }
            (Position::FirstKey, b'"') => {
                self.position = Position::Key;
                return Ok(());
            }
            (Position::Key | Position::Value(_), _) => return self.head_value(chunk),
            (Position::Start, b'{') => Position::FirstKey,
            (Position::FirstKey | Position::AfterValue, b'}') => Position::End,
            (Position::Colon(part), b':') => Position::Value(part),
            (Position::AfterValue, b',') => Position::Key,
            (Position::AfterItem, b',') => Position::Item,
            (Position::AfterItem, b']') => Position::AfterValue,
            _ => return Err(SplitError::Json { expected: "a list" }),
        };
        *chunk = &chunk[1..];
        self.position = next;
        Ok(())
    }

    /// Reads a key, or a value that is not the items.
    fn head_value(&mut self, chunk: &mut &[u8]) -> Result<(), SplitError> {
        let too_long = SplitError::HeadTooLong { limit: HEAD_MAX };
        if !self.buffer.collect(chunk, HEAD_MAX, too_long)? {
            return Ok(());
        }
        let value = std::mem::take(&mut self.buffer);
        check(value.value())?;
        self.position = if let Position::Value(part) = self.position {
            self.append(part, value.value())?;
            Position::AfterValue
        } else {
            Position::Colon(self.part(&text(value.value())?)?)
        };
        Ok(())
    }

    fn part(&mut self, key: &str) -> Result<Part, SplitError> {
        let items = match self.expected {
            Expected::Items => "items",
            Expected::Rows | Expected::OneRow => "rows",
        };
        match key {
            "kind" => Ok(Part::Kind),
            "apiVersion" => Ok(Part::ApiVersion),
            "metadata" => Ok(Part::Metadata),
            "columnDefinitions" => Ok(Part::Columns),
            _ if key == items && self.items_seen => Err(SplitError::Json {
                expected: "the items once",
            }),
            _ if key == items => {
                self.items_seen = true;
                Ok(Part::Items)
            }
            _ => Ok(Part::Unknown),
        }
    }

    fn append(&mut self, part: Part, value: &[u8]) -> Result<(), SplitError> {
        match part {
            Part::Kind => self.kind = text(value)?.into_owned(),
            Part::ApiVersion => self.api_version = text(value)?.into_owned(),
            Part::Metadata => self.read_metadata(value)?,
            Part::Columns if value == b"null" => {}
            Part::Columns => self.columns = Bytes::copy_from_slice(value),
            Part::Items if value == b"null" => {}
            Part::Items => return Err(SplitError::NotAList),
            Part::Unknown => {}
        }
        Ok(())
    }

    fn read_metadata(&mut self, metadata: &[u8]) -> Result<(), SplitError> {
        for member in Members::of(metadata)? {
            let value = &metadata[member.value.clone()];
            // As if it was missing, as in Go.
            if value == b"null" {
                continue;
            }
            match &*member.key(metadata).unwrap_or_default() {
                "resourceVersion" => self.resource_version = resource_version(&text(value)?)?,
                "continue" => self.continue_token = text(value)?.into_owned(),
                _ => {}
            }
        }
        Ok(())
    }
}
