//! Writes while the API server cannot be reached. Acknowledged is only what kubelet sends again by
//! itself: its lease, and the status of its node and pods, which it compares with what it reads
//! every 10 s. A request for a token gets the last real answer to the same request; a token is
//! never made here. All else is refused: an acknowledged create would be believed.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::{HeaderMap, Request, Response, StatusCode, header};
use sha2::{Digest, Sha256};

use super::{local, refusal};
use crate::cache::{Identity, Representation, Resource, Scope, Selection, Verb};
use crate::request::accept;
use crate::request::info::{self, ResourceRequest};
use crate::request::options::ListOptions;
use crate::server::identity::Proof;
use crate::server::{Hub, Read, is_encoded_as, relayed};
use crate::upstream::{Body, collect, full, remove_hop_by_hop};
use crate::wire::Shape;

/// Larger than any object: the API server's own limit is 3 MiB.
const MAX_BODY: usize = 4 << 20;

/// What a write is while the link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Kubelet renews its lease every 10 s.
    Lease,
    /// Status of the node or of a pod, or a patch of the node.
    Status,
    /// A token for a pod.
    Token,
    Other,
}

impl Kind {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "all other verbs are writes that nobody repeats"
    )]
    fn of(proof: &Proof, request: &ResourceRequest) -> Self {
        if *proof != Proof::Node {
            return Self::Other;
        }
        let resource = (
            &*request.gvr.group,
            &*request.gvr.resource,
            &*request.subresource,
        );
        match (request.verb, resource) {
            (info::Verb::Update, ("coordination.k8s.io", "leases", ""))
                if request.namespace == "kube-node-lease" =>
            {
                Self::Lease
            }
            (info::Verb::Update | info::Verb::Patch, ("", "nodes" | "pods", "status"))
            | (info::Verb::Patch, ("", "nodes", "")) => Self::Status,
            (info::Verb::Create, ("", "serviceaccounts", "token")) => Self::Token,
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
    let kind = Kind::of(proof, &resource);
    if kind == Kind::Other {
        return hub.pass(proof, request).await;
    }
    let (head, body) = request.into_parts();
    let Some(body) = collect(body, MAX_BODY).await else {
        return refusal::unavailable("the request did not arrive whole");
    };
    let key = token_key(&head.uri, &head.headers, &body);
    let headers = head.headers.clone();
    let mut reason = hub.upstream.link.status().reason;
    if hub.upstream.link.is_up() {
        let request = Request::from_parts(head, full(body.clone()));
        match hub.upstream.send(proof.credential(), request).await {
            Ok(answer) if kind == Kind::Token && answer.status().is_success() => {
                return keep_token(hub, key, answer).await;
            }
            Ok(answer) => return relayed(answer),
            Err(error) => reason = culvert_daemon::chain(&error),
        }
    }
    let known = match kind {
        Kind::Lease => echo(&headers, body),
        Kind::Status => present_object(hub, &resource, &headers),
        Kind::Token => replay_token(hub, &key),
        Kind::Other => None,
    };
    known.unwrap_or_else(|| refusal::unavailable(&reason))
}

/// The object as it was sent, for a client that reads what it writes.
fn echo(headers: &HeaderMap, body: Bytes) -> Option<Response<Body>> {
    let accepted = accepted(headers)?;
    is_encoded_as(headers, accepted.encoding)
        .then(|| local::ok(accepted.encoding, body, std::time::Duration::ZERO))
}

/// The object as it is in memory. Kubelet sees that it is not what it sent, and sends it again
/// until the API server has it.
fn present_object(
    hub: &Hub,
    request: &ResourceRequest,
    headers: &HeaderMap,
) -> Option<Response<Body>> {
    let accepted = accepted(headers)?;
    let namespace = (!request.namespace.is_empty()).then(|| request.namespace.clone());
    let read = Read {
        verb: Verb::Get,
        scope: Scope {
            representation: Representation {
                resource: Resource {
                    group: request.gvr.group.clone(),
                    version: request.gvr.version.clone(),
                    resource: request.gvr.resource.clone(),
                },
                encoding: accepted.encoding,
                shape: Shape::Object,
            },
            selection: Selection {
                namespace,
                name: Some(request.name.clone()),
                ..Selection::default()
            },
        },
        options: ListOptions::default(),
        takes_plain_json: false,
    };
    let answer = local::answer(&hub.memory, &Identity::Node, &read, "");
    (answer.status() == StatusCode::OK).then_some(answer)
}

fn accepted(headers: &HeaderMap) -> Option<accept::Representation> {
    let text = headers.get(header::ACCEPT).map(|value| value.to_str());
    accept::Representation::from_accept(text.and_then(Result::ok).unwrap_or_default())
}

/// The same service account, pod, audiences and lifetime make the same request: kubelet writes it
/// the same way each time.
fn token_key(uri: &http::Uri, headers: &HeaderMap, body: &[u8]) -> String {
    let mut digest = Sha256::new();
    digest.update(uri.path());
    digest.update([0]);
    let accept = headers.get(header::ACCEPT);
    digest.update(accept.map(|value| value.as_bytes()).unwrap_or_default());
    digest.update([0]);
    digest.update(body);
    format!("{} {}", uri.path(), HEXLOWER.encode(&digest.finalize()))
}

async fn keep_token(
    hub: &Hub,
    key: String,
    answer: Response<hyper::body::Incoming>,
) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let Some(body) = collect(body, MAX_BODY).await else {
        return refusal::unavailable("the answer did not arrive whole");
    };
    let compressed = head.headers.contains_key(header::CONTENT_ENCODING);
    if !compressed {
        let content_type = head.headers.get(header::CONTENT_TYPE);
        let mut kept = content_type.map_or(Vec::new(), |value| value.as_bytes().to_vec());
        kept.push(b'\n');
        kept.extend_from_slice(&body);
        hub.memory.lock().keep_token_answer(key, kept.into());
    }
    remove_hop_by_hop(&mut head.headers);
    Response::from_parts(head, full(body))
}

/// The last real answer, even if the token in it has expired: the pod may start, and the API server
/// decides later.
fn replay_token(hub: &Hub, key: &str) -> Option<Response<Body>> {
    let kept = hub.memory.lock().token_answer(key)?;
    let line = kept.iter().position(|byte| *byte == b'\n')?;
    let content_type = http::HeaderValue::from_bytes(&kept[..line]).ok()?;
    let mut answer = Response::new(full(kept.slice(line + 1..)));
    *answer.status_mut() = StatusCode::CREATED;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    let local = http::HeaderValue::from_static("local");
    answer.headers_mut().insert(local::HEADER, local);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::info::RequestInfo;

    fn kind(proof: &Proof, method: &str, path: &str) -> Kind {
        let Ok(RequestInfo::Resource(request)) = RequestInfo::new(method, path, "") else {
            panic!("{path} is a resource");
        };
        Kind::of(proof, &request)
    }

    #[test]
    fn only_what_kubelet_sends_again_is_acknowledged() {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-1";
        for (method, path, expected) in [
            ("PUT", lease, Kind::Lease),
            ("POST", lease, Kind::Other),
            ("PATCH", "/api/v1/nodes/edge-1/status", Kind::Status),
            ("PATCH", "/api/v1/nodes/edge-1", Kind::Status),
            ("PATCH", "/api/v1/namespaces/a/pods/b/status", Kind::Status),
            ("DELETE", "/api/v1/namespaces/a/pods/b", Kind::Other),
            ("POST", "/api/v1/namespaces/a/events", Kind::Other),
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
        let token = Proof::Token(crate::server::identity::Token {
            digest: String::new(),
            owner: Some(Identity::User("x".to_owned())),
            expires: None,
        });
        assert_eq!(
            kind(&token, "PUT", lease),
            Kind::Other,
            "pods are not kubelet"
        );
    }
}
