//! The read-only view of `--view-listen`: what `culvert` reads of a proxy and of the redirector beside
//! it, for people who may not run anything in the proxy's pod, where the key of the authority is.
//!
//! A client sends one request, over HTTPS and mostly through the API server's proxy for pods, with a
//! bearer token. If the API server says that its user may read (`Viewers`), the connection becomes
//! that of a socket (`session`): of the control socket without the calls that change anything, or of
//! the admin socket of one of the two programs, with the pages that `culvert` reads.

mod calls;
mod pages;
mod refusal;
mod session;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_daemon::{Drain, LogBudget, Quota, chain};
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
use session::{Served, Session, Token};

/// Has the token: the API server's proxy removes `Authorization` from what it passes on.
const OWN_AUTHORIZATION: HeaderName = HeaderName::from_static("culvert-authorization");
/// What a connection becomes.
const PROTOCOL: &str = "culvert-view";
/// From the accepted connection until it is known whose it is: a handshake, and two questions to the
/// API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
/// For the head of the request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of that head in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Sessions of one user, and of all. Each `culvert` has three.
const USER_SESSIONS: usize = 12;
const MAX_SESSIONS: usize = 96;
/// Questions under way of one user, and of all.
const USER_CALLS: usize = 6;
const MAX_CALLS: usize = 24;

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
    refusals: LogBudget,
}

impl View {
    /// Serves these.
    pub fn new(parts: ViewParts) -> Self {
        Self(Arc::new(Shared {
            parts,
            sessions: Quota::new(USER_SESSIONS, MAX_SESSIONS),
            calls: Quota::new(USER_CALLS, MAX_CALLS),
            refusals: LogBudget::default(),
        }))
    }

    /// Serves a connection in tasks among `connections`.
    pub fn serve(&self, (client, address): (TcpStream, SocketAddr), connections: &TaskTracker) {
        match self.0.parts.strangers.enter(address.ip(), Phase::Silent) {
            Ok(permit) => {
                let sessions = connections.clone();
                connections.spawn(self.clone().stranger(client, address, permit, sessions));
            }
            Err(full) => {
                say_busy(&client);
                self.report(address, &full);
            }
        }
    }

    /// The client has its permit until it is known whose the connection is.
    async fn stranger(
        self,
        client: TcpStream,
        address: SocketAddr,
        mut permit: HandshakePermit,
        sessions: TaskTracker,
    ) {
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
        let viewer = parts.viewers.viewer(token.reveal(), address.ip()).await?;
        if request.method != Method::GET || !wants_upgrade(&request.headers) {
            return Err(Refusal::NoUpgrade);
        }
        let calls = self.0.calls.clone();
        let path = request.uri.path();
        let served = match path {
            "/view/control" => {
                let control = parts.control.clone();
                Served::Calls(ReadCalls::new(control, viewer.clone(), calls))
            }
            "/view/proxy" => {
                let socket = &parts.admin_socket;
                Served::Pages(Pages::open(Program::Proxy, socket, viewer.clone(), calls).await?)
            }
            "/view/redirector" => {
                let socket = &parts.redirector_admin_socket;
                let pages = Pages::open(Program::Redirector, socket, viewer.clone(), calls);
                Served::Pages(pages.await?)
            }
            _ => return Err(Refusal::NoSuchPath),
        };
        let permit = self.0.sessions.acquire(viewer.clone());
        let permit = permit.ok_or(Refusal::TooManySessions)?;
        tracing::info!(user = %viewer, client.addr = %address, path, "view opened");
        Ok(Session {
            served,
            viewers: parts.viewers.clone(),
            token,
            client: address.ip(),
            drain: parts.drain.clone(),
            _permit: permit,
        })
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
