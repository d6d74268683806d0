//! JSON that is written here and not cut out of an answer.

use crate::wire::failure::Status;
use crate::wire::{Bookmark, INITIAL_EVENTS_END, ListHead};

/// Appends `"name":"value"`, after a comma if it is not the first member.
pub(super) fn put_member(out: &mut Vec<u8>, name: &str, value: &str) {
    if !out.ends_with(b"{") {
        out.push(b',');
    }
    let value = serde_json::Value::from(value);
    out.extend_from_slice(format!("\"{name}\":{value}").as_bytes());
}

/// A list up to the bracket before its items.
pub(in crate::wire) fn list_start(head: &ListHead) -> Vec<u8> {
    let mut out = vec![b'{'];
    put_member(&mut out, "kind", &head.type_meta.kind);
    put_member(&mut out, "apiVersion", &head.type_meta.api_version);
    out.extend_from_slice(b",\"metadata\":{");
    for (name, value) in [
        ("resourceVersion", &head.resource_version_text()),
        ("continue", &head.continue_token),
    ] {
        if !value.is_empty() {
            put_member(&mut out, name, value);
        }
    }
    out.push(b'}');
    if !head.type_meta.columns.is_empty() {
        out.extend_from_slice(b",\"columnDefinitions\":");
        out.extend_from_slice(&head.type_meta.columns);
    }
    out.extend_from_slice(if head.type_meta.is_table() {
        b",\"rows\":["
    } else {
        b",\"items\":["
    });
    out
}

/// What follows the items.
pub(in crate::wire) const LIST_END: &[u8] = b"]}\n";

/// The object of a BOOKMARK without `kind` and `apiVersion`.
pub(in crate::wire) fn bookmark(resource_version: u64, kind: Bookmark) -> Vec<u8> {
    let mut out = b"{\"metadata\":{".to_vec();
    put_member(&mut out, "resourceVersion", &resource_version.to_string());
    out.extend_from_slice(b",\"creationTimestamp\":null");
    if kind == Bookmark::InitialEventsEnd {
        out.extend_from_slice(b",\"annotations\":{");
        put_member(&mut out, INITIAL_EVENTS_END, "true");
        out.push(b'}');
    }
    out.extend_from_slice(b"}}");
    out
}

/// The row of a bookmark.
pub(in crate::wire) fn bookmark_row(resource_version: u64, kind: Bookmark) -> Vec<u8> {
    let mut row = b"{\"cells\":[],\"object\":".to_vec();
    row.extend_from_slice(&bookmark(resource_version, kind));
    row.push(b'}');
    row
}

/// A watch event around a complete object.
pub(in crate::wire) fn event(word: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(object.len() + 40);
    out.push(b'{');
    put_member(&mut out, "type", word);
    out.extend_from_slice(b",\"object\":");
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out
}

/// A `Status` without `kind` and `apiVersion`.
pub(in crate::wire) fn status(status: &Status) -> Vec<u8> {
    let mut out = b"{\"metadata\":{}".to_vec();
    put_member(&mut out, "status", "Failure");
    put_member(&mut out, "message", &status.message);
    put_member(&mut out, "reason", status.reason);
    let cause = status.cause.map(|cause| {
        let message = serde_json::Value::from(&*status.message);
        format!("\"causes\":[{{\"reason\":\"{cause}\",\"message\":{message}}}]")
    });
    let seconds = status
        .retry_after_seconds
        .map(|seconds| format!("\"retryAfterSeconds\":{seconds}"));
    let details: Vec<_> = cause.into_iter().chain(seconds).collect();
    if !details.is_empty() {
        let details = format!(",\"details\":{{{}}}", details.join(","));
        out.extend_from_slice(details.as_bytes());
    }
    out.extend_from_slice(format!(",\"code\":{}}}", status.code).as_bytes());
    out
}
