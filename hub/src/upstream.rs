//! The way to the API server: two pools of connections that never share one, and the state of the
//! link. An API server prefers a client certificate to a token, so a pod's request on a connection
//! of the node would be the node's.

pub(crate) mod cloud_identity;
pub(crate) mod cluster;
pub(crate) mod connector;
pub(crate) mod gunzip;
pub(crate) mod link;
mod node_token;
pub(crate) mod pool;
mod recovery;
pub(crate) mod servers;
pub(crate) mod upgrade;
pub(crate) mod watcher;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use culvert_daemon::Drain;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use strum::{IntoStaticStr, VariantArray};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use cloud_identity::{AuthoritySource, CloudIdentity, CloudTls, CredentialError};
use cluster::{ClusterIdentity, KnownVersions};
use connector::{Connector, Protocols};
use link::Observation;
use parking_lot::Mutex;
use pool::{AnswerBody, ClusterCheck, Load, Pool, RequestKind};
use servers::Servers;
use watcher::LinkWatch;

/// Any error of a body.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// The body of a request or answer, as it streams through.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// The API server's own limit of a request is 60 s.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(65);
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// An API server that sends so much during a probe is busy and not cut off. Answers to pings are
/// less: one that hangs sends them.
const BUSY: u64 = 16 << 10;
/// How often kubelet's certificate is looked at.
const RELOAD: Duration = Duration::from_secs(30);

/// As whom a request goes to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Credential {
    /// With the certificate of the node.
    Node,
    /// With the token in the request, on a connection without a certificate.
    Bearer,
}

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("connect to the API server")]
    Connect(#[from] std::io::Error),
    #[error("send the request to the API server")]
    Send(#[from] hyper::Error),
    #[error("connections to the API server end before they take the request")]
    Closed,
    #[error("all connections to the API server are in use")]
    Full,
    #[error("prove to the API server who the node is")]
    Token(#[from] node_token::TokenError),
    #[error("no answer of the API server within {} s", HEAD_TIMEOUT.as_secs())]
    Head,
    #[error("the link to the API server is down")]
    LinkDown,
}

/// The API server.
pub(crate) struct Upstream {
    pub(crate) servers: Arc<Servers>,
    pub(crate) link: LinkWatch,
    pub(crate) identity: Arc<CloudIdentity>,
    pub(crate) cluster: Arc<ClusterIdentity>,
    check: Arc<ClusterCheck>,
    authority: AuthoritySource,
    tls: Mutex<Arc<CloudTls>>,
    pools: Mutex<Arc<Pools>>,
    /// Connections that carry an upgrade.
    pub(crate) upgrades: upgrade::Upgrades,
}

/// The connections in use. Those of a dropped generation end with their last request.
struct Pools {
    node: Pool,
    bearer: Pool,
    /// Ends all of them at once.
    abandoned: CancellationToken,
}

impl Upstream {
    /// Reads the credentials. A certificate that is not there yet, or has expired, is no error, nor is
    /// an authority that cannot be read: the link is then down.
    pub(crate) fn new(
        config: &Config,
        identity: Arc<CloudIdentity>,
        versions: Box<dyn KnownVersions>,
    ) -> Result<Self> {
        let cluster = ClusterIdentity::new(config.state.cluster(), versions);
        let cluster = Arc::new(cluster);
        let check = Arc::new(ClusterCheck::new(cluster.clone(), identity.clone()));
        let pem = config.cloud.authority.clone();
        let authority = AuthoritySource::new(pem, config.kubeconfig.clone());
        let read = authority.read();
        let tls = match read.and_then(|pem| CloudTls::new(pem, &identity)) {
            Ok(tls) => tls,
            Err(error) => {
                tracing::warn!(
                    error = culvert_daemon::chain(&error),
                    "no API server is trusted until its authority can be read"
                );
                CloudTls::trusting_none(&identity)?
            }
        };
        let link = LinkWatch::new();
        let servers = Servers::new(&config.servers, config.server_order, &config.forward);
        let servers = Arc::new(servers.context("use the address of the API server")?);
        let abandoned = CancellationToken::new();
        let pools = Pools::new(&servers, &tls, &link, &check, abandoned);
        Ok(Self {
            servers,
            link,
            identity,
            cluster,
            check,
            authority,
            tls: Mutex::new(Arc::new(tls)),
            pools: Mutex::new(Arc::new(pools)),
            upgrades: upgrade::Upgrades::default(),
        })
    }

    /// Sends a request, and returns when the head of the answer is there.
    pub(crate) async fn send(
        &self,
        credential: Credential,
        kind: RequestKind,
        request: Request<Body>,
    ) -> Result<Response<AnswerBody>, SendError> {
        let request = self.outgoing(credential, request).await?;
        let pools = self.pools();
        let answer = pools.of(credential).send(kind, request);
        let mut link = self.link.subscribe(credential);
        let answer = tokio::select! {
            answer = timeout(HEAD_TIMEOUT, answer) => answer,
            _ = link.wait_for(|link| !link.is_up()) => return Err(SendError::LinkDown),
        };
        let answer = answer.map_err(|_| SendError::Head)??;
        if credential == Credential::Node && answer.status() == StatusCode::UNAUTHORIZED {
            self.identity.was_refused().await;
            self.link.suspect();
        }
        Ok(answer)
    }

    /// Asks whether the API server is there, and takes the node's certificate. Returns what was
    /// seen, and the reason for people. Of several servers, the next one is asked then.
    pub(crate) async fn probe(&self) -> (Observation, String) {
        let (observation, reason) = self.probe_once().await;
        if observation == Observation::TryFailed
            && let Some(server) = self.pools().node.server()
            && self.servers.failed(&server)
        {
            tracing::info!(%server, reason, "new requests go to another API server");
            drop(self.renew_pools());
        }
        (observation, reason)
    }

    async fn probe_once(&self) -> (Observation, String) {
        let mut request = Request::new(empty());
        *request.uri_mut() = Uri::from_static("/readyz");
        let failed = |reason| (Observation::TryFailed, reason);
        let request = match self.outgoing(Credential::Node, request).await {
            Ok(request) => request,
            Err(error) => return failed(culvert_daemon::chain(&error)),
        };
        let pools = self.pools();
        let answer = pools.node.send(RequestKind::Short, request);
        let heard = self.link.heard_bytes();
        match timeout(PROBE_TIMEOUT, answer).await {
            Err(_) if self.link.heard_bytes() - heard >= BUSY => {
                let reason = "a probe had no answer within 3 s, and other answers came";
                (Observation::Heard, reason.to_owned())
            }
            Err(_) => failed("a probe had no answer within 3 s".to_owned()),
            Ok(Err(error)) => failed(format!("a probe failed: {}", culvert_daemon::chain(&error))),
            Ok(Ok(answer)) if answer.status().is_server_error() => {
                failed(format!("a probe was answered with {}", answer.status()))
            }
            Ok(Ok(answer)) if answer.status() == StatusCode::UNAUTHORIZED => {
                self.identity.was_refused().await;
                (Observation::Refused, self.identity.refusal())
            }
            Ok(Ok(_)) => {
                let reason = "the API server answers".to_owned();
                (Observation::ProbeAnswered, reason)
            }
        }
    }

    /// The request as it goes to the API server: without what concerns one connection only, and with one
    /// credential.
    async fn outgoing(
        &self,
        credential: Credential,
        mut request: Request<Body>,
    ) -> Result<Request<Body>, node_token::TokenError> {
        *request.version_mut() = http::Version::HTTP_11;
        remove_hop_by_hop(request.headers_mut());
        request.headers_mut().remove(header::HOST);
        self.authorize(credential, request.headers_mut()).await?;
        Ok(request)
    }

    /// Leaves one credential in the headers of a request.
    async fn authorize(
        &self,
        credential: Credential,
        headers: &mut http::HeaderMap,
    ) -> Result<(), node_token::TokenError> {
        if credential == Credential::Node {
            headers.remove(header::AUTHORIZATION);
            if let Some(token) = self.identity.authorization().await? {
                headers.insert(header::AUTHORIZATION, token);
            }
        }
        Ok(())
    }

    /// When the node's certificate expires, in seconds since 1970. `None`: there is none.
    pub(crate) fn certificate_expiry(&self) -> Option<i64> {
        Some(self.identity.valid_until()?.timestamp())
    }

    /// Ends all connections, and with them whatever waits on them.
    pub(crate) fn abandon_connections(&self) {
        self.pools().abandoned.cancel();
        drop(self.renew_pools());
        self.upgrades.end_all();
    }

    /// Replaces the pools; returns the old ones, whose requests go on.
    fn renew_pools(&self) -> Arc<Pools> {
        let tls = self.tls();
        let mut pools = self.pools.lock();
        // What is still under way on the old ones ends with a cut too.
        let abandoned = if pools.abandoned.is_cancelled() {
            CancellationToken::new()
        } else {
            pools.abandoned.clone()
        };
        let new = Pools::new(&self.servers, &tls, &self.link, &self.check, abandoned);
        std::mem::replace(&mut *pools, Arc::new(new))
    }

    fn tls(&self) -> Arc<CloudTls> {
        let tls = self.tls.lock();
        tls.clone()
    }

    /// Reads the authority of the API server again. `true`: it is another one now.
    pub(crate) fn reload_authority(&self) -> Result<bool, CredentialError> {
        let authority = self.authority.read()?;
        if authority == self.tls().authority {
            return Ok(false);
        }
        let new = CloudTls::new(authority, &self.identity)?;
        *self.tls.lock() = Arc::new(new);
        drop(self.renew_pools());
        self.link.suspect();
        Ok(true)
    }

    fn pools(&self) -> Arc<Pools> {
        let pools = self.pools.lock();
        pools.clone()
    }

    /// Connections and streams that are open now.
    pub(crate) fn load(&self, credential: Credential, kind: RequestKind) -> Load {
        self.pools().of(credential).load(kind)
    }

    /// Closes connections that have not been used for a while.
    pub(crate) fn close_idle_connections(&self) {
        let pools = self.pools();
        pools.node.close_idle();
        pools.bearer.close_idle();
    }

    /// Follows the files with the node's certificate and the API server's authority until the drain begins.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub(crate) async fn follow_certificate(self: Arc<Self>, drain: Drain) -> Result<()> {
        let mut problem = culvert_daemon::Problem::default();
        let mut authority_problem = culvert_daemon::Problem::default();
        let mut changes = self.identity.changes();
        loop {
            let reloaded = self.identity.reload();
            let error = reloaded.err().map(|error| culvert_daemon::chain(&error));
            if let Some(error) = problem.record(error) {
                tracing::warn!(error, "the node's certificate stays as it was");
            }
            let reloaded = self.reload_authority();
            if let Ok(true) = reloaded {
                tracing::info!("the authority of the API server was read");
            }
            let error = reloaded.err().map(|error| culvert_daemon::chain(&error));
            if let Some(error) = authority_problem.record(error) {
                tracing::warn!(error, "the authority of the API server stays as it was");
            }
            tokio::select! {
                () = tokio::time::sleep(RELOAD) => {}
                // Its sender lives as long as the identity.
                Ok(()) = changes.changed() => {
                    tracing::info!("the node's certificate for the API server was read");
                    drop(self.renew_pools());
                    self.link.suspect();
                }
                () = drain.begun() => return Ok(()),
            }
        }
    }
}

impl Pools {
    fn new(
        servers: &Arc<Servers>,
        tls: &CloudTls,
        link: &LinkWatch,
        check: &Arc<ClusterCheck>,
        abandoned: CancellationToken,
    ) -> Self {
        let pool = |credential, tls| {
            let servers = servers.clone();
            let link = link.clone();
            let connector = Connector::new(servers, tls, Protocols::Http2OrHttp1, link);
            Pool::new(&connector, credential, &abandoned, check)
        };
        Self {
            node: pool(Credential::Node, &tls.node),
            bearer: pool(Credential::Bearer, &tls.bearer),
            abandoned,
        }
    }

    fn of(&self, credential: Credential) -> &Pool {
        match credential {
            Credential::Node => &self.node,
            Credential::Bearer => &self.bearer,
        }
    }
}

/// Headers that concern one connection (RFC 9110, section 7.6.1).
pub(crate) fn remove_hop_by_hop(headers: &mut http::HeaderMap) {
    let named: Vec<_> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse::<header::HeaderName>().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        header::CONNECTION,
        header::HeaderName::from_static("keep-alive"),
        header::HeaderName::from_static("proxy-connection"),
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ] {
        headers.remove(name);
    }
}

/// A body without bytes.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body of these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// All bytes of a body. `None`: it did not arrive whole, or is longer than `limit`.
pub(crate) async fn collect<B>(mut body: B, limit: usize) -> Option<Bytes>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.ok()?.into_data() {
            if all.len() + bytes.len() > limit {
                return None;
            }
            all.extend_from_slice(&bytes);
        }
    }
    Some(all.freeze())
}
