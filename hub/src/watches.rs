//! Watches. A cut does not end one: it stays open and silent, and is opened again at the API server
//! after the last event that its client has.

mod client;
mod difference;
mod position;
mod retry;
mod session;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode};
use tokio::time::timeout;

use crate::answers::local;
use crate::hub::Hub;
use crate::identity::Caller;
use crate::reads::{Read, RepeatableRead, make_readable, may_be_kept, patience_of};
use crate::refusal;
use crate::relay::relayed;
use crate::upstream::pool::{AnswerBody, RequestKind};
use crate::upstream::{Body, remove_hop_by_hop};
use client::Client;
use session::Session;

/// An API server answers the head of a watch at once. If it does not within this time, a watch
/// whose objects are known begins from memory, and is opened at the API server later.
const PATIENCE: Duration = Duration::from_secs(15);

/// A request to watch.
struct WatchRequest {
    hub: Arc<Hub>,
    caller: Caller,
    read: Read,
    repeatable: RepeatableRead,
}

/// Answers a request to watch.
pub(crate) async fn answer(
    hub: Arc<Hub>,
    caller: Caller,
    read: Read,
    mut request: Request<Body>,
) -> Response<Body> {
    let credential = caller.proof.credential();
    if !hub.upstream.link.is_up(credential) {
        local::await_later_version(&hub, credential, caller.identity.as_ref(), &read).await;
    }
    make_readable(request.headers_mut());
    let asked = WatchRequest {
        hub,
        caller,
        read,
        repeatable: RepeatableRead::of(&request),
    };
    let link = asked.hub.upstream.link.status(credential);
    if !link.is_up() {
        return asked.remembered(&link.reason);
    }
    let upstream = asked.hub.upstream.clone();
    let patience = patience_of(request.uri()).unwrap_or(PATIENCE);
    let mut sent = Box::pin(upstream.send(credential, RequestKind::Long, request));
    let sent = match timeout(patience.min(PATIENCE), &mut sent).await {
        Ok(sent) => sent,
        Err(_) => {
            upstream.link.suspect();
            let known = asked.remembered("the API server does not answer in time");
            if known.status() == StatusCode::OK {
                return known;
            }
            sent.await
        }
    };
    match sent {
        Ok(answer) => asked.relay(answer),
        Err(error) => asked.remembered(&culvert_daemon::chain(&error)),
    }
}

impl WatchRequest {
    /// Passes the answer on, as a watch that outlasts a cut.
    fn relay(self, answer: Response<AnswerBody>) -> Response<Body> {
        let status = answer.status();
        if self.read.is_of_another(status, answer.headers()) {
            return relayed(answer);
        }
        let Some(reader) = self.hub.learn(&self.caller.proof, status) else {
            return relayed(answer);
        };
        self.hub.record_verdict(&reader, &self.read, status);
        if status != StatusCode::OK || !may_be_kept(&reader, &self.read) {
            return relayed(answer);
        }
        let encoding = self.read.encoding();
        let Some(read) = self.read.answered_with(answer.headers()) else {
            return relayed(answer);
        };
        let repeatable = if read.encoding() == encoding {
            self.repeatable
        } else {
            self.repeatable.accepting_plain_json()
        };
        let client = Client {
            hub: self.hub,
            proof: self.caller.proof,
            reader,
            read,
            repeatable,
        };
        let (mut head, body) = answer.into_parts();
        remove_hop_by_hop(&mut head.headers);
        Response::from_parts(head, Session::answered(client, body).into_body())
    }

    /// The watch from memory, or 503. `reason` is why the API server does not answer.
    fn remembered(&self, reason: &str) -> Response<Body> {
        if let Some(client) = self.client(self.read.clone(), self.repeatable.clone())
            && let Some(known) = from_memory(client)
        {
            return known;
        }
        // As with its list, a client that takes plain objects too may get these, to the end.
        if let Some(plain) = self.read.plain()
            && let Some(client) = self.client(plain, self.repeatable.accepting_plain_json())
            && let Some(known) = from_memory(client)
        {
            return known;
        }
        refusal::unavailable(reason)
    }

    fn client(&self, read: Read, repeatable: RepeatableRead) -> Option<Client> {
        Some(Client {
            hub: self.hub.clone(),
            proof: self.caller.proof.clone(),
            reader: self.caller.identity.clone()?,
            read,
            repeatable,
        })
    }
}

/// Begins a watch from memory. `None`: what it watches is not known, or this identity was never
/// allowed to see it.
fn from_memory(client: Client) -> Option<Response<Body>> {
    let snapshot = client.snapshot()?;
    if let Some(asked) = local::later_version(&client.read, &snapshot) {
        let known = snapshot.head.resource_version;
        return Some(refusal::too_large_version(asked, known));
    }
    let age = snapshot.age;
    let content_type = HeaderValue::from_static(client.read.encoding().content_type_of_watch());
    let body = Session::from_memory(client, snapshot).into_body();
    Some(local::with_age(Response::new(body), content_type, age))
}
