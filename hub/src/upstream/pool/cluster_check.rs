//! Asks on each new connection whether the API server there is the one of this node's cluster. A
//! private address may lead to that of another cluster.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode, header};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::connection::Connection;
use crate::upstream::cloud_identity::CloudIdentity;
use crate::upstream::cluster::{self, ClusterAnswer, ClusterIdentity, Verdict};
use crate::upstream::{Body, collect, empty};

/// For the answer to a question.
const TIMEOUT: Duration = Duration::from_secs(3);
/// It is some 2 KiB.
const MAX_ANSWER: usize = 256 << 10;
/// With HTTP/1.1, where each request has a connection, one in this time is asked.
const HTTP1_PAUSE: Duration = Duration::from_secs(10);

/// What the check needs, for all pools.
pub(crate) struct ClusterCheck {
    identity: Arc<ClusterIdentity>,
    cloud: Arc<CloudIdentity>,
    last_asked: Mutex<Option<Instant>>,
}

impl ClusterCheck {
    pub(crate) fn new(identity: Arc<ClusterIdentity>, cloud: Arc<CloudIdentity>) -> Self {
        Self {
            identity,
            cloud,
            last_asked: Mutex::default(),
        }
    }

    /// Asks on a new connection of the node; an error if the API server is another cluster's.
    pub(super) async fn check(&self, connection: &Connection) -> io::Result<()> {
        if connection.is_http1()
            && let Some(last) = *self.last_asked.lock()
            && last.elapsed() < HTTP1_PAUSE
        {
            return self.demand_same_cluster();
        }
        let known = self.identity.newest_known_version();
        let service = self.demand_answer(connection, cluster::SERVICE).await?;
        let mut verdict = self.identity.judge_service(&service);
        if verdict == Verdict::AskForNode {
            let name = self.cloud.node_name();
            let node = match ClusterIdentity::question_about_node(name.as_deref()) {
                Some(question) => self.demand_answer(connection, &question).await?,
                None => ClusterAnswer::Nothing,
            };
            verdict = self.identity.judge(&service, &node);
        }
        self.identity.settle(verdict, &service, known);
        *self.last_asked.lock() = Some(Instant::now());
        self.demand_same_cluster()
    }

    /// The last verdict. A connection for tokens is not asked: a token proves nothing about the
    /// cluster, and may not read these objects.
    pub(super) fn demand_same_cluster(&self) -> io::Result<()> {
        if self.identity.is_other() {
            return Err(io::Error::other(
                "another cluster answers at the address of the API server",
            ));
        }
        Ok(())
    }

    /// Asks a question. Once this node's cluster is known, an API server that does not answer it is
    /// not used: it may be another cluster's.
    async fn demand_answer(
        &self,
        connection: &Connection,
        question: &str,
    ) -> io::Result<ClusterAnswer> {
        let mut request = Request::new(empty());
        *request.uri_mut() = question.parse().map_err(io::Error::other)?;
        let accept = HeaderValue::from_static(cluster::ACCEPT);
        request.headers_mut().insert(header::ACCEPT, accept);
        if let Some(token) = self.cloud.authorization().await.map_err(io::Error::other)? {
            request.headers_mut().insert(header::AUTHORIZATION, token);
        }
        let Ok(answer) = timeout(TIMEOUT, answer_to(request, connection)).await else {
            let error = "no answer on a new connection within 3 s";
            return Err(io::Error::new(io::ErrorKind::TimedOut, error));
        };
        let answer = answer?;
        if answer == ClusterAnswer::Later && self.identity.is_known() {
            let error = "the API server does not say yet which cluster it is";
            return Err(io::Error::other(error));
        }
        Ok(answer)
    }
}

async fn answer_to(request: Request<Body>, connection: &Connection) -> io::Result<ClusterAnswer> {
    let question = request.uri().clone();
    let answer = connection.send(request).await;
    let answer = answer.map_err(|error| io::Error::other(error.into_error()))?;
    let status = answer.status();
    let body = collect(answer.into_body(), MAX_ANSWER).await;
    tracing::debug!(%question, status = status.as_u16(), "which cluster it is");
    Ok(match body {
        Some(body) if status == StatusCode::OK => ClusterAnswer::read(&body),
        _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            ClusterAnswer::Later
        }
        Some(_) | None => ClusterAnswer::Nothing,
    })
}
