//! Objects, lists and watch events of the Kubernetes API as they are on the wire, in JSON and in
//! protobuf. They are cut out as bytes: no type of Kubernetes is known here, so no field is lost.
//!
//! [`split`] takes bodies apart, [`write`] puts them together again, [`replace`] changes values
//! in them, [`path`] finds them. A list of
//! `PartialObjectMetadata` is a list like any other. So is a `Table`, if a splitter is told to
//! expect one: its items are rows, each with the metadata of its object, and its columns belong to
//! the type of the rows.

pub(crate) mod edit;
pub(crate) mod failure;
mod json;
pub(crate) mod limits;
pub(crate) mod path;
mod protobuf;
pub(crate) mod replace;
pub(crate) mod split;
pub(crate) mod status;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod value;
pub(crate) mod write;

use std::collections::BTreeMap;

use bytes::Bytes;

use split::SplitError;

/// The labels of an object.
pub(crate) type Labels = BTreeMap<String, String>;

/// The annotation of the BOOKMARK that ends the initial events of a streaming list. Its value is
/// `true`.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Encoding {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Encoding {
    /// The encoding of a body with this `Content-Type`. `None`: the hub does not read it.
    pub(crate) fn from_content_type(header: &str) -> Option<Self> {
        let media_type = header.split(';').next().unwrap_or_default().trim();
        match &*media_type.to_ascii_lowercase() {
            "application/json" => Some(Self::Json),
            "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            _ => None,
        }
    }

    /// The `Content-Type` of an object or list.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// The `Content-Type` of a watch.
    pub(crate) fn content_type_of_watch(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }
}

/// What the API server makes of an object before it answers (`as=` in `Accept`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// The object itself.
    Object,
    /// `PartialObjectMetadata`, or a list of it.
    Metadata,
    /// `Table`: rows for people, each with the metadata of its object.
    Table,
    /// The same, each with its object (`includeObject=Object`).
    TableOfObjects,
}

impl Shape {
    /// Whether it has rows.
    pub(crate) fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::TableOfObjects)
    }
}

/// `apiVersion` and `kind`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TypeMeta {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    /// `columnDefinitions` of a `Table` in JSON, which say what the cells of its rows are. Empty:
    /// there are none. A watch has them in its first event only.
    pub(crate) columns: Bytes,
}

impl TypeMeta {
    pub(crate) fn new(api_version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            api_version: api_version.into(),
            kind: kind.into(),
            columns: Bytes::new(),
        }
    }

    /// The type of the items of a list: `Pod` for `PodList`, and for a table the table itself.
    /// `None`: this is no list.
    pub(crate) fn item(&self) -> Option<Self> {
        if self.is_table() {
            return Some(self.clone());
        }
        let kind = self.kind.strip_suffix("List")?;
        (!kind.is_empty()).then(|| Self::new(&*self.api_version, kind))
    }

    /// The type of a list of these: every list of Kubernetes is named so.
    pub(crate) fn list(&self) -> Self {
        if self.is_table() {
            return self.clone();
        }
        Self::new(&*self.api_version, format!("{}List", self.kind))
    }

    /// Whether objects of this type are rows.
    pub(crate) fn is_table(&self) -> bool {
        self.kind == "Table" && self.api_version.starts_with("meta.k8s.io/")
    }
}

/// What of an object's metadata the hub reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// Empty for objects without a namespace.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: u64,
}

/// The number in a string; zero if the string is empty, as aggregated API servers send it.
fn resource_version(text: &str) -> Result<u64, SplitError> {
    match text {
        "" => Ok(0),
        number => number.parse().map_err(|_| SplitError::ResourceVersion),
    }
}

/// An object as it is in a list: in JSON with or without `kind` and `apiVersion`, in protobuf the
/// message without the `k8s\0` envelope. `managedFields` are cut out. The bytes are its own: they keep
/// no larger buffer in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) metadata: Metadata,
    pub(crate) bytes: Bytes,
}

/// All of a list but its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListHead {
    /// `PodList`, say.
    pub(crate) type_meta: TypeMeta,
    pub(crate) resource_version: u64,
    /// `metadata.continue`; empty on the last page.
    pub(crate) continue_token: String,
}

impl ListHead {
    /// The resource version as it is written. Aggregated API servers have none.
    fn resource_version_text(&self) -> String {
        match self.resource_version {
            0 => String::new(),
            number => number.to_string(),
        }
    }
}

/// What a bookmark says besides its resource version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bookmark {
    /// Nothing more.
    Progress,
    /// All that existed has been sent.
    InitialEventsEnd,
}

/// What a watch event says of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
    /// Only the resource version of the object counts.
    Bookmark {
        /// `k8s.io/initial-events-end`: all that existed has been sent.
        initial_events_end: bool,
    },
    /// The object is a `Status`. The watch ends after it.
    Error {
        /// `Status.code`, as 410 for a resource version that is too old.
        code: u16,
    },
}

impl EventKind {
    /// The kind that the `type` of an event names. Fields that the name does not give are zero.
    fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "ADDED" => Self::Added,
            "MODIFIED" => Self::Modified,
            "DELETED" => Self::Deleted,
            "BOOKMARK" => Self::Bookmark {
                initial_events_end: false,
            },
            "ERROR" => Self::Error { code: 0 },
            _ => return None,
        })
    }

    fn label(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark { .. } => "BOOKMARK",
            Self::Error { .. } => "ERROR",
        }
    }
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) type_meta: TypeMeta,
    pub(crate) object: Object,
}

impl Event {
    /// An event about an object. Only the object of a BOOKMARK may be without a name.
    fn checked(kind: EventKind, type_meta: TypeMeta, object: Object) -> Result<Self, SplitError> {
        let is_bookmark = matches!(kind, EventKind::Bookmark { .. });
        if object.metadata.name.is_empty() && !is_bookmark {
            return Err(SplitError::Unnamed);
        }
        Ok(Self {
            kind,
            type_meta,
            object,
        })
    }

    /// An event with a `Status`, whose metadata are not those of an object.
    fn error(code: u16, type_meta: TypeMeta, status: &[u8]) -> Self {
        Self {
            kind: EventKind::Error { code },
            type_meta,
            object: Object {
                metadata: Metadata::default(),
                bytes: Bytes::copy_from_slice(status),
            },
        }
    }
}
