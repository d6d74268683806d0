//! Writes while the API server cannot be reached. The hub acknowledges only what kubelet sends
//! again by itself: its lease, and the status of its node and pods, which it compares every 10 s
//! with what it reads. A request for a token gets the last real answer to the same request; a token
//! is never made here. Events are queued. Everything else is refused: kubelet would believe an
//! acknowledged create.

use http::{Request, Response, StatusCode};
use tokio::time::timeout;

use super::write_body::{MAX_BODY, Write};
use super::{events, node_writes, tokens};
use crate::hub::Hub;
use crate::identity::Proof;
use crate::reads::patience_of;
use crate::refusal;
use crate::relay::{is_overloaded, relayed};
use crate::request::info::{self, ResourceRequest};
use crate::request::options::is_plain_write;
use crate::upstream::pool::{AnswerBody, RequestKind};
use crate::upstream::{Body, HEAD_TIMEOUT, collect, full};

/// How a write is answered while the link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It is laid over the remembered objects, for all readers.
    Node(NodeWrite),
    /// A token for a pod.
    Token,
    /// It is queued.
    NewEvent,
    EventPatch,
    Other,
}

/// A write of the node about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeWrite {
    Patch,
    Put,
    Create,
    Delete,
}

impl Kind {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "all other verbs are writes that are not repeated"
    )]
    fn of(proof: &Proof, node: Option<&str>, request: &ResourceRequest) -> Self {
        if *proof != Proof::Node {
            return Self::Other;
        }
        let resource = (
            &*request.gvr.group,
            &*request.gvr.resource,
            &*request.subresource,
        );
        let is_own = match node {
            Some(node) if !request.name.is_empty() => node == request.name,
            Some(_) | None => true,
        };
        match (request.verb, resource) {
            (info::Verb::Update, ("coordination.k8s.io", "leases", ""))
                if request.namespace == "kube-node-lease" && is_own =>
            {
                Self::Node(NodeWrite::Put)
            }
            (info::Verb::Update, ("", "nodes", "status") | ("storage.k8s.io", "csinodes", ""))
                if is_own =>
            {
                Self::Node(NodeWrite::Put)
            }
            (info::Verb::Patch, ("", "nodes", "" | "status")) if is_own => {
                Self::Node(NodeWrite::Patch)
            }
            (info::Verb::Create, ("", "nodes", "") | ("storage.k8s.io", "csinodes", "")) => {
                Self::Node(NodeWrite::Create)
            }
            (info::Verb::Update, ("", "pods", "status")) => Self::Node(NodeWrite::Put),
            (info::Verb::Patch, ("", "pods", "status")) => Self::Node(NodeWrite::Patch),
            (info::Verb::Create, ("", "pods", "")) => Self::Node(NodeWrite::Create),
            (info::Verb::Delete, ("", "pods", "")) => Self::Node(NodeWrite::Delete),
            (info::Verb::Create, ("", "serviceaccounts", "token")) => Self::Token,
            (info::Verb::Create, ("" | "events.k8s.io", "events", "")) => Self::NewEvent,
            (info::Verb::Patch, ("" | "events.k8s.io", "events", "")) => Self::EventPatch,
            _ => Self::Other,
        }
    }
}

/// Passes a write on, or answers it by the rules above.
pub(crate) async fn answer(
    hub: &Hub,
    proof: &Proof,
    resource: ResourceRequest,
    request: Request<Body>,
) -> Response<Body> {
    let node = hub.upstream.identity.node_name();
    let kind = Kind::of(proof, node.as_deref(), &resource);
    let query = request.uri().query().unwrap_or_default();
    if kind == Kind::Other || !is_plain_write(query) {
        return hub.pass(proof, RequestKind::Short, request).await;
    }
    let (head, body) = request.into_parts();
    let Some(body) = collect(body, MAX_BODY).await else {
        return refusal::unavailable("the request did not arrive whole");
    };
    let write = Write {
        resource: &resource,
        head: &head,
        body: &body,
    };
    let link = hub.upstream.link.status(proof.credential());
    let mut reason = link.reason.clone();
    if link.is_up() {
        let request = Request::from_parts(head.clone(), full(body.clone()));
        let sent = hub
            .upstream
            .send(proof.credential(), RequestKind::Short, request);
        // Without a time of its client's the API server has that of any request.
        let patience = patience_of(&head.uri).unwrap_or(HEAD_TIMEOUT);
        match timeout(patience, sent).await {
            Ok(Ok(answer)) => return answered(hub, kind, &write, answer).await,
            Ok(Err(error)) => reason = culvert_daemon::chain(&error),
            Err(_) => {
                hub.upstream.link.suspect();
                "the API server does not answer in time".clone_into(&mut reason);
            }
        }
    }
    let acknowledged = acknowledge(hub, kind, node.as_deref(), &write, reason);
    if let Kind::Node(_) = kind {
        hub.memory.save_local_writes().await;
        hub.memory.wake_watches();
    }
    match acknowledged {
        Ok(answer) => answer,
        Err(reason) => refusal::unavailable(&reason),
    }
}

/// Answers a write without the API server, or says why not.
fn acknowledge(
    hub: &Hub,
    kind: Kind,
    node: Option<&str>,
    write: &Write<'_>,
    reason: String,
) -> Result<Response<Body>, String> {
    match kind {
        Kind::Node(NodeWrite::Patch) => node_writes::patch(hub, node, write),
        Kind::Node(NodeWrite::Put) => node_writes::put(hub, node, write),
        Kind::Node(NodeWrite::Create) => node_writes::create(hub, write),
        Kind::Node(NodeWrite::Delete) => node_writes::delete(hub, write),
        Kind::Token => tokens::replay(hub, write).ok_or(reason),
        Kind::NewEvent => events::create(hub, write),
        Kind::EventPatch => events::patch(hub, write),
        Kind::Other => Err(reason),
    }
}

async fn answered(
    hub: &Hub,
    kind: Kind,
    write: &Write<'_>,
    answer: Response<AnswerBody>,
) -> Response<Body> {
    let status = answer.status();
    match kind {
        Kind::Token if status == StatusCode::CREATED => tokens::relay(hub, write, answer).await,
        Kind::Node(_) if !is_overloaded(status) => {
            node_writes::end_overlay(hub, write);
            relayed(answer)
        }
        Kind::Node(_) | Kind::Token | Kind::NewEvent | Kind::EventPatch | Kind::Other => {
            relayed(answer)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Identity;
    use crate::request::info::RequestInfo;

    fn kind(proof: &Proof, method: &str, path: &str) -> Kind {
        let Ok(RequestInfo::Resource(request)) = RequestInfo::new(method, path, "") else {
            panic!("{path} is a resource");
        };
        Kind::of(proof, Some("edge-1"), &request)
    }

    #[test]
    fn only_what_kubelet_sends_again_is_acknowledged() {
        use NodeWrite::{Create, Delete, Patch, Put};
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-1";
        for (method, path, expected) in [
            ("PUT", lease, Kind::Node(Put)),
            ("POST", lease, Kind::Other),
            ("PATCH", "/api/v1/nodes/edge-1/status", Kind::Node(Patch)),
            ("PATCH", "/api/v1/nodes/edge-1", Kind::Node(Patch)),
            ("PUT", "/api/v1/nodes/edge-1/status", Kind::Node(Put)),
            ("PATCH", "/api/v1/nodes/edge-2", Kind::Other),
            ("DELETE", "/api/v1/nodes/edge-1", Kind::Other),
            ("POST", "/api/v1/nodes", Kind::Node(Create)),
            (
                "PUT",
                "/apis/storage.k8s.io/v1/csinodes/edge-1",
                Kind::Node(Put),
            ),
            (
                "PATCH",
                "/api/v1/namespaces/a/pods/b/status",
                Kind::Node(Patch),
            ),
            ("PATCH", "/api/v1/namespaces/a/pods/b", Kind::Other),
            ("POST", "/api/v1/namespaces/a/pods", Kind::Node(Create)),
            ("DELETE", "/api/v1/namespaces/a/pods/b", Kind::Node(Delete)),
            ("POST", "/api/v1/namespaces/a/services", Kind::Other),
            ("POST", "/api/v1/namespaces/a/events", Kind::NewEvent),
            (
                "PATCH",
                "/apis/events.k8s.io/v1/namespaces/a/events/b",
                Kind::EventPatch,
            ),
            ("DELETE", "/api/v1/namespaces/a/events/b", Kind::Other),
            (
                "POST",
                "/api/v1/namespaces/a/serviceaccounts/b/token",
                Kind::Token,
            ),
        ] {
            assert_eq!(
                kind(&Proof::Node, method, path),
                expected,
                "{method} {path}"
            );
        }
        let token = Proof::Token(crate::identity::Token {
            digest: String::new(),
            owner: Some(Identity::User("x".to_owned())),
            expires: None,
        });
        // flannel writes the status of its node, once at its start.
        for (method, path) in [("PUT", lease), ("PATCH", "/api/v1/nodes/edge-1/status")] {
            assert_eq!(
                kind(&token, method, path),
                Kind::Other,
                "pods are not kubelet: {path}"
            );
        }
    }
}
