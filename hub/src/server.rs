//! How a request is answered: the limits, who asks, and then the API server or the memory.

mod control_frames;
mod open_streams;
pub(crate) mod port;
mod read_turns;
mod review;
mod unread;
mod upload;

use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::{Either, select};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout};

use self::port::{ConnectionPermit, SEND_BUFFER, UPLOAD_WINDOW};
use self::review::{Review, review};
use self::unread::WatchedBody;
use self::upload::read_ahead;
use crate::answers::{absence, documents, local, writes};
use crate::budget::Charge;
use crate::cache::{Identity, Verb};
use crate::copy::Copied;
use crate::guests::Guest;
use crate::hub::Hub;
use crate::identity::{Caller, Proof, Token, bearer_token};
use crate::limits::RequestPermit;
use crate::metrics::Answer;
use crate::reads::{Plan, Read, make_readable, may_be_kept};
use crate::refusal;
use crate::relay::{is_overloaded, relayed};
use crate::reviews::Refused;
use crate::upstream::gunzip::{DECOMPRESSION, Decompressed, accept_gzip};
use crate::upstream::pool::{AnswerBody, RequestKind, gunzipped};
use crate::upstream::{Body, BodyError, Credential, empty, full};
use crate::watches;

/// A smaller head counts as nothing.
const SMALL_HEAD: usize = 4 << 10;
/// What a header takes besides its texts, rounded up. HTTP/2 lets a client repeat one with a byte.
const HEADER: usize = 128;
/// What of a body waits to be read, and then to be sent to the API server.
const MAX_UPLOAD: usize = UPLOAD_WINDOW as usize + SEND_BUFFER;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// It has shown the node's certificate.
    pub(crate) is_node: bool,
    pub(crate) address: IpAddr,
    /// Its place among the connections of clients that are not the node.
    pub(crate) guest: Arc<Guest>,
}

/// What is known of a request before its answer, for the access line.
struct Access {
    started: Instant,
    request: String,
    is_head: bool,
}

/// What a request occupies until its answer has ended.
struct Admission {
    /// `None`: an upgraded connection has it, or the request was refused.
    permit: Option<RequestPermit>,
    /// For the request itself, and the decompression of its answer.
    request: Charge,
    /// For its answer.
    charge: Charge,
}

impl Peer {
    /// A certificate takes precedence over a token, as at the API server.
    fn proof(&self, headers: &HeaderMap) -> Proof {
        if self.is_node {
            return Proof::Node;
        }
        Proof::of_headers(headers)
    }
}

impl Hub {
    /// Answers a request.
    pub(crate) async fn answer(
        self: Arc<Self>,
        peer: Peer,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let request = request.map(|body| body.map_err(BodyError::from).boxed_unsync());
        let plan = Plan::new(request.method(), request.uri(), request.headers());
        let kind = plan.kind(request.method(), request.uri());
        let proof = peer.proof(request.headers());
        let limited = self.limited_name(&proof, peer.address);
        let mut admission = self.admit(&proof, &limited, kind);
        admission.request.set(occupied(&request));
        let access = Access {
            started: Instant::now(),
            request: format!("{} {}", request.method(), request.uri().path()),
            is_head: request.method() == Method::HEAD,
        };
        if admission.permit.is_none() {
            return self.finish(&proof, access, admission, refusal::too_many());
        }
        let (caller, request) = self
            .identify(proof, &peer, request, &mut admission.request)
            .await;
        let answer = if caller.proof == Proof::Nothing {
            self.answer_stranger(plan, request).await
        } else if let Plan::Upgrade = plan {
            let guest = peer.guest.clone();
            let permit = admission.permit.take();
            let upgraded = self.upgrade(&caller.proof, &limited, request, guest.clone(), permit);
            let answer = upgraded.await;
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                guest.is_upgraded();
            }
            answer
        } else {
            self.clone()
                .answer_caller(&caller, plan, kind, request)
                .await
        };
        self.finish(&caller.proof, access, admission, answer)
    }

    /// What a request with that proof of identity occupies, if the limits of that name allow it.
    fn admit(&self, proof: &Proof, limited: &str, kind: RequestKind) -> Admission {
        let credential = proof.credential();
        Admission {
            permit: self.limits.admit(credential, limited, kind),
            request: self.budget.charge(credential, limited),
            charge: self.budget.charge(credential, limited),
        }
    }

    /// Finds out who asks, and reads the body meanwhile.
    async fn identify(
        &self,
        proof: Proof,
        peer: &Peer,
        request: Request<Body>,
        charge: &mut Charge,
    ) -> (Caller, Request<Body>) {
        let (head, body) = request.into_parts();
        let caller = Box::pin(self.caller(proof, peer, &head.headers));
        let reading = Box::pin(async {
            if peer.is_node {
                return body;
            }
            read_ahead(body, charge).await
        });
        let (caller, body) = body_of_caller(caller, reading).await;
        (caller, Request::from_parts(head, body))
    }

    /// Finds out who asks, as far as the API server says.
    async fn caller(&self, mut proof: Proof, peer: &Peer, headers: &HeaderMap) -> Caller {
        if let Proof::Token(token) = &mut proof
            && let Err(Refused) = self.find_owner(token, peer.address, headers).await
        {
            proof = Proof::Nothing;
        }
        let identity = self.identity(&proof);
        if identity.is_some() {
            peer.guest.is_known();
        }
        Caller { proof, identity }
    }

    async fn answer_caller(
        self: Arc<Self>,
        caller: &Caller,
        plan: Plan,
        kind: RequestKind,
        request: Request<Body>,
    ) -> Response<Body> {
        match plan {
            Plan::Read(read) if read.verb == Verb::Watch => {
                watches::answer(self, caller.clone(), read, request).await
            }
            Plan::Read(read) => {
                let filter = self.filters.of(caller.identity.as_ref(), &read);
                let answer = self.read(caller, read, request).await;
                match filter {
                    Some(filter) => filter.answer(answer).await,
                    None => answer,
                }
            }
            Plan::Document(read) => documents::answer(&self, caller, read, request).await,
            Plan::Write(resource) => writes::answer(&self, &caller.proof, resource, request).await,
            Plan::Pass | Plan::Upgrade => self.pass(&caller.proof, kind, request).await,
        }
    }

    /// Counts an answer. It is logged when its body ends or the client disconnects.
    fn finish(
        &self,
        proof: &Proof,
        access: Access,
        mut admission: Admission,
        answer: Response<Body>,
    ) -> Response<Body> {
        if answer.extensions().get::<Decompressed>().is_some() {
            admission.request.add(DECOMPRESSION);
        }
        // The hub's own answers have a body, which HEAD must not get.
        let answer = if access.is_head {
            answer.map(|_| empty())
        } else {
            answer
        };
        let answered = Answer::of(&answer);
        self.metrics.answered(proof.kind(), answered);
        let line = AccessLine {
            identity: self.identity(proof).map(|it| it.to_string()),
            request: access.request,
            status: answer.status(),
            answered,
            started: access.started,
        };
        let metrics = self.metrics.clone();
        let Admission {
            permit,
            request,
            charge,
        } = admission;
        answer.map(|body| WatchedBody::boxed(body, charge, metrics, (line, permit, request)))
    }

    /// Under which name a request counts towards the limits. The owner of a token that was not seen
    /// before is not known yet, so it counts by the address of its peer.
    fn limited_name(&self, proof: &Proof, address: IpAddr) -> String {
        match self.identity(proof) {
            Some(identity) => identity.to_string(),
            None => format!("unknown of {address}"),
        }
    }

    /// Without proof of identity only health and version are answered.
    async fn answer_stranger(&self, plan: Plan, request: Request<Body>) -> Response<Body> {
        if let "/livez" | "/readyz" = request.uri().path() {
            return Response::new(full("ok"));
        }
        match plan {
            Plan::Document(read) if read.path == "/version" => {
                let anonymous = Caller {
                    proof: Proof::Nothing,
                    identity: None,
                };
                documents::answer(self, &anonymous, read, request).await
            }
            Plan::Document(_) | Plan::Upgrade | Plan::Read(_) | Plan::Write(_) | Plan::Pass => {
                refusal::unauthorized()
            }
        }
    }

    /// Finds the owner of a token, by a review if it is not known.
    async fn find_owner(
        &self,
        token: &mut Token,
        address: IpAddr,
        headers: &HeaderMap,
    ) -> Result<(), Refused> {
        let known = self.memory.lock().tokens.identity_of(&token.digest);
        if known.is_some() || !self.upstream.link.is_up(Credential::Node) {
            token.owner = known;
            return Ok(());
        }
        let Some(text) = bearer_token(headers) else {
            return Ok(());
        };
        let Some(_turn) = self.reviews.permit(&token.digest, address).await? else {
            return Ok(());
        };
        match review(&self.upstream, text).await {
            Review::Accepted(owner) => {
                let mut kept = self.memory.lock();
                kept.tokens
                    .learn_identity(&token.digest, &owner, token.expires);
                token.owner = Some(owner);
            }
            Review::NotAllowed(claimed) => token.owner = claimed,
            Review::NotRemembered => self.reviews.record(&token.digest, Ok(())),
            Review::Refused => {
                self.reviews.record(&token.digest, Err(Refused));
                return Err(Refused);
            }
            Review::Unknown => {}
        }
        Ok(())
    }

    /// `identity` is the name by which it is limited.
    async fn upgrade(
        &self,
        proof: &Proof,
        identity: &str,
        request: Request<Body>,
        guest: Arc<Guest>,
        permit: Option<RequestPermit>,
    ) -> Response<Body> {
        let link = self.upstream.link.status(proof.credential());
        if !link.is_up() {
            return refusal::unavailable(&link.reason);
        }
        let _starting = match proof.credential() {
            Credential::Node => None,
            Credential::Bearer => {
                let Some(starting) = self.upstream.upgrades.start(identity) else {
                    return refusal::too_many();
                };
                Some(starting)
            }
        };
        let connection = request.extensions().get::<ConnectionPermit>().cloned();
        let held = (permit, connection, guest.clone());
        let displaced = async move { guest.displaced().await };
        let credential = proof.credential();
        let upgraded = self.upstream.upgrade(credential, request, displaced, held);
        match upgraded.await {
            Ok(answer) => answer,
            Err(error) => refusal::unavailable(&culvert_daemon::chain(&error)),
        }
    }

    /// Reads as the node, to fill the memory.
    pub(crate) async fn read_as_node(&self, read: Read, request: Request<Body>) -> Response<Body> {
        let node = Caller {
            proof: Proof::Node,
            identity: Some(Identity::Node),
        };
        self.read(&node, read, request).await
    }

    async fn read(
        &self,
        caller: &Caller,
        read: Read,
        mut request: Request<Body>,
    ) -> Response<Body> {
        let credential = caller.proof.credential();
        if !self.upstream.link.is_up(credential) {
            local::await_later_version(self, credential, caller.identity.as_ref(), &read).await;
        }
        let link = self.upstream.link.status(credential);
        if !link.is_up() {
            return self.remembered(caller, &read, &link.reason);
        }
        make_readable(request.headers_mut());
        accept_gzip(request.headers_mut());
        let sent = self.upstream.send(credential, RequestKind::Short, request);
        let mut sent = Box::pin(sent);
        let sent = match timeout(read.patience(), &mut sent).await {
            Ok(sent) => sent,
            Err(_) => {
                self.upstream.link.suspect();
                let reason = "the API server does not answer in time";
                let known = self.remembered(caller, &read, reason);
                if known.status() != StatusCode::SERVICE_UNAVAILABLE {
                    return known;
                }
                sent.await
            }
        };
        match sent.map(gunzipped) {
            Ok(answer) if is_overloaded(answer.status()) => {
                let known = self.remembered(caller, &read, "the API server is overloaded");
                match known.status() {
                    StatusCode::OK | StatusCode::NOT_FOUND => known,
                    // Another error is no better: with 410 a client would begin its list again.
                    _ => relayed(answer),
                }
            }
            Ok(answer) => self.relay_read(&caller.proof, read, answer).await,
            Err(error) => self.remembered(caller, &read, &culvert_daemon::chain(&error)),
        }
    }

    /// The answer of memory. `reason` is why the API server gives none.
    fn remembered(&self, caller: &Caller, read: &Read, reason: &str) -> Response<Body> {
        match &caller.identity {
            Some(identity) => local::answer(&self.memory, identity, read, reason),
            None => refusal::unavailable(reason),
        }
    }

    /// Passes the answer on, and a copy of it to the memory.
    async fn relay_read(
        &self,
        proof: &Proof,
        read: Read,
        answer: Response<AnswerBody>,
    ) -> Response<Body> {
        let status = answer.status();
        if read.is_of_another(status, answer.headers()) {
            return relayed(answer);
        }
        let Some(reader) = self.learn(proof, status) else {
            return relayed(answer);
        };
        if status == StatusCode::NOT_FOUND {
            return match read.verb {
                Verb::Get => absence::relay(self, &reader, &read, answer).await,
                Verb::List | Verb::Watch => relayed(answer),
            };
        }
        self.record_verdict(&reader, &read, status);
        if status != StatusCode::OK || !may_be_kept(&reader, &read) {
            return relayed(answer);
        }
        let Some(read) = read.answered_with(answer.headers()) else {
            return relayed(answer);
        };
        let copied = Copied::Objects(Box::new(read));
        self.copy(reader, copied, answer)
    }
}

/// Reads the body of a request until it is known whose it is. That of a stranger is not read on, and
/// of one who shows no token not at all.
async fn body_of_caller(
    caller: impl Future<Output = Caller> + Unpin,
    reading: impl Future<Output = Body> + Unpin,
) -> (Caller, Body) {
    match select(caller, reading).await {
        Either::Left((caller, _)) if caller.proof == Proof::Nothing => (caller, empty()),
        Either::Left((caller, reading)) => (caller, reading.await),
        Either::Right((body, caller)) => (caller.await, body),
    }
}

/// What a request holds until its answer has ended: its head, and what may be on its way of its body.
fn occupied(request: &Request<Body>) -> usize {
    let mut bytes = request.uri().path().len() + request.uri().query().map_or(0, str::len);
    for (name, value) in request.headers() {
        bytes += HEADER + name.as_str().len() + value.len();
    }
    if bytes < SMALL_HEAD {
        bytes = 0;
    }
    if !request.body().is_end_stream() {
        bytes += MAX_UPLOAD;
    }
    bytes
}

/// The access line of a request. Logged on drop: when the body ends or the client disconnects.
struct AccessLine {
    /// `None`: it is not known yet.
    identity: Option<String>,
    request: String,
    status: StatusCode,
    answered: Answer,
    started: Instant,
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        tracing::debug!(
            identity = self.identity,
            request = self.request,
            status = self.status.as_u16(),
            answered = self.answered.label(),
            duration_s = self.started.elapsed().as_secs_f64(),
            "request"
        );
    }
}
