//! The functions that the fuzz targets (`fuzz/`) and property tests call: the parsers of what API
//! servers and clients write. The bytes arrive in pieces of a given length. Results are bytes and
//! text, so that a target can compare them and parse them again.

use bytes::Bytes;
use culvert_daemon::chain;
use http::{Request, header};

use crate::reads::{Plan, make_readable};
use crate::request::info::RequestInfo;
use crate::request::selector::{FieldSelector, LabelSelector};
use crate::wire::edit::{self, Value, metadata};
use crate::wire::replace::{self, EditBody};
use crate::wire::split::{EventSplitter, ListSplitter, ObjectSplitter};
use crate::wire::{Encoding, Shape, write};

/// What came out of a body before it ended or could not be split further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Items or events, each written again.
    pub parts: Vec<Bytes>,
    /// The whole body, written again; or the reason why it cannot be split.
    pub whole: Result<Bytes, String>,
}

/// The items of a list in JSON, and the list.
#[must_use]
pub fn list_json(body: &[u8], piece: usize) -> Split {
    list(Encoding::Json, Shape::Object, body, piece)
}

/// The rows of a table in JSON, and the table.
#[must_use]
pub fn table_json(body: &[u8], piece: usize) -> Split {
    list(Encoding::Json, Shape::Table, body, piece)
}

/// The items of a list in protobuf, and the list.
#[must_use]
pub fn list_protobuf(body: &[u8], piece: usize) -> Split {
    list(Encoding::Protobuf, Shape::Object, body, piece)
}

/// The events of a watch in JSON.
#[must_use]
pub fn events_json(body: &[u8], piece: usize) -> Split {
    events(Encoding::Json, Shape::Object, body, piece)
}

/// The events of a watch of tables in JSON.
#[must_use]
pub fn table_events_json(body: &[u8], piece: usize) -> Split {
    events(Encoding::Json, Shape::Table, body, piece)
}

/// The events of a watch in protobuf.
#[must_use]
pub fn events_protobuf(body: &[u8], piece: usize) -> Split {
    events(Encoding::Protobuf, Shape::Object, body, piece)
}

/// An object in JSON.
#[must_use]
pub fn object_json(body: &[u8], piece: usize) -> Split {
    object(Encoding::Json, Shape::Object, body, piece)
}

/// A table with one row in JSON.
#[must_use]
pub fn row_json(body: &[u8], piece: usize) -> Split {
    object(Encoding::Json, Shape::Table, body, piece)
}

/// An object in protobuf.
#[must_use]
pub fn object_protobuf(body: &[u8], piece: usize) -> Split {
    object(Encoding::Protobuf, Shape::Object, body, piece)
}

fn list(encoding: Encoding, shape: Shape, body: &[u8], piece: usize) -> Split {
    let mut splitter = ListSplitter::new(encoding, shape);
    let mut parts = Vec::new();
    // Both ways of reading: the head first, or all at once.
    let mut items_begun = piece.is_multiple_of(2);
    for mut chunk in body.chunks(piece.max(1)) {
        if !items_begun {
            match splitter.begin_items(&mut chunk) {
                Ok(Some(_)) => items_begun = true,
                Ok(None) => continue,
                Err(error) => return Split::refused(parts, &error),
            }
        }
        loop {
            match splitter.next_item(&mut chunk) {
                Ok(Some(object)) => parts.push(object.bytes),
                Ok(None) => break,
                Err(error) => return Split::refused(parts, &error),
            }
        }
    }
    match splitter.finish() {
        Ok(head) => Split {
            whole: Ok(write::list(encoding, &head, &parts)),
            parts,
        },
        Err(error) => Split::refused(parts, &error),
    }
}

fn events(encoding: Encoding, shape: Shape, body: &[u8], piece: usize) -> Split {
    let mut splitter = EventSplitter::new(encoding, shape);
    let mut parts = Vec::new();
    for mut chunk in body.chunks(piece.max(1)) {
        loop {
            match splitter.next_event(&mut chunk) {
                Ok(Some(event)) => parts.push(event.frame(encoding)),
                Ok(None) => break,
                Err(error) => return Split::refused(parts, &error),
            }
        }
    }
    Split {
        whole: Ok(parts.concat().into()),
        parts,
    }
}

fn object(encoding: Encoding, shape: Shape, body: &[u8], piece: usize) -> Split {
    let mut splitter = ObjectSplitter::new(encoding, shape);
    for chunk in body.chunks(piece.max(1)) {
        if let Err(error) = splitter.push(chunk) {
            return Split::refused(Vec::new(), &error);
        }
    }
    match splitter.finish() {
        Ok((type_meta, object)) => Split {
            parts: vec![labels(encoding, &object)],
            whole: Ok(object.alone(encoding, &type_meta)),
        },
        Err(error) => Split::refused(Vec::new(), &error),
    }
}

fn labels(encoding: Encoding, object: &crate::wire::Object) -> Bytes {
    format!("{:?}", object.labels(encoding)).into()
}

impl Split {
    fn refused(parts: Vec<Bytes>, error: &crate::wire::split::SplitError) -> Self {
        Self {
            parts,
            whole: Err(chain(error)),
        }
    }
}

/// The body, read as an object, as a list and as an event, with each of its objects replaced by its
/// own bytes. `None`: it cannot be read so.
#[must_use]
pub fn same_objects(is_json: bool, body: &[u8]) -> [Option<Vec<u8>>; 3] {
    let kinds: [EditBody; 3] = [replace::object, replace::list, replace::event];
    kinds.map(|edit_body| {
        let mut same = |object: &[u8]| Ok(Some(object.to_vec()));
        let edited = edit_body(encoding(is_json), body, &mut same).ok()?;
        Some(edited.unwrap_or_else(|| body.to_vec()))
    })
}

/// The object with this uid. `None`: it has no metadata to which one could be added.
#[must_use]
pub fn with_uid(is_json: bool, object: &[u8], uid: &str) -> Option<Vec<u8>> {
    let uid = Value::Text(uid.to_owned());
    edit::set(encoding(is_json), object, metadata::UID, &uid).ok()
}

/// The uid and the namespace of an object. `None`: it cannot be read.
#[must_use]
pub fn uid_and_namespace(is_json: bool, object: &[u8]) -> Option<[String; 2]> {
    let text = |path| edit::text(encoding(is_json), object, path).ok();
    Some([text(metadata::UID)?, text(metadata::NAMESPACE)?])
}

fn encoding(is_json: bool) -> Encoding {
    if is_json {
        Encoding::Json
    } else {
        Encoding::Protobuf
    }
}

/// What a request asks for, given its method and its path with query.
///
/// # Errors
///
/// The reason why it has no meaning.
pub fn request_info(method: &str, url: &str) -> Result<String, String> {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    RequestInfo::new(method, path, query)
        .map(|info| format!("{info:?}"))
        .map_err(|error| chain(&error))
}

/// What the hub does with a request, given its method, its path with query and its `Accept`; and what
/// it would do with the request as it sends it on. `None`: no HTTP library lets it through.
#[must_use]
pub fn plans(method: &str, url: &str, accept: &str) -> Option<[String; 2]> {
    let request = Request::builder().method(method).uri(url);
    let request = request.header(header::ACCEPT, accept).body(()).ok()?;
    let mut sent = request.headers().clone();
    make_readable(&mut sent);
    let plan = Plan::new(request.method(), request.uri(), request.headers());
    let sent = Plan::new(request.method(), request.uri(), &sent);
    Some([format!("{plan:?}"), format!("{sent:?}")])
}

/// A label selector in its written form.
///
/// # Errors
///
/// The reason why the API server refuses it.
pub fn label_selector(text: &str) -> Result<String, String> {
    let selector: Result<LabelSelector, _> = text.parse();
    selector
        .map(|selector| selector.to_string())
        .map_err(|error| chain(&error))
}

/// A field selector in its written form.
///
/// # Errors
///
/// The reason why the API server refuses it.
pub fn field_selector(text: &str) -> Result<String, String> {
    let selector: Result<FieldSelector, _> = text.parse();
    selector
        .map(|selector| selector.to_string())
        .map_err(|error| chain(&error))
}
