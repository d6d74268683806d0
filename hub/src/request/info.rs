//! The meaning of method, path and query, as the API server's `RequestInfo` finds it
//! (kubernetes/apiserver, `pkg/endpoints/request/requestinfo.go`).

use super::options::{InvalidOptions, ListOptions};

/// What a request does, in the words of RBAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// `/api/v1/proxy/..`, which no API server has served since 1.10.
    Proxy,
    /// A method that is not known: OPTIONS, CONNECT.
    Other,
}

/// A resource by its group, version and plural name. The core group is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupVersionResource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestInfo {
    /// Objects of a resource.
    Resource(ResourceRequest),
    /// All else: `/version`, `/healthz`, `/apis`, `/api/v1`.
    Path(PathRequest),
}

/// A request for objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourceRequest {
    pub(crate) verb: Verb,
    pub(crate) gvr: GroupVersionResource,
    /// Empty for all namespaces and for resources without one. For `/api/v1/namespaces/x` it is
    /// `x`, as is the name.
    pub(crate) namespace: String,
    /// Empty for a whole collection. The field selector `metadata.name=x` of a list or watch
    /// makes it `x`; the verb is still list or watch.
    pub(crate) name: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
    /// The query of a list or watch; an error: the API server will answer 400. The options of
    /// another verb are those of an empty query.
    pub(crate) options: Result<ListOptions, InvalidOptions>,
}

/// A request for something that is not a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathRequest {
    /// The method in lower case.
    pub(crate) verb: String,
    /// Decoded, without the query.
    pub(crate) path: String,
}

/// A path that cannot be understood; the API server answers 400 or 404.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPath {
    #[error("the path has a percent sign without two hexadecimal digits, or is not UTF-8")]
    Encoding,
    #[error("the path names no resource after watch/ or proxy/")]
    NoResource,
}

impl RequestInfo {
    /// `path` and `query` as they are on the wire; the query without its question mark.
    pub(crate) fn new(method: &str, path: &str, query: &str) -> Result<Self, InvalidPath> {
        todo!()
    }
}
