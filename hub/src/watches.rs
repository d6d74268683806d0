//! Watches. A cut does not end one: it stays open and silent, and is opened again at the API server
//! from the last event that its client has.

mod difference;
mod position;
mod retry;
mod session;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode};
use tokio::time::timeout;

use crate::answers::{local, refusal};
use crate::cache::Identity;
use crate::server::identity::Proof;
use crate::server::{Again, Hub, Read, make_readable, may_be_kept, relayed};
use crate::upstream::pool::RequestKind;
use crate::upstream::{Body, remove_hop_by_hop};
pub(crate) use retry::Turns;
use session::{Client, Session};

/// An API server answers the head of a watch at once. One that is known is begun from memory after
/// this time, and opened at the API server later.
const PATIENCE: Duration = Duration::from_secs(15);

/// Answers a request to watch.
pub(crate) async fn answer(
    hub: Arc<Hub>,
    proof: Proof,
    identity: Option<Identity>,
    read: Read,
    mut request: Request<Body>,
) -> Response<Body> {
    let credential = proof.credential();
    if !hub.upstream.link.is_up(credential) {
        local::await_later_version(&hub, credential, identity.as_ref(), &read).await;
    }
    make_readable(request.headers_mut());
    let again = Again::of(&request);
    let client = |hub: &Arc<Hub>, read: Read, again: Again| {
        Some(Client {
            hub: hub.clone(),
            proof: proof.clone(),
            reader: identity.clone()?,
            read,
            again,
        })
    };
    let silent = |hub: Arc<Hub>, reason: &str| {
        let asked = client(&hub, read.clone(), again.clone());
        // As with its list, a client that takes plain objects too may get these, to the end.
        let plain = || client(&hub, read.plain()?, again.accepting_plain_json());
        let known = asked.and_then(from_memory);
        known
            .or_else(|| plain().and_then(from_memory))
            .unwrap_or_else(|| refusal::unavailable(reason))
    };
    let link = hub.upstream.link.status(credential);
    if !link.is_up() {
        return silent(hub, &link.reason);
    }
    let upstream = hub.upstream.clone();
    let mut sent = Box::pin(upstream.send(credential, RequestKind::Long, request));
    let in_time = timeout(PATIENCE, &mut sent).await;
    if in_time.is_err() {
        hub.upstream.link.suspect();
        let known = silent(hub.clone(), "the API server does not answer in time");
        if known.status() == StatusCode::OK {
            return known;
        }
    }
    let sent = match in_time {
        Ok(sent) => sent,
        Err(_) => sent.await,
    };
    let answer = match sent {
        Ok(answer) => answer,
        Err(error) => {
            let reason = culvert_daemon::chain(&error);
            return silent(hub, &reason);
        }
    };
    let Some(reader) = hub.learn(&proof, answer.status()) else {
        return relayed(answer);
    };
    hub.record_verdict(&reader, &read, answer.status());
    let readable = answer.status() == StatusCode::OK && may_be_kept(&reader, &read);
    let encoding = read.encoding();
    let Some(read) = read.answered_with(answer.headers()).filter(|_| readable) else {
        return relayed(answer);
    };
    let again = if read.encoding() == encoding {
        again
    } else {
        again.accepting_plain_json()
    };
    let client = Client {
        hub,
        proof,
        reader,
        read,
        again,
    };
    let (mut head, body) = answer.into_parts();
    remove_hop_by_hop(&mut head.headers);
    Response::from_parts(head, Session::passed_on(client, body).into_body())
}

/// `None`: this identity never got an answer to it, or it is not known.
fn from_memory(client: Client) -> Option<Response<Body>> {
    let snapshot = local::snapshot(&client.hub.memory, &client.reader, &client.read)?;
    if let Some(asked) = local::later_version(&client.read, &snapshot) {
        let known = snapshot.head.resource_version;
        return Some(refusal::too_large_version(asked, known));
    }
    let age = snapshot.age;
    let content_type = HeaderValue::from_static(client.read.encoding().content_type_of_watch());
    let body = Session::from_memory(client, &snapshot).into_body();
    Some(local::with_age(Response::new(body), content_type, age))
}
