//! Classifies a request by its method, path and headers: a read that is remembered, a write, or
//! what is only passed on.

#[cfg(test)]
mod reading_tests;

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};

use crate::cache::{Identity, Representation, Resource, Scope, Selection, Verb};
use crate::relay::is_encoded_as;
use crate::request::accept;
use crate::request::discovery::DocumentRead;
use crate::request::info::{self, RequestInfo, ResourceRequest};
use crate::request::options::{
    Collection, IncludedObject, ListOptions, client_timeout, flag, is_understood,
};
use crate::upstream::pool::RequestKind;
use crate::upstream::upgrade::is_upgrade;
use crate::upstream::{Body, empty};
use crate::wire::{Encoding, Shape};

/// How much of the time that a client waits is left for an answer from memory.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// For clients that do not say how long they wait: one object, and a list, which an API server may
/// have to read from etcd.
pub(crate) const OBJECT_PATIENCE: Duration = Duration::from_secs(10);
const LIST_PATIENCE: Duration = Duration::from_secs(30);

/// The longest name of an object or of a namespace.
const MAX_NAME: usize = 253;
/// The longest label and field selector together.
const MAX_SELECTORS: usize = 1 << 10;

/// What is done with a request.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Exec, attach, port-forward: relayed on a connection of its own.
    Upgrade,
    /// A read of objects. The answer is remembered.
    Read(Read),
    /// A read of a document, such as discovery. The answer is remembered.
    Document(DocumentRead),
    /// Passed on; while the link is down, answered by the rules for writes.
    Write(ResourceRequest),
    /// Passed on only.
    Pass,
}

/// A read that the hub understands.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) verb: Verb,
    pub(crate) scope: Scope,
    pub(crate) options: ListOptions,
    /// The client reads plain objects in JSON too, if there is nothing better.
    pub(crate) takes_plain_json: bool,
}

impl Read {
    pub(crate) fn encoding(&self) -> Encoding {
        self.scope.representation.encoding
    }

    pub(crate) fn shape(&self) -> Shape {
        self.scope.representation.shape
    }

    /// How long the API server may take for the head of its answer before memory answers: its client
    /// must still have time to get that.
    pub(crate) fn patience(&self) -> Duration {
        match self.time_of_client() {
            Some(given) => before_end_of(given),
            None if self.scope.selection.name.is_some() => OBJECT_PATIENCE,
            None => LIST_PATIENCE,
        }
    }

    /// The shorter of the two times that a client may name.
    fn time_of_client(&self) -> Option<Duration> {
        let timeout = self.options.timeout;
        let of_list = match self.options.timeout_seconds {
            Some(seconds) if self.verb == Verb::List && seconds > 0 => Duration::from_secs(seconds),
            Some(_) | None => return timeout,
        };
        match timeout {
            Some(timeout) => Some(timeout.min(of_list)),
            None => Some(of_list),
        }
    }

    /// The same read of plain objects in JSON, for a client that takes these too: it asked for a
    /// table, or for protobuf, which the API server has not of all resources.
    pub(crate) fn plain(&self) -> Option<Self> {
        let in_protobuf = (self.encoding(), self.shape()) == (Encoding::Protobuf, Shape::Object);
        if !self.takes_plain_json || !(self.shape().is_table() || in_protobuf) {
            return None;
        }
        let mut plain = self.clone();
        plain.scope.representation.shape = Shape::Object;
        plain.scope.representation.encoding = Encoding::Json;
        Some(plain)
    }

    /// Whether an answer with this status is none of the API server: a captive portal says 200 too, with
    /// a page of its own.
    pub(crate) fn is_of_another(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let is_read = is_encoded_as(headers, self.encoding())
            || (self.plain()).is_some_and(|plain| is_encoded_as(headers, plain.encoding()));
        status == StatusCode::OK && !is_read
    }

    /// The read as the API server has chosen to answer it. `None`: the hub does not read that.
    pub(crate) fn answered_with(self, headers: &HeaderMap) -> Option<Self> {
        if is_encoded_as(headers, self.encoding()) {
            return Some(self);
        }
        let plain = self.plain()?;
        if !is_encoded_as(headers, plain.encoding()) {
            return None;
        }
        Some(plain)
    }
}

/// How long the API server may take for other requests than reads of objects. `None`: the client
/// does not say how long it waits.
pub(crate) fn patience_of(uri: &Uri) -> Option<Duration> {
    let query = uri.query().unwrap_or_default();
    client_timeout(query).map(before_end_of)
}

/// When memory answers a client that waits for so long.
fn before_end_of(given: Duration) -> Duration {
    given.saturating_sub(ANSWER_TIME).max(given / 2)
}

impl Plan {
    /// Whether the request may take as long as its client likes.
    pub(crate) fn kind(&self, method: &Method, uri: &Uri) -> RequestKind {
        let is_long = match self {
            Self::Upgrade => true,
            Self::Read(read) => read.verb == Verb::Watch,
            Self::Document(_) | Self::Write(_) => false,
            Self::Pass => is_long_running(method, uri),
        };
        if is_long {
            RequestKind::Long
        } else {
            RequestKind::Short
        }
    }

    pub(crate) fn new(method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        if is_upgrade(headers) {
            return Self::Upgrade;
        }
        // The answer is for another identity than the caller's.
        if headers
            .keys()
            .any(|name| name.as_str().starts_with("impersonate-"))
        {
            return Self::Pass;
        }
        // The hub has no answers without a body, and such an answer says nothing about a set.
        if method == Method::HEAD {
            return Self::Pass;
        }
        let query = uri.query().unwrap_or_default();
        match RequestInfo::new(method.as_str(), uri.path(), query) {
            Ok(RequestInfo::Resource(resource)) => Self::of_resource(*resource, query, headers),
            Ok(RequestInfo::Path(_)) if method == Method::GET => {
                match DocumentRead::new(uri.path(), query, accept_text(headers)) {
                    Some(read) => Self::Document(read),
                    None => Self::Pass,
                }
            }
            Ok(RequestInfo::Path(_)) | Err(_) => Self::Pass,
        }
    }

    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "every verb that does not read may write"
    )]
    fn of_resource(resource: ResourceRequest, query: &str, headers: &HeaderMap) -> Self {
        let verb = match resource.verb {
            info::Verb::Get => Verb::Get,
            info::Verb::List => Verb::List,
            info::Verb::Watch => Verb::Watch,
            _ => return Self::Write(resource),
        };
        // The API server reads the first one only.
        if headers.get_all(header::ACCEPT).iter().count() > 1 {
            return Self::Pass;
        }
        let accepted = accept_text(headers);
        let representation = accept::Representation::from_accept(&accepted);
        let Some(representation) = representation else {
            return Self::Pass;
        };
        let Ok(options) = &resource.options else {
            return Self::Pass;
        };
        let shape = match (representation.shape, options.included_object) {
            (Shape::Table, IncludedObject::Object) => Shape::TableOfObjects,
            // Its rows would not say which objects they are about.
            (Shape::Table, IncludedObject::Nothing) => return Self::Pass,
            (shape, _) => shape,
        };
        if !resource.subresource.is_empty() || !is_understood(query) {
            return Self::Pass;
        }
        let accepted_options = match verb {
            Verb::Get => true,
            Verb::List => options.are_accepted(Collection::List),
            // The old paths below watch/ have rules of their own.
            Verb::Watch => flag(query, "watch") && options.are_accepted(Collection::Watch),
        };
        if !accepted_options || options.field_selector.names_several() {
            return Self::Pass;
        }
        let options = options.clone();
        let selection = selection(&resource, &options);
        if !is_of_usual_size(&selection) {
            return Self::Pass;
        }
        Self::Read(Read {
            verb,
            scope: Scope {
                selection,
                representation: Representation {
                    resource: Resource {
                        group: resource.gvr.group,
                        version: resource.gvr.version,
                        resource: resource.gvr.resource,
                    },
                    encoding: representation.encoding,
                    shape,
                },
            },
            options,
            takes_plain_json: takes_plain_json(&accepted),
        })
    }
}

/// Longer names do not exist, and longer selectors hardly ever: what is remembered of each request
/// must be small.
fn is_of_usual_size(selection: &Selection) -> bool {
    let name = selection.name.as_deref().unwrap_or_default();
    let namespace = selection.namespace.as_deref().unwrap_or_default();
    let selectors = selection.label_selector.len() + selection.field_selector.len();
    name.len() <= MAX_NAME && namespace.len() <= MAX_NAME && selectors <= MAX_SELECTORS
}

fn selection(request: &ResourceRequest, options: &ListOptions) -> Selection {
    // A namespace is in no namespace, though its path looks as if it were in itself.
    let is_namespace = request.gvr.group.is_empty() && request.gvr.resource == "namespaces";
    let namespace = match &*request.namespace {
        "" => None,
        _ if is_namespace => None,
        namespace => Some(namespace.to_owned()),
    };
    let mut field_selector = options.field_selector.to_string();
    let mut name = None;
    if !request.name.is_empty() {
        name = Some(request.name.clone());
        if field_selector == format!("metadata.name={}", request.name) {
            field_selector.clear();
        }
    }
    Selection {
        namespace,
        name,
        label_selector: options.label_selector.to_string(),
        field_selector,
    }
}

/// All `Accept` headers as one.
fn accept_text(headers: &HeaderMap) -> String {
    let mut texts = Vec::new();
    for value in headers.get_all(header::ACCEPT) {
        if let Ok(text) = value.to_str() {
            texts.push(text);
        }
    }
    texts.join(",")
}

fn takes_plain_json(accepted: &str) -> bool {
    accepted
        .split(',')
        .any(|clause| matches!(clause.trim(), "application/json" | "*/*"))
}

/// Makes the API server answer in a way that the hub can read: without CBOR, and not compressed, unless
/// the hub itself asks for that.
pub(crate) fn make_readable(headers: &mut HeaderMap) {
    headers.remove(header::ACCEPT_ENCODING);
    let accepted = accept_text(headers);
    if !accepted.contains("cbor") {
        return;
    }
    let mut kept: Vec<_> = accepted.split(',').collect();
    kept.retain(|clause| !clause.contains("cbor"));
    let kept = if kept.is_empty() {
        "application/json".to_owned()
    } else {
        kept.join(",")
    };
    if let Ok(value) = HeaderValue::from_str(&kept) {
        headers.insert(header::ACCEPT, value);
    }
}

/// Whether the API server gives a request that is only passed on more than its usual time
/// (kubernetes/apiserver, `BasicLongRunningRequestCheck`).
fn is_long_running(method: &Method, uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    match RequestInfo::new(method.as_str(), uri.path(), query) {
        Ok(RequestInfo::Resource(asked)) => {
            matches!(asked.verb, info::Verb::Watch | info::Verb::Proxy)
                || matches!(
                    &*asked.subresource,
                    "attach" | "exec" | "log" | "portforward" | "proxy"
                )
        }
        Ok(RequestInfo::Path(_)) | Err(_) => false,
    }
}

/// Whether the memory keeps what this identity reads: all that the node reads, and of others all
/// except lists of secrets.
pub(crate) fn may_be_kept(reader: &Identity, read: &Read) -> bool {
    let secrets = read.scope.representation.resource.resource == "secrets";
    *reader == Identity::Node || !secrets || read.scope.selection.name.is_some()
}

/// A read as it can be sent again.
#[derive(Clone)]
pub(crate) struct RepeatableRead {
    pub(crate) uri: Uri,
    headers: HeaderMap,
}

impl RepeatableRead {
    pub(crate) fn of(request: &Request<Body>) -> Self {
        Self {
            uri: request.uri().clone(),
            headers: request.headers().clone(),
        }
    }

    /// The same, of plain objects in JSON.
    pub(crate) fn accepting_plain_json(&self) -> Self {
        let mut plain = self.clone();
        let json = HeaderValue::from_static(Encoding::Json.content_type());
        plain.headers.insert(header::ACCEPT, json);
        plain
    }

    /// The read, of another address.
    pub(crate) fn request(&self, uri: Uri) -> Request<Body> {
        let mut request = Request::new(empty());
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(uri: &'static str) -> Read {
        let plan = Plan::new(&Method::GET, &Uri::from_static(uri), &HeaderMap::new());
        let Plan::Read(read) = plan else {
            panic!("{uri}: {plan:?}");
        };
        read
    }

    #[test]
    fn a_namespace_is_not_in_itself() {
        let selection = read("/api/v1/namespaces/shop").scope.selection;
        assert_eq!(
            (selection.namespace, selection.name.as_deref()),
            (None, Some("shop"))
        );
    }

    #[test]
    fn memory_answers_before_the_time_of_a_client_is_over() {
        let patience = |query: &str| {
            let uri = format!("/api/v1/nodes{query}").parse().unwrap();
            let Plan::Read(read) = Plan::new(&Method::GET, &uri, &HeaderMap::new()) else {
                panic!("{query} is a read");
            };
            read.patience().as_millis()
        };
        assert_eq!(patience("/n?timeout=10s"), 8000);
        assert_eq!(patience("/n?timeout=1m2s"), 60_000);
        assert_eq!(patience("/n?timeout=1500ms"), 750);
        assert_eq!(patience("/n"), 10_000);
        assert_eq!(patience("?timeoutSeconds=5"), 3000);
        assert_eq!(patience("?timeoutSeconds=60&timeout=6s"), 4000);
        assert_eq!(patience("?timeoutSeconds=0"), 30_000);
        assert_eq!(patience("?timeout=nonsense"), 30_000);
    }

    #[test]
    fn a_list_by_name_is_the_scope_of_the_object() {
        let by_get = read("/api/v1/namespaces/shop/secrets/key");
        let by_list = read("/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dkey");
        assert_eq!(by_list.verb, Verb::List);
        assert_eq!(by_get.scope, by_list.scope);
    }

    fn table(query: &str) -> Plan {
        let mut headers = HeaderMap::new();
        let value = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        headers.insert(header::ACCEPT, HeaderValue::from_static(value));
        let uri = format!("/api/v1/pods{query}").parse().unwrap();
        Plan::new(&Method::GET, &uri, &headers)
    }

    #[test]
    fn tables_with_and_without_objects_are_not_one_set() {
        let shape = |query| match table(query) {
            Plan::Read(read) => Some((read.shape(), read.plain().map(|read| read.shape()))),
            Plan::Upgrade | Plan::Document(_) | Plan::Write(_) | Plan::Pass => None,
        };
        let plain = Some(Shape::Object);
        assert_eq!(shape(""), Some((Shape::Table, plain)));
        assert_eq!(
            shape("?includeObject=Metadata"),
            Some((Shape::Table, plain))
        );
        assert_eq!(
            shape("?includeObject=Object"),
            Some((Shape::TableOfObjects, plain))
        );
        assert_eq!(shape("?includeObject=None"), None);
    }

    #[test]
    fn what_an_impersonator_reads_is_not_remembered() {
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", HeaderValue::from_static("somebody"));
        let uri = Uri::from_static("/api/v1/pods");
        assert!(matches!(
            Plan::new(&Method::GET, &uri, &headers),
            Plan::Pass
        ));
    }

    #[test]
    fn what_is_not_surely_a_whole_answer_to_a_known_question_is_passed_on_only() {
        let long = format!("/api/v1/pods/{}", "x".repeat(300));
        for (method, uri) in [
            (Method::HEAD, "/api/v1/pods/a"),
            (Method::GET, "/api/v1/services?shardSelector=0%2F2"),
            (Method::GET, "/api/v1/pods?fieldSelector=a%3D%FF"),
            (Method::GET, &long),
        ] {
            let plan = Plan::new(&method, &uri.parse().unwrap(), &HeaderMap::new());
            assert!(matches!(plan, Plan::Pass), "{method} {uri}: {plan:?}");
        }
    }

    #[test]
    fn what_the_api_server_takes_for_long_is_long_however_it_is_written() {
        let kind = |uri: &str| {
            let uri: Uri = uri.parse().unwrap();
            let plan = Plan::new(&Method::GET, &uri, &HeaderMap::new());
            plan.kind(&Method::GET, &uri)
        };
        for uri in [
            "/api/v1/pods?w%61tch=true",
            "/api/v1/pods?w%61tch=true&shardSelector=a",
            "/api/v1/pods?watch=%FF",
            "/api/v1/watch/pods",
            "/api/v1/namespaces/a/pods/b/%6Cog?follow=true",
            "/api/v1/namespaces/a/services/b/proxy/c",
        ] {
            assert_eq!(kind(uri), RequestKind::Long, "{uri}");
        }
        for uri in [
            "/api/v1/pods?labelSelector=watch&shardSelector=a",
            "/api/v1/pods?watch=false&shardSelector=a",
            "/api/v1/namespaces/a/configmaps/log?x=y",
            "/metrics?watch",
        ] {
            assert_eq!(kind(uri), RequestKind::Short, "{uri}");
        }
    }

    #[test]
    fn cbor_is_not_asked_for() {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_static("application/cbor, application/json");
        headers.insert(header::ACCEPT, value);
        make_readable(&mut headers);
        assert_eq!(
            headers[header::ACCEPT].to_str().unwrap().trim(),
            "application/json"
        );
    }
}
