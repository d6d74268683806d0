//! Answers from memory, to those whom the API server has answered before.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use tokio::time::timeout;

use super::list;
use crate::cache::{GetAnswer, Identity, ListAnswer, Snapshot, Verb};
use crate::hub::Hub;
use crate::memory::Memory;
use crate::reads::Read;
use crate::refusal;
use crate::request::options::AskedVersion;
use crate::upstream::watcher::LinkStatus;
use crate::upstream::{Body, Credential, full};
use crate::wire::Encoding;

/// For how long the API server waits for a version that it has not seen yet.
const WAIT_FOR_LATER: Duration = Duration::from_secs(3);

/// Answers a get or list. `reason` is why the API server does not.
pub(crate) fn answer(
    memory: &Memory,
    identity: &Identity,
    read: &Read,
    reason: &str,
) -> Response<Body> {
    if let Some(known) = remembered(memory, identity, read) {
        return known;
    }
    if let Some(plain) = read.plain()
        && let Some(known) = remembered(memory, identity, &plain)
    {
        return known;
    }
    refusal::unavailable(reason)
}

/// `None`: it is not known.
fn remembered(memory: &Memory, identity: &Identity, read: &Read) -> Option<Response<Body>> {
    match read.verb {
        Verb::Get => get(memory, identity, read),
        Verb::List | Verb::Watch => listed(memory, identity, read),
    }
}

/// `None`: it is not known.
fn get(memory: &Memory, identity: &Identity, read: &Read) -> Option<Response<Body>> {
    let now = memory.now();
    let answer = memory.lock().cache.get(identity, &read.scope, now);
    if let GetAnswer::Found { version, .. } | GetAnswer::Absent { version } = answer
        && let AskedVersion::At(asked) = read.options.resource_version
        && asked > version
    {
        return Some(refusal::too_large_version(asked, version));
    }
    match answer {
        GetAnswer::Found {
            object,
            item_type,
            age,
            ..
        } => {
            let body = object.alone(read.encoding(), &item_type);
            Some(ok(read.encoding(), body, age))
        }
        GetAnswer::Absent { .. } => {
            let resource = &read.scope.representation.resource.resource;
            let name = read.scope.selection.name.as_deref().unwrap_or_default();
            Some(refusal::not_found(resource, name))
        }
        GetAnswer::Unknown | GetAnswer::Denied => None,
    }
}

/// `None`: it is not known.
fn listed(memory: &Memory, identity: &Identity, read: &Read) -> Option<Response<Body>> {
    if !read.options.continue_token.is_empty() {
        return Some(refusal::expired());
    }
    if read.options.is_exact() {
        return None;
    }
    let snapshot = snapshot(memory, identity, read)?;
    if let Some(asked) = later_version(read, &snapshot) {
        let known = snapshot.head.resource_version;
        return Some(refusal::too_large_version(asked, known));
    }
    let content_type = HeaderValue::from_static(read.encoding().content_type());
    let age = snapshot.age;
    let answer = Response::new(list::body(read.encoding(), snapshot));
    Some(with_age(answer, content_type, age))
}

/// The version that is asked for, if it is later than what is known. A watch goes on from any
/// version, unless it begins with a list.
pub(crate) fn later_version(read: &Read, known: &Snapshot) -> Option<u64> {
    let lists = read.verb == Verb::List || read.options.send_initial_events;
    match read.options.resource_version {
        AskedVersion::At(asked) if lists && asked > known.head.resource_version => Some(asked),
        AskedVersion::At(_) | AskedVersion::Any | AskedVersion::Newest => None,
    }
}

/// Waits for the link, for a while, if a later state is asked for than is known.
pub(crate) async fn await_later_version(
    hub: &Hub,
    credential: Credential,
    identity: Option<&Identity>,
    read: &Read,
) {
    if let Some(identity) = identity
        && let Some(known) = snapshot(&hub.memory, identity, read)
        && later_version(read, &known).is_some()
    {
        let mut link = hub.upstream.link.subscribe(credential);
        // Without the link the answer is 504.
        timeout(WAIT_FOR_LATER, link.wait_for(LinkStatus::is_up))
            .await
            .ok();
    }
}

/// The whole set that this read asks for, if this identity may see it.
pub(crate) fn snapshot(memory: &Memory, identity: &Identity, read: &Read) -> Option<Snapshot> {
    let now = memory.now();
    let mut kept = memory.lock();
    match kept.cache.list(identity, read.verb, &read.scope, now) {
        ListAnswer::Found(snapshot) => Some(*snapshot),
        ListAnswer::Unknown | ListAnswer::Denied => None,
    }
}

/// 200, with the age of what it says.
pub(crate) fn ok(encoding: Encoding, body: impl Into<Bytes>, age: Duration) -> Response<Body> {
    let content_type = HeaderValue::from_static(encoding.content_type());
    with_age(Response::new(full(body)), content_type, age)
}

/// Adds the headers of a local answer.
pub(crate) fn with_age(
    mut answer: Response<Body>,
    content_type: HeaderValue,
    age: Duration,
) -> Response<Body> {
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    if let Ok(local) = HeaderValue::from_str(&format!("local; age={}", age.as_secs())) {
        headers.insert(refusal::HEADER, local);
    }
    answer
}
