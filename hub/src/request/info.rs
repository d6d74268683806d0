//! The meaning of method, path and query, as the API server's `RequestInfo` finds it
//! (kubernetes/apiserver, `pkg/endpoints/request/requestinfo.go`).

use super::options::{InvalidOptions, ListOptions, flag};
use super::percent::decode_path;

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
    Resource(Box<ResourceRequest>),
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
    /// The query of a get, list or watch; an error: the API server will answer 400 to a list or
    /// watch. The options of another verb are those of an empty query.
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
        let path = decode_path(path).ok_or(InvalidPath::Encoding)?;
        match Prefix::split(path.trim_matches('/')) {
            Some((prefix, rest)) => {
                let request = resource(method, &prefix, rest, query)?;
                Ok(Self::Resource(Box::new(request)))
            }
            None => Ok(Self::Path(PathRequest {
                verb: method.to_lowercase(),
                path,
            })),
        }
    }
}

/// `api/v1`, or `apis/apps/v1`.
struct Prefix<'a> {
    group: &'a str,
    version: &'a str,
}

impl<'a> Prefix<'a> {
    /// The prefix of a resource's path, and the rest, which may be an empty word but is there.
    fn split(path: &'a str) -> Option<(Self, &'a str)> {
        let (root, rest) = path.split_once('/')?;
        let (group, rest) = match root {
            "api" => ("", rest),
            "apis" => rest.split_once('/')?,
            _ => return None,
        };
        let (version, rest) = rest.split_once('/')?;
        Some((Self { group, version }, rest))
    }
}

/// What the segments of a path name; empty where a segment is missing.
struct PathWords<'a> {
    namespace: &'a str,
    resource: &'a str,
    name: &'a str,
    subresource: &'a str,
}

impl<'a> PathWords<'a> {
    fn of(words: &[&'a str]) -> Result<Self, InvalidPath> {
        let mut namespace = "";
        let mut rest = words;
        match words {
            [] => return Err(InvalidPath::NoResource),
            // The status of the namespace itself.
            ["namespaces", name] | ["namespaces", name, "status" | "finalize", ..] => {
                namespace = name;
            }
            ["namespaces", name, below @ ..] => {
                namespace = name;
                rest = below;
            }
            _ => {}
        }
        let mut rest = rest.iter().copied();
        Ok(Self {
            namespace,
            resource: rest.next().unwrap_or_default(),
            name: rest.next().unwrap_or_default(),
            subresource: rest.next().unwrap_or_default(),
        })
    }
}

fn resource(
    method: &str,
    prefix: &Prefix<'_>,
    path: &str,
    query: &str,
) -> Result<ResourceRequest, InvalidPath> {
    let mut words: Vec<_> = path.split('/').collect();
    let mut verb = match words[0] {
        "watch" => Verb::Watch,
        "proxy" => Verb::Proxy,
        _ => Verb::of_method(method),
    };
    if matches!(words[0], "watch" | "proxy") {
        words.remove(0);
    }
    let words = PathWords::of(&words)?;
    let mut name = words.name.to_owned();
    let asked = verb;
    if name.is_empty() {
        verb = verb.of_collection(query);
    }
    let options = match verb {
        Verb::Get | Verb::List | Verb::Watch => ListOptions::from_query(query),
        Verb::Create
        | Verb::Update
        | Verb::Patch
        | Verb::Delete
        | Verb::DeleteCollection
        | Verb::Proxy
        | Verb::Other => Ok(ListOptions::default()),
    };
    // As in apiserver, not for the old paths below watch/.
    if let (Verb::Get, true, Ok(options)) = (asked, name.is_empty(), &options)
        && let Some(selected) = options.field_selector.required_name()
        && is_path_word(selected)
    {
        name = selected.to_owned();
    }
    // Below a proxied object are its own paths.
    let subresource = if verb == Verb::Proxy {
        ""
    } else {
        words.subresource
    };
    Ok(ResourceRequest {
        verb,
        gvr: GroupVersionResource {
            group: prefix.group.to_owned(),
            version: prefix.version.to_owned(),
            resource: words.resource.to_owned(),
        },
        namespace: words.namespace.to_owned(),
        name,
        subresource: subresource.to_owned(),
        options,
    })
}

impl Verb {
    fn of_method(method: &str) -> Self {
        match method {
            "POST" => Self::Create,
            "GET" | "HEAD" => Self::Get,
            "PUT" => Self::Update,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            _ => Self::Other,
        }
    }

    /// What this verb is called where no object is named.
    fn of_collection(self, query: &str) -> Self {
        match self {
            Self::Get if flag(query, "watch") => Self::Watch,
            Self::Get => Self::List,
            Self::Delete => Self::DeleteCollection,
            Self::List
            | Self::Watch
            | Self::Create
            | Self::Update
            | Self::Patch
            | Self::DeleteCollection
            | Self::Proxy
            | Self::Other => self,
        }
    }
}

/// Whether a name can be a word of a path.
fn is_path_word(name: &str) -> bool {
    !matches!(name, "." | "..") && !name.contains(['/', '%'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn resource(method: &str, url: &str) -> ResourceRequest {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        match RequestInfo::new(method, path, query).unwrap() {
            RequestInfo::Resource(request) => *request,
            RequestInfo::Path(path) => panic!("{path:?} is not a resource"),
        }
    }

    fn path(url: &str) -> PathRequest {
        match RequestInfo::new("GET", url, "").unwrap() {
            RequestInfo::Path(path) => path,
            RequestInfo::Resource(request) => panic!("{request:?} is a resource"),
        }
    }

    /// The cases of apiserver's own `TestGetAPIRequestInfo`: method, URL, verb, group, version,
    /// namespace, resource, subresource, name; `-` is an empty word.
    const TABLE: &str = "
        GET /api/v1/namespaces list - v1 - namespaces - -
        GET /api/v1/namespaces/other get - v1 other namespaces - other
        GET /api/v1/namespaces/other/pods list - v1 other pods - -
        GET /api/v1/namespaces/other/pods/foo get - v1 other pods - foo
        HEAD /api/v1/namespaces/other/pods/foo get - v1 other pods - foo
        GET /api/v1/pods list - v1 - pods - -
        HEAD /api/v1/pods list - v1 - pods - -
        GET /api/v1/proxy/namespaces/other/pods/foo proxy - v1 other pods - foo
        GET /api/v1/proxy/namespaces/other/pods/foo/sub/path proxy - v1 other pods - foo
        GET /api/v1/watch/pods watch - v1 - pods - -
        GET /api/v1/pods?watch=true watch - v1 - pods - -
        GET /api/v1/pods?watch=false list - v1 - pods - -
        GET /api/v1/watch/namespaces/other/pods watch - v1 other pods - -
        GET /api/v1/namespaces/other/pods?watch=1 watch - v1 other pods - -
        GET /api/v1/namespaces/other/pods?watch=0 list - v1 other pods - -
        GET /api/v1/namespaces/other/pods/foo/status get - v1 other pods status foo
        GET /api/v1/namespaces/other/pods/foo/proxy/sub get - v1 other pods proxy foo
        PUT /api/v1/namespaces/other/finalize update - v1 other namespaces finalize other
        PUT /api/v1/namespaces/other/status update - v1 other namespaces status other
        PATCH /api/v1/namespaces/other/pods/foo patch - v1 other pods - foo
        DELETE /api/v1/namespaces/other/pods/foo delete - v1 other pods - foo
        POST /api/v1/namespaces/other/pods create - v1 other pods - -
        DELETE /api/v1/nodes deletecollection - v1 - nodes - -
        DELETE /api/v1/namespaces deletecollection - v1 - namespaces - -
        DELETE /apis/extensions/v1/namespaces/other/pods deletecollection extensions v1 other pods - -
        POST /apis/extensions/v1beta3/namespaces/other/pods create extensions v1beta3 other pods - -
        GET /apis/batch/v1/job/foo/scale get batch v1 - job scale foo
    ";

    #[test]
    fn resources_are_found_as_apiserver_finds_them() {
        for row in TABLE.trim().lines() {
            let words: Vec<_> = row.split_whitespace().collect();
            let request = resource(words[0], words[1]);
            let verb = format!("{:?}", request.verb).to_lowercase();
            let found = [
                &verb,
                &request.gvr.group,
                &request.gvr.version,
                &request.namespace,
                &request.gvr.resource,
                &request.subresource,
                &request.name,
            ];
            let found = found.map(|word| if word.is_empty() { "-" } else { word });
            assert_eq!(found, words[2..], "{row}");
        }
    }

    #[test]
    fn paths_that_are_no_resource_stay_paths() {
        for url in [
            "/",
            "",
            "/api",
            "/api/v1",
            "/api/v1/",
            "/apis",
            "/apis/apps",
            "/apis/apps/v1",
            "/apis/apps/v1/",
            "/apis/version/resource",
            "/badprefix/version/resource",
            "/version",
            "/healthz",
            "/openapi/v3/apis/apps/v1",
        ] {
            assert_eq!(path(url).path, url);
        }
    }

    #[test]
    fn a_name_in_a_field_selector_is_the_name_of_the_request() {
        for (url, verb, name) in [
            (
                "/apis/g/v1/r?fieldSelector=metadata.name%3Dname1",
                Verb::List,
                "name1",
            ),
            (
                "/apis/g/v1/r?watch=true&fieldSelector=metadata.name=name1",
                Verb::Watch,
                "name1",
            ),
            (
                "/apis/g/v1/r?fieldSelector=a=b,metadata.name=name1",
                Verb::List,
                "name1",
            ),
            (
                "/apis/g/v1/r?fieldSelector=metadata.name!=name1",
                Verb::List,
                "",
            ),
            (
                "/apis/g/v1/r?fieldSelector=metadata.name=..",
                Verb::List,
                "",
            ),
            ("/apis/g/v1/r?fieldSelector=foo=bar", Verb::List, ""),
        ] {
            let request = resource("GET", url);
            assert_eq!((request.verb, &*request.name), (verb, name), "{url}");
        }
    }

    #[test]
    fn a_bad_selector_leaves_the_verb_and_names_nothing() {
        for (query, verb) in [("", Verb::List), ("&watch=true", Verb::Watch)] {
            let url = format!("/apis/g/v1/r?fieldSelector=metadata.name=name1,foo{query}");
            let request = resource("GET", &url);
            assert_eq!((request.verb, &*request.name), (verb, ""), "{url}");
            assert!(request.options.is_err(), "{url}");
        }
    }

    #[test]
    fn a_path_is_decoded_before_it_is_split() {
        let request = resource("GET", "/api/v1/namespaces/kube%2Dsystem%2fpods/caf%C3%A9");
        assert_eq!(request.namespace, "kube-system");
        assert_eq!(request.name, "café");
        assert_eq!(
            RequestInfo::new("GET", "/api/v1/pods/%f", ""),
            Err(InvalidPath::Encoding)
        );
    }

    #[test]
    fn a_watch_of_nothing_is_refused() {
        assert_eq!(
            RequestInfo::new("GET", "/api/v1/watch", ""),
            Err(InvalidPath::NoResource)
        );
    }

    proptest! {
        #[test]
        fn no_request_panics(
            method in "[A-Z]{0,4}",
            path in any::<String>(),
            query in any::<String>(),
        ) {
            drop(RequestInfo::new(&method, &path, &query));
        }

        #[test]
        fn no_words_of_a_path_panic(
            path in "(/|api|apis|v1|watch|proxy|namespaces|status|%2[fF]|x){0,12}",
            query in "(watch|fieldSelector|limit|=|metadata.name|&|%3[dD]|,|1|;|[+]){0,12}",
        ) {
            drop(RequestInfo::new("GET", &path, &query));
        }
    }
}
