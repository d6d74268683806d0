//! Documents and their readers as rows.

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::rows::{json, seconds, split_line, with_line};
use crate::cache::Identity;
use crate::cache::documents::{Document, DocumentKey, Documents, KeptDocument};
use crate::cache::scope::{join, split};
use crate::store::{Batch, Rows, Table};

/// The first line of a document; the bytes follow.
#[derive(Debug, Serialize, Deserialize)]
struct SavedDocument {
    status: u16,
    etag: Option<String>,
    accepted: Vec<String>,
    /// Seconds since 1970.
    confirmed: u64,
}

pub(super) fn put_document_changes(batch: &mut Batch, documents: &mut Documents) {
    for (key, kept) in documents.take_unsaved() {
        match kept {
            Some(kept) => put_document(batch, &key, kept),
            None => batch.remove(Table::Documents, document_key(&key)),
        }
    }
    for (path, reader, may_read) in documents.take_unsaved_readers() {
        let key = reader_key(&path, &reader);
        if may_read {
            batch.put(Table::DocumentReaders, key, Vec::new());
        } else {
            batch.remove(Table::DocumentReaders, key);
        }
    }
}

pub(super) fn put_documents(batch: &mut Batch, documents: &Documents) {
    for (key, kept) in documents.all() {
        put_document(batch, key, kept);
    }
    for (path, reader) in documents.all_readers() {
        batch.put(Table::DocumentReaders, reader_key(path, reader), Vec::new());
    }
}

/// What the node and these identities read, without the schema: it is long, and nothing needs it to
/// start.
pub(super) fn put_essential_documents(
    batch: &mut Batch,
    documents: &Documents,
    identities: &BTreeSet<Identity>,
) {
    for (key, kept) in documents.all() {
        if !is_schema(&key.path) {
            put_document(batch, key, kept);
        }
    }
    for (path, reader) in documents.all_readers() {
        let is_reader = *reader == Identity::Node || identities.contains(reader);
        if is_reader && !is_schema(path) {
            batch.put(Table::DocumentReaders, reader_key(path, reader), Vec::new());
        }
    }
}

fn is_schema(path: &str) -> bool {
    path.starts_with("/openapi")
}

pub(super) fn restore_documents(rows: &Rows, documents: &mut Documents) {
    for (key, value) in rows.all(Table::Documents) {
        restore_document(documents, key, value);
    }
    for (key, _) in rows.all(Table::DocumentReaders) {
        if let Some([path, reader]) = split(key)
            && let Some(reader) = Identity::parse(reader)
        {
            documents.restore_reader(path, reader);
        }
    }
}

/// Leaves out what is damaged: it is unknown then.
fn restore_document(documents: &mut Documents, key: &str, value: &[u8]) -> Option<()> {
    let [path, query, content_type] = split(key)?;
    let (line, body) = split_line(value)?;
    let saved: SavedDocument = serde_json::from_str(line).ok()?;
    let document = Document {
        status: StatusCode::from_u16(saved.status).ok()?,
        content_type: content_type.to_owned(),
        etag: saved.etag,
        body: Document::packed(body.to_vec()),
        confirmed: UNIX_EPOCH + Duration::from_secs(saved.confirmed),
    };
    documents.restore(path, query, document, saved.accepted);
    Some(())
}

fn put_document(batch: &mut Batch, key: &DocumentKey, kept: &KeptDocument) {
    let saved = SavedDocument {
        status: kept.document.status.as_u16(),
        etag: kept.document.etag.clone(),
        accepted: kept.accepted.clone(),
        confirmed: seconds(kept.document.confirmed),
    };
    let line = String::from_utf8_lossy(&json(&saved)).into_owned();
    let value = with_line(&line, kept.document.body.clone());
    batch.put(Table::Documents, document_key(key), value);
}

fn document_key(key: &DocumentKey) -> String {
    join(&[&key.path, &key.query, &key.content_type])
}

fn reader_key(path: &str, reader: &Identity) -> String {
    join(&[path, &reader.to_string()])
}
