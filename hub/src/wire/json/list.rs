//! Lists in JSON.

use super::object::{read, resource_version};
use super::scan::{Members, ValueBuffer, check, text, trim_start};
use crate::wire::split::{HEAD_MAX, OBJECT_MAX, SplitError};
use crate::wire::{ListHead, Object, TypeMeta};

/// Splits a list in JSON. Its members may come in any order.
#[derive(Debug, Default)]
pub(crate) struct ListSplitter {
    at: At,
    buffer: ValueBuffer,
    kind: String,
    api_version: String,
    resource_version: u64,
    continue_token: String,
    items_seen: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Start,
    FirstKey,
    Key,
    Colon(Member),
    Value(Member),
    /// A comma, or the end of the list.
    AfterValue,
    FirstItem,
    Item,
    /// A comma, or the end of the items.
    AfterItem,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Kind,
    ApiVersion,
    Metadata,
    Items,
    /// Is dropped: no list of the API server has more members.
    Unknown,
}

impl ListSplitter {
    pub(crate) fn next_item(&mut self, chunk: &mut &[u8]) -> Result<Option<Object>, SplitError> {
        loop {
            if !self.buffer.is_inside_value() {
                *chunk = trim_start(chunk);
            }
            let Some(&byte) = chunk.first() else {
                return Ok(None);
            };
            if let At::FirstItem | At::Item = self.at {
                let item = self.item(byte, chunk)?;
                if item.is_some() {
                    return Ok(item);
                }
            } else {
                self.head(byte, chunk)?;
            }
        }
    }

    pub(crate) fn finish(self) -> Result<ListHead, SplitError> {
        if self.at != At::End {
            return Err(SplitError::EndsEarly);
        }
        if !self.items_seen {
            return Err(SplitError::NotAList);
        }
        Ok(ListHead {
            type_meta: TypeMeta {
                api_version: self.api_version,
                kind: self.kind,
            },
            resource_version: self.resource_version,
            continue_token: self.continue_token,
        })
    }

    /// Reads an item, or the end of the items before the first.
    fn item(&mut self, byte: u8, chunk: &mut &[u8]) -> Result<Option<Object>, SplitError> {
        if self.at == At::FirstItem && byte == b']' && !self.buffer.is_inside_value() {
            *chunk = &chunk[1..];
            self.at = At::AfterValue;
            return Ok(None);
        }
        let too_long = SplitError::ObjectTooLong { limit: OBJECT_MAX };
        if !self.buffer.collect(chunk, OBJECT_MAX, too_long)? {
            return Ok(None);
        }
        let object = read(self.buffer.value())?;
        if object.metadata.name.is_empty() {
            return Err(SplitError::Unnamed);
        }
        self.buffer.clear();
        self.at = At::AfterItem;
        Ok(Some(object))
    }

    /// Reads all but the items. `byte` is the first of `chunk`.
    fn head(&mut self, byte: u8, chunk: &mut &[u8]) -> Result<(), SplitError> {
        let next = match (self.at, byte) {
            (At::Value(Member::Items), b'[') if !self.buffer.is_inside_value() => At::FirstItem,
            (At::FirstKey, b'"') => {
                self.at = At::Key;
                return Ok(());
            }
            (At::Key | At::Value(_), _) => return self.head_value(chunk),
            (At::Start, b'{') => At::FirstKey,
            (At::FirstKey | At::AfterValue, b'}') => At::End,
            (At::Colon(member), b':') => At::Value(member),
            (At::AfterValue, b',') => At::Key,
            (At::AfterItem, b',') => At::Item,
            (At::AfterItem, b']') => At::AfterValue,
            _ => return Err(SplitError::Json { expected: "a list" }),
        };
        *chunk = &chunk[1..];
        self.at = next;
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
        self.at = if let At::Value(member) = self.at {
            self.keep(member, value.value())?;
            At::AfterValue
        } else {
            At::Colon(self.member(&text(value.value())?)?)
        };
        Ok(())
    }

    fn member(&mut self, key: &str) -> Result<Member, SplitError> {
        match key {
            "kind" => Ok(Member::Kind),
            "apiVersion" => Ok(Member::ApiVersion),
            "metadata" => Ok(Member::Metadata),
            "items" if self.items_seen => Err(SplitError::Json {
                expected: "`items` once",
            }),
            "items" => {
                self.items_seen = true;
                Ok(Member::Items)
            }
            _ => Ok(Member::Unknown),
        }
    }

    fn keep(&mut self, member: Member, value: &[u8]) -> Result<(), SplitError> {
        match member {
            Member::Kind => self.kind = text(value)?.into_owned(),
            Member::ApiVersion => self.api_version = text(value)?.into_owned(),
            Member::Metadata => self.keep_metadata(value)?,
            Member::Items if value == b"null" => {}
            Member::Items => return Err(SplitError::NotAList),
            Member::Unknown => {}
        }
        Ok(())
    }

    fn keep_metadata(&mut self, metadata: &[u8]) -> Result<(), SplitError> {
        for member in Members::of(metadata)? {
            let value = &metadata[member.value.clone()];
            match &*member.key(metadata).unwrap_or_default() {
                "resourceVersion" => self.resource_version = resource_version(value)?,
                "continue" => self.continue_token = text(value)?.into_owned(),
                _ => {}
            }
        }
        Ok(())
    }
}
