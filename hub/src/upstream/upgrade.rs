//! Upgraded connections: exec, attach and port-forward, as SPDY or WebSocket. Each has a connection
//! of HTTP/1.1 of its own to the API server.

use std::io;
use std::time::Duration;

use culvert_daemon::{Permit, Quota};
use http::uri::Authority;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connector::{Connector, Protocols};
use super::node_token::TokenError;
use super::{Body, BodyError, Credential, Upstream};

/// The API server dials kubelet before it answers.
const HEAD_TIMEOUT: Duration = Duration::from_secs(35);

/// Why an upgrade could not be passed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    #[error("connect to the API server")]
    Connect(#[from] io::Error),
    #[error("prove to the API server who the node is")]
    Token(#[from] TokenError),
    #[error("speak HTTP with the API server")]
    Http(#[from] hyper::Error),
    #[error("no answer of the API server within {} s", HEAD_TIMEOUT.as_secs())]
    Head,
}

/// Upgrades that the API server has not answered yet, of one identity other than the node and of
/// all: each has a connection to it.
const MAX_STARTING_OF_IDENTITY: usize = 8;
pub(crate) const MAX_STARTING: usize = 16;

/// The tasks that relay upgraded connections.
pub(crate) struct Upgrades {
    relays: Mutex<JoinSet<()>>,
    starting: Quota<String>,
}

impl Default for Upgrades {
    fn default() -> Self {
        Self {
            relays: Mutex::default(),
            starting: Quota::new(MAX_STARTING_OF_IDENTITY, MAX_STARTING),
        }
    }
}

impl Upgrades {
    /// `None`: this identity, or all, wait for enough answers.
    pub(crate) fn start(&self, identity: &str) -> Option<Permit<String>> {
        self.starting.acquire(identity.to_owned())
    }

    /// Ends all relays: the link is down, and a terminal that hangs is worse than one that ends.
    pub(super) fn end_all(&self) {
        self.relays.lock().abort_all();
    }
}

/// Whether a request asks for another protocol than HTTP.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    let asks = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    asks && headers.contains_key(header::UPGRADE)
}

impl Upstream {
    /// Passes an upgrade on. If the API server agrees, a task relays bytes until either end closes,
    /// or its place is another's. `held` is dropped then, or at the end of another answer.
    pub(crate) async fn upgrade<H: Send + 'static>(
        &self,
        credential: Credential,
        mut request: Request<Body>,
        displaced: impl Future<Output = ()> + Send + 'static,
        held: H,
    ) -> Result<Response<Body>, UpgradeError> {
        let connector = self.http1_connector(credential);
        let stream = connector.connect().await?;
        let authority = stream.authority().clone();
        let (mut sender, connection) = http1::handshake(stream).await?;
        let client = hyper::upgrade::on(&mut request);
        self.authorize(credential, request.headers_mut()).await?;
        prepare(&authority, &mut request);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Its end is an error or an end for the request too, which reports it.
            connection.with_upgrades().await.ok();
        });
        let mut answer = timeout(HEAD_TIMEOUT, sender.send_request(request))
            .await
            .map_err(|_| UpgradeError::Head)??;
        let server = hyper::upgrade::on(&mut answer);
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let mut relays = self.upgrades.relays.lock();
            while relays.try_join_next().is_some() {}
            relays.spawn(async move {
                let _until_the_end = (tasks, held);
                if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
                    let mut client = TokioIo::new(client);
                    let mut server = TokioIo::new(server);
                    tokio::select! {
                        // An end without notice is a usual end of a terminal.
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        () = displaced => tracing::debug!("an upgrade made way for a newer one"),
                    }
                }
            });
            return Ok(answer.map(|body| body.map_err(BodyError::from).boxed_unsync()));
        }
        // The connection lives as long as the body of the refusal.
        Ok(answer.map(|body| {
            let body = body.map_err(BodyError::from).map_frame(move |frame| {
                let _until_the_end = (&tasks, &held);
                frame
            });
            body.boxed_unsync()
        }))
    }
}

impl Upstream {
    fn http1_connector(&self, credential: Credential) -> Connector {
        let tls = self.tls();
        let tls = match credential {
            Credential::Node => &tls.node,
            Credential::Bearer => &tls.bearer,
        };
        let servers = self.servers.clone();
        Connector::new(servers, tls, Protocols::Http1, self.link.clone())
    }
}

/// Keeps the headers of the upgrade, and names the API server as host.
fn prepare(host: &Authority, request: &mut Request<Body>) {
    let path = request.uri().path_and_query().cloned();
    if let Some(path) = path {
        *request.uri_mut() = path.into();
    }
    if let Ok(host) = host.as_str().parse() {
        request.headers_mut().insert(header::HOST, host);
    }
}
