//! The view of `--view-listen`: what `culvert` reads of a proxy and of the redirector beside it, and
//! connections with nodes, for people who may not run anything in the proxy's pod, where the key of the
//! authority is.
//!
//! A client sends one request, over HTTPS and mostly through the API server's proxy for pods, with a
//! bearer token. If the API server says that its user may (`Viewers`), the connection becomes what the
//! path wants (`target`, `session`): that of the control socket without the calls that change
//! anything, that of the admin socket of one of the two programs, with the pages that `culvert` reads,
//! or one with a port of a node, which needs a right of its own.

mod calls;
mod pages;
mod refusal;
mod session;
mod target;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_api::view::{PROTOCOL, TOKEN_HEADER, USER_CALLS, USER_CONNECTIONS, USER_SESSIONS};
use culvert_daemon::{Drain, LogBudget, Permit, Quota, chain};
use culvert_proxy_clients::connect::Connect;
use culvert_proxy_cluster::{Viewer, Viewers};
use culvert_proxy_streams::sockets::strangers::{
    HandshakePermit, Phase, Strangers, handshake, say_busy,
};
use culvert_proxy_trust::Trust;
use http::header::{AUTHORIZATION, CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::control::Control;
use calls::ReadCalls;
use pages::{Pages, Program};
use refusal::Refusal;
use session::{Owner, Served, Session, Token};
use target::ViewTarget;

const OWN_AUTHORIZATION: HeaderName = HeaderName::from_static(TOKEN_HEADER);
/// From the accepted connection until it is known whose it is and a node has answered: a handshake, two
/// questions to the API server, and a dial.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
/// For the head of the request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of that head in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Sessions of all users that read.
const MAX_SESSIONS: usize = 96;
/// Questions of all under way.
const MAX_CALLS: usize = 24;
/// Connections of all with nodes. Each takes some 200 KiB.
const MAX_CONNECTIONS: usize = 128;

/// What a view is made of.
pub struct ViewParts {
    /// Who may read.
    pub viewers: Arc<Viewers>,
    /// The certificate that clients see.
    pub trust: Trust,
    /// Permits for connections until it is known whose they are.
    pub strangers: Strangers,
    /// What the control socket serves.
    pub control: Control,
    /// The way to nodes.
    pub connect: Connect,
    /// The proxy's own `--admin-socket`.
    pub admin_socket: PathBuf,
    /// That of the redirector beside it.
    pub redirector_admin_socket: PathBuf,
    /// Ends all.
    pub drain: Drain,
}

/// Serves the view. Clones share it.
#[derive(Clone)]
pub struct View(Arc<Shared>);

struct Shared {
    parts: ViewParts,
    sessions: Quota<Viewer>,
    calls: Quota<Viewer>,
    connections: Quota<Viewer>,
    refusals: LogBudget,
}

impl View {
    /// Serves these.
    pub fn new(parts: ViewParts) -> Self {
        Self(Arc::new(Shared {
            parts,
            sessions: Quota::new(USER_SESSIONS, MAX_SESSIONS),
            calls: Quota::new(USER_CALLS, MAX_CALLS),
            connections: Quota::new(USER_CONNECTIONS, MAX_CONNECTIONS),
            refusals: LogBudget::default(),
        }))
    }

    /// Serves a connection in tasks among `connections`, on one of the threads that move bytes.
    pub fn serve(&self, (client, address): (TcpStream, SocketAddr), connections: &TaskTracker) {
        let permit = match self.0.parts.strangers.enter(address.ip(), Phase::Silent) {
            Ok(permit) => permit,
            Err(full) => {
                say_busy(&client);
                return self.report(address, &full);
            }
        };
        match client.into_std() {
            Ok(client) => {
                let sessions = connections.clone();
                let served = self.clone().stranger(client, address, permit, sessions);
                let worker = self.0.parts.connect.workers.next();
                connections.spawn_on(served, worker.handle());
            }
            Err(error) => self.report(address, &error),
        }
    }

    /// The client has its permit until it is known whose the connection is.
    async fn stranger(
        self,
        client: std::net::TcpStream,
        address: SocketAddr,
        mut permit: HandshakePermit,
        sessions: TaskTracker,
    ) {
        let client = match TcpStream::from_std(client) {
            Ok(client) => client,
            Err(error) => return self.report(address, &error),
        };
        if let Err(error) = culvert_tunnel::tune_relayed(&client) {
            tracing::debug!(%error, "tune a socket");
        }
        let evicted = permit.evicted();
        let drain = self.0.parts.drain.clone();
        let served = timeout(
            REQUEST_TIMEOUT,
            self.one_request(client, address, &mut permit, sessions),
        );
        tokio::select! {
            // A client that is too slow is not answered.
            served = served => drop(served),
            () = evicted.cancelled() => {}
            () = drain.begun() => {}
        }
    }

    async fn one_request(
        &self,
        client: TcpStream,
        address: SocketAddr,
        permit: &mut HandshakePermit,
        sessions: TaskTracker,
    ) {
        let config = self.0.parts.trust.token_server_config();
        let tls = match handshake(client, config, permit).await {
            Ok(tls) => tls,
            Err(error) => return self.report(address, &error),
        };
        let service = service_fn(|request| self.answer(request, address, &sessions));
        let mut server = http1::Builder::new();
        server
            .keep_alive(false)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD);
        let served = pin!(
            server
                .serve_connection(TokioIo::new(tls), service)
                .with_upgrades()
        );
        if let Err(error) = served.await {
            tracing::debug!(client.addr = %address, %error, "a connection of the view ended");
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        address: SocketAddr,
        sessions: &TaskTracker,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, _) = request.into_parts();
        let session = match self.session(&head, address).await {
            Ok(session) => session,
            Err(refusal) => {
                self.report(address, &refusal);
                return Ok(refusal.response());
            }
        };
        let upgrade = hyper::upgrade::on(Request::from_parts(head, ()));
        sessions.spawn(session.run(upgrade));
        let mut switching = Response::new(Full::default());
        *switching.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = switching.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
        Ok(switching)
    }

    /// What the connection becomes, if its user may have that.
    async fn session(&self, request: &Parts, address: SocketAddr) -> Result<Session, Refusal> {
        let token = token(&request.headers)?;
        let parts = &self.0.parts;
        let client = address.ip();
        let path = request.uri.path();
        let target = ViewTarget::of(path, parts.connect.router.directory());
        let target = target.ok_or(Refusal::NoSuchPath)?;
        let right = target.right();
        let user = parts.viewers.user(token.reveal(), client, &right).await?;
        if request.method != Method::GET || !wants_upgrade(&request.headers) {
            return Err(Refusal::NoUpgrade);
        }
        let viewer = user.viewer();
        let (permit, served) = self.serve_target(target, &viewer).await?;
        tracing::info!(user = viewer.to_string(), client.addr = %address, path, "view opened");
        Ok(Session {
            served,
            viewers: parts.viewers.clone(),
            owner: Owner {
                user,
                token,
                client,
                right,
            },
            drain: parts.drain.clone(),
            _permit: permit,
        })
    }

    async fn serve_target(
        &self,
        target: ViewTarget,
        viewer: &Viewer,
    ) -> Result<(Permit<Viewer>, Served), Refusal> {
        let parts = &self.0.parts;
        let quota = match target {
            ViewTarget::Control | ViewTarget::Pages(_) => &self.0.sessions,
            ViewTarget::Node(..) => &self.0.connections,
        };
        let permit = quota.acquire(viewer.clone());
        let permit = permit.ok_or(Refusal::TooManySessions)?;
        let calls = self.0.calls.clone();
        let served = match target {
            ViewTarget::Control => {
                let control = parts.control.clone();
                Served::Calls(ReadCalls::new(control, viewer.clone(), calls))
            }
            ViewTarget::Pages(program) => {
                let socket = match program {
                    Program::Proxy => &parts.admin_socket,
                    Program::Redirector => &parts.redirector_admin_socket,
                };
                Served::Pages(Pages::open(program, socket, viewer.clone(), calls).await?)
            }
            ViewTarget::Node(node, port) => {
                let user = format!("user {viewer}");
                Served::Node(parts.connect.open_for_user(node, port, user).await?)
            }
        };
        Ok((permit, served))
    }

    fn report(&self, client: SocketAddr, error: &dyn std::error::Error) {
        if let Some(suppressed) = self.0.refusals.spend() {
            tracing::warn!(client.addr = %client, reason = chain(error), suppressed, "view refused");
        }
    }
}

/// The bearer token of a request.
fn token(headers: &HeaderMap) -> Result<Token, Refusal> {
    let header = headers.get(OWN_AUTHORIZATION);
    let Some(header) = header.or_else(|| headers.get(AUTHORIZATION)) else {
        return Err(Refusal::NoToken);
    };
    let Ok(text) = header.to_str() else {
        return Err(Refusal::NoToken);
    };
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
            Ok(Token::new(token.trim()))
        }
        _ => Err(Refusal::NoToken),
    }
}

fn wants_upgrade(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE);
    upgrade.is_some_and(|protocol| {
        protocol
            .as_bytes()
            .eq_ignore_ascii_case(PROTOCOL.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_token_is_a_bearer_token_of_either_header() {
        let found = |fields: &[_]| token(&headers(fields)).map(|token| token.reveal().to_owned());
        assert_eq!(
            found(&[(AUTHORIZATION, "Bearer a")]).ok(),
            Some("a".to_owned())
        );
        let both = [(AUTHORIZATION, "Bearer a"), (OWN_AUTHORIZATION, "bearer b")];
        assert_eq!(found(&both).ok(), Some("b".to_owned()));
        for fields in [
            &[][..],
            &[(AUTHORIZATION, "Basic YTpi")],
            &[(AUTHORIZATION, "Bearer")],
        ] {
            assert!(matches!(found(fields), Err(Refusal::NoToken)));
        }
    }
}
