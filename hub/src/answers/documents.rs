//! Discovery, version and schema: passed on and remembered, and answered from memory without a
//! link.

use http::header::{CONTENT_TYPE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use tokio::time::timeout;

use super::local;
use crate::cache::Identity;
use crate::copy::{Copied, DocumentCopy};
use crate::hub::Hub;
use crate::identity::{Caller, Proof};
use crate::reads::{OBJECT_PATIENCE, make_readable, patience_of};
use crate::refusal;
use crate::relay::{is_overloaded, is_plain, relayed};
use crate::request::discovery::DocumentRead;
use crate::upstream::gunzip::accept_gzip;
use crate::upstream::pool::{AnswerBody, RequestKind, gunzipped};
use crate::upstream::{Body, full};

/// The API server's name for clients that show nothing.
const ANONYMOUS: &str = "system:anonymous";

/// Answers a GET of a document.
pub(crate) async fn answer(
    hub: &Hub,
    caller: &Caller,
    read: DocumentRead,
    mut request: Request<Body>,
) -> Response<Body> {
    let proof = &caller.proof;
    let link = hub.upstream.link.status(proof.credential());
    if !link.is_up() {
        return from_memory(hub, caller, &read, &link.reason);
    }
    make_readable(request.headers_mut());
    accept_gzip(request.headers_mut());
    ask_for_unknown(hub, &read, request.headers_mut());
    let patience = patience_of(request.uri()).unwrap_or(OBJECT_PATIENCE);
    let sent = hub
        .upstream
        .send(proof.credential(), RequestKind::Short, request);
    let mut sent = Box::pin(sent);
    let sent = match timeout(patience, &mut sent).await {
        Ok(sent) => sent,
        Err(_) => {
            hub.upstream.link.suspect();
            let reason = "the API server does not answer in time";
            let known = from_memory(hub, caller, &read, reason);
            if known.status() != StatusCode::SERVICE_UNAVAILABLE {
                return known;
            }
            sent.await
        }
    };
    match sent.map(gunzipped) {
        Ok(answer) if is_overloaded(answer.status()) => {
            let known = from_memory(hub, caller, &read, "the API server is overloaded");
            if known.status() == StatusCode::SERVICE_UNAVAILABLE {
                return relayed(answer);
            }
            known
        }
        Ok(answer) => relay(hub, proof, read, answer),
        Err(error) => from_memory(hub, caller, &read, &culvert_daemon::chain(&error)),
    }
}

/// The answer of memory. `reason` is why the API server gives none.
fn from_memory(hub: &Hub, caller: &Caller, read: &DocumentRead, reason: &str) -> Response<Body> {
    let reader = match caller.proof {
        Proof::Nothing => Some(anonymous()),
        Proof::Node | Proof::Token(_) => caller.identity.clone(),
    };
    if let Some(reader) = reader
        && let Some(known) = remembered(hub, &reader, read)
    {
        return known;
    }
    refusal::unavailable(reason)
}

fn anonymous() -> Identity {
    Identity::User(ANONYMOUS.to_owned())
}

/// The answer of memory, if there is one for this reader.
pub(crate) fn remembered(
    hub: &Hub,
    reader: &Identity,
    read: &DocumentRead,
) -> Option<Response<Body>> {
    let now = hub.memory.now();
    let known = hub.memory.lock().cache.documents.answer(reader, read, now);
    let (document, age) = known?;
    let content_type = HeaderValue::from_str(&document.content_type).ok()?;
    let mut answer = local::with_age(
        Response::new(full(document.body.bytes())),
        content_type,
        age,
    );
    *answer.status_mut() = document.status;
    if let Some(etag) = document.etag
        && let Ok(etag) = etag.parse()
    {
        answer.headers_mut().insert(ETAG, etag);
    }
    Some(answer)
}

/// A client may have a document that the hub does not have. Then the API server must send it again:
/// that it has not changed is believed of the document with this `ETag` alone, and not of a date.
fn ask_for_unknown(hub: &Hub, read: &DocumentRead, headers: &mut HeaderMap) {
    headers.remove(IF_MODIFIED_SINCE);
    let kept = hub.memory.lock();
    let asked = text(headers, IF_NONE_MATCH);
    if asked.is_none() || asked != kept.cache.documents.etag(read) {
        headers.remove(IF_NONE_MATCH);
    }
}

/// Passes the answer on, and a copy of it to the memory.
fn relay(
    hub: &Hub,
    proof: &Proof,
    read: DocumentRead,
    answer: Response<AnswerBody>,
) -> Response<Body> {
    let status = answer.status();
    let reader = match proof {
        Proof::Nothing => Some(anonymous()),
        Proof::Node | Proof::Token(_) => hub.learn(proof, status),
    };
    let Some(reader) = reader else {
        return relayed(answer);
    };
    let now = hub.memory.now();
    let content_type = text(answer.headers(), CONTENT_TYPE).map(str::to_owned);
    match (status, content_type) {
        (StatusCode::OK | StatusCode::NOT_FOUND, Some(content_type))
            if is_plain(answer.headers()) =>
        {
            let copied = Copied::Document(DocumentCopy {
                read,
                status,
                content_type,
                etag: text(answer.headers(), ETAG).map(str::to_owned),
            });
            return hub.copy(reader, copied, answer);
        }
        (StatusCode::NOT_MODIFIED, _) => {
            let documents = &mut hub.memory.lock().cache.documents;
            documents.confirm(&read, now);
            documents.allow(&reader, &read.path);
        }
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
            let documents = &mut hub.memory.lock().cache.documents;
            documents.refuse(&reader, &read.path);
        }
        _ => {}
    }
    relayed(answer)
}

fn text(headers: &HeaderMap, name: http::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
