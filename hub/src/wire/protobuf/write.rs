//! Protobuf that is written here and not cut out of an answer. Fields that the API server always
//! writes, empty or not, are written empty.

use super::field::{put_bytes, put_length, put_number};
use super::{
    MAGIC, METADATA, list_fields, list_meta, map_entry, object_meta, status as status_fields,
    type_meta as type_meta_fields, unknown, watch_event,
};
use crate::wire::failure::Status;
use crate::wire::{Bookmark, INITIAL_EVENTS_END, ListHead, TypeMeta};

/// What follows `raw` in an envelope: empty content encoding and content type.
pub(in crate::wire) const ENVELOPE_END: &[u8] = &[
    (unknown::CONTENT_ENCODING << 3 | 2) as u8,
    0,
    (unknown::CONTENT_TYPE << 3 | 2) as u8,
    0,
];

/// An envelope up to its `raw`, which will have so many bytes.
fn envelope_start(type_meta: &TypeMeta, raw_length: u64) -> Vec<u8> {
    let mut inner = Vec::new();
    put_bytes(
        &mut inner,
        type_meta_fields::API_VERSION,
        type_meta.api_version.as_bytes(),
    );
    put_bytes(
        &mut inner,
        type_meta_fields::KIND,
        type_meta.kind.as_bytes(),
    );
    let mut out = MAGIC.to_vec();
    put_bytes(&mut out, unknown::TYPE_META, &inner);
    put_length(&mut out, unknown::RAW, raw_length);
    out
}

/// An object in its envelope.
pub(in crate::wire) fn envelope(type_meta: &TypeMeta, raw: &[u8]) -> Vec<u8> {
    let mut out = envelope_start(type_meta, raw.len() as u64);
    out.extend_from_slice(raw);
    out.extend_from_slice(ENVELOPE_END);
    out
}

/// A list up to its first item. `items_length` is the sum of [`item_length`] of all items.
pub(in crate::wire) fn list_start(head: &ListHead, items_length: u64) -> Vec<u8> {
    let metadata = list_metadata(&head.resource_version_text(), &head.continue_token);
    let mut list = Vec::new();
    put_bytes(&mut list, list_fields::METADATA, &metadata);
    let mut out = envelope_start(&head.type_meta, list.len() as u64 + items_length);
    out.extend_from_slice(&list);
    out
}

fn list_metadata(resource_version: &str, continue_token: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, list_meta::SELF_LINK, b"");
    put_bytes(
        &mut out,
        list_meta::RESOURCE_VERSION,
        resource_version.as_bytes(),
    );
    put_bytes(&mut out, list_meta::CONTINUE, continue_token.as_bytes());
    out
}

/// What precedes an item of so many bytes in a list.
pub(in crate::wire) fn item_start(length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    put_length(&mut out, list_fields::ITEMS, length as u64);
    out
}

/// The length in a list of an item of so many bytes.
pub(in crate::wire) fn item_length(length: usize) -> u64 {
    (item_start(length).len() + length) as u64
}

/// The object of a BOOKMARK.
pub(in crate::wire) fn bookmark(resource_version: u64, kind: Bookmark) -> Vec<u8> {
    let mut metadata = Vec::new();
    put_bytes(
        &mut metadata,
        object_meta::RESOURCE_VERSION,
        resource_version.to_string().as_bytes(),
    );
    if kind == Bookmark::InitialEventsEnd {
        let mut entry = Vec::new();
        put_bytes(&mut entry, map_entry::KEY, INITIAL_EVENTS_END.as_bytes());
        put_bytes(&mut entry, map_entry::VALUE, b"true");
        put_bytes(&mut metadata, object_meta::ANNOTATIONS, &entry);
    }
    let mut out = Vec::new();
    put_bytes(&mut out, METADATA, &metadata);
    out
}

/// The frame of an event around an object without envelope.
pub(in crate::wire) fn event(word: &str, type_meta: &TypeMeta, object: &[u8]) -> Vec<u8> {
    let mut extension = Vec::new();
    put_bytes(
        &mut extension,
        watch_event::OBJECT_RAW,
        &envelope(type_meta, object),
    );
    let mut message = Vec::new();
    put_bytes(&mut message, watch_event::TYPE, word.as_bytes());
    put_bytes(&mut message, watch_event::OBJECT, &extension);
    // An object has at most `OBJECT_MAX` bytes.
    let length = message.len() as u32;
    [&length.to_be_bytes(), &message[..]].concat()
}

/// A `Status` without envelope.
pub(in crate::wire) fn status(status: &Status) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, status_fields::METADATA, &list_metadata("", ""));
    put_bytes(&mut out, status_fields::STATUS, b"Failure");
    put_bytes(&mut out, status_fields::MESSAGE, status.message.as_bytes());
    put_bytes(&mut out, status_fields::REASON, status.reason.as_bytes());
    if status.retry_after_seconds.is_some() || status.cause.is_some() {
        let mut details = Vec::new();
        put_bytes(&mut details, status_fields::DETAILS_NAME, b"");
        put_bytes(&mut details, status_fields::DETAILS_GROUP, b"");
        put_bytes(&mut details, status_fields::DETAILS_KIND, b"");
        if let Some(cause) = status.cause {
            let mut entry = Vec::new();
            put_bytes(&mut entry, status_fields::CAUSE_REASON, cause.as_bytes());
            let message = status.message.as_bytes();
            put_bytes(&mut entry, status_fields::CAUSE_MESSAGE, message);
            put_bytes(&mut entry, status_fields::CAUSE_FIELD, b"");
            put_bytes(&mut details, status_fields::DETAILS_CAUSES, &entry);
        }
        let seconds = status.retry_after_seconds.unwrap_or_default();
        put_number(
            &mut details,
            status_fields::DETAILS_RETRY_AFTER,
            seconds.into(),
        );
        put_bytes(&mut details, status_fields::DETAILS_UID, b"");
        put_bytes(&mut out, status_fields::DETAILS, &details);
    }
    put_number(&mut out, status_fields::CODE, status.code.into());
    out
}
