//! A connection of a user who has the right to it, for as long as that holds.

use std::future::pending;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_daemon::{Drain, Permit, chain};
use culvert_proxy_clients::connect::UserConnection;
use culvert_proxy_cluster::{User, ViewRight, Viewer, ViewerError, Viewers};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::{Instant, sleep, timeout};

use super::calls::ReadCalls;
use super::pages::Pages;

/// From the answer to the first byte of the other protocol.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the API server is asked again. What it said a moment ago counts.
const REVIEW_EVERY: Duration = Duration::from_secs(30);
/// How long a session goes on without an API server that answers.
const UNREVIEWED_FOR: Duration = Duration::from_secs(300);
/// Between two requests for pages. A dashboard asks more often.
const IDLE: Duration = Duration::from_secs(120);
/// HTTP/2 finds a client that has gone.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls of one connection at once.
const MAX_STREAMS: u32 = 8;

/// A token, which is never printed.
pub(super) struct Token(String);

impl Token {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

/// What a session serves.
pub(super) enum Served {
    Calls(ReadCalls),
    Pages(Pages),
    Node(UserConnection),
}

/// Whose a session is.
pub(super) struct Owner {
    pub(super) user: User,
    pub(super) token: Token,
    pub(super) client: IpAddr,
    /// What the user has to be allowed all the time.
    pub(super) right: ViewRight,
}

/// A connection that has not changed its protocol yet.
pub(super) struct Session {
    pub(super) served: Served,
    pub(super) viewers: Arc<Viewers>,
    pub(super) owner: Owner,
    pub(super) drain: Drain,
    pub(super) _permit: Permit<Viewer>,
}

impl Session {
    /// Serves it until its client leaves or its user has the right no more. When the proxy drains, only
    /// connections with nodes go on, as those of other clients do.
    pub(super) async fn run(self, upgrade: OnUpgrade) {
        let Self {
            served,
            viewers,
            owner,
            drain,
            _permit,
        } = self;
        let Ok(Ok(connection)) = timeout(UPGRADE_TIMEOUT, upgrade).await else {
            return;
        };
        let ends_with = match served {
            Served::Node(_) => None,
            Served::Calls(_) | Served::Pages(_) => Some(&drain),
        };
        tokio::select! {
            ended = served.run(connection) => {
                if let Err(error) = ended {
                    tracing::debug!(reason = chain(&*error), "a session of the view ended");
                }
            }
            reason = until_refused(&viewers, &owner) => {
                let user = owner.user.viewer().to_string();
                tracing::info!(user, client.addr = %owner.client, %reason, "a session of the view was closed");
            }
            () = until_begun(ends_with) => {}
        }
    }
}

async fn until_begun(drain: Option<&Drain>) {
    match drain {
        Some(drain) => drain.begun().await,
        None => pending().await,
    }
}

/// Why the session ends.
async fn until_refused(viewers: &Viewers, owner: &Owner) -> ViewerError {
    let Owner {
        user,
        token,
        client,
        right,
    } = owner;
    let mut reviewed = Instant::now();
    loop {
        sleep(REVIEW_EVERY).await;
        let review = viewers.review_again(user, token.reveal(), *client, right);
        match review.await {
            Ok(()) => reviewed = Instant::now(),
            Err(ViewerError::Unanswered(_) | ViewerError::Busy | ViewerError::TooManyRefusals)
                if reviewed.elapsed() < UNREVIEWED_FOR => {}
            Err(refusal) => return refusal,
        }
    }
}

impl Served {
    async fn run(self, connection: Upgraded) -> anyhow::Result<()> {
        match self {
            Self::Calls(calls) => Ok(serve_calls(connection, calls).await?),
            Self::Pages(pages) => Ok(serve_pages(connection, pages).await?),
            Self::Node(node) => node.relay(TokioIo::new(connection)).await,
        }
    }
}

async fn serve_calls(connection: Upgraded, calls: ReadCalls) -> hyper::Result<()> {
    let service = service_fn(move |request| calls.clone().answer(request));
    let mut server = http2::Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS);
    pin!(server.serve_connection(connection, service)).await
}

async fn serve_pages(connection: Upgraded, pages: Pages) -> hyper::Result<()> {
    let service = service_fn(move |request| pages.clone().answer(request));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(IDLE);
    pin!(server.serve_connection(connection, service)).await
}
