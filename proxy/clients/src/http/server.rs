//! HTTP/1.1 with a client. A connection serves any number of requests, each passed on to the server
//! that it names, and becomes a tunnel with the first CONNECT or upgrade.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use culvert_daemon::Drain;
use culvert_proxy_core::directory::Destination;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use super::backend::{Answer, Backend, IdleBackend, Lasts, NoAnswer, Passed, is_coded};
use super::bridge::bridge;
use super::opened::Opened;
use super::response::Refusal;
use super::{Body, HEAD_MAX};
use crate::has_drained;

/// The time for a request's head, and how long a connection may be idle between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a request that are read before its server takes them, and of an answer before its client
/// does.
const BUFFER_MAX: usize = 64 << 10;

/// What answers the requests of a client.
pub(crate) trait Answers {
    /// The answer to one of `connection`'s requests.
    ///
    /// # Errors
    ///
    /// The server has not answered. The client's connection ends.
    async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> Result<Response<Body>, ServerClosed>;
}

/// A server has ended an idle connection while it got the next request. The client sees the same,
/// because only the client knows whether it may send the request again.
#[derive(Debug, thiserror::Error)]
#[error("the server ended the connection when it got the next request")]
pub(crate) struct ServerClosed(#[source] NoAnswer);

/// Why a request has no answer of its server.
pub(crate) enum NotPassed {
    Refused(Refusal),
    ServerClosed(ServerClosed),
}

impl NotPassed {
    /// The answer of the proxy itself, if it has one.
    pub(crate) fn response(self) -> Result<Response<Body>, ServerClosed> {
        match self {
            Self::Refused(refusal) => Ok(refusal.response()),
            Self::ServerClosed(unanswered) => Err(unanswered),
        }
    }
}

impl From<Refusal> for NotPassed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ServerClosed> for NotPassed {
    fn from(unanswered: ServerClosed) -> Self {
        Self::ServerClosed(unanswered)
    }
}

/// A client's connection.
#[derive(Default)]
pub(crate) struct Connection {
    idle: IdleBackend,
    tunnel: Mutex<Option<Tunnel>>,
}

/// What a connection becomes after an answer.
struct Tunnel {
    client: OnUpgrade,
    opened: Opened,
    /// Bytes that the backend has sent already.
    first: Bytes,
}

/// How connections are served.
pub(crate) fn builder() -> http1::Builder {
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_MAX)
        .max_buf_size(BUFFER_MAX)
        .preserve_header_case(true)
        .auto_date_header(false);
    server
}

/// Serves the client until its connection ends.
pub(crate) async fn serve<C>(
    server: &http1::Builder,
    client: C,
    answers: &impl Answers,
    drain: &Drain,
) -> Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Connection::default();
    {
        let service = service_fn(|request| answers.answer(request, &connection));
        let served = server.serve_connection(TokioIo::new(client), service);
        let mut served = pin!(served.with_upgrades());
        let ended = tokio::select! {
            ended = &mut served => ended,
            () = has_drained(drain) => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        ended.context("HTTP/1.1")?;
    }
    connection.finish().await
}

impl Connection {
    /// Becomes a tunnel after the answer to a request.
    pub(crate) fn become_tunnel(&self, client: OnUpgrade, opened: Opened, first: Bytes) {
        let mut tunnel = self.tunnel.lock();
        *tunnel = Some(Tunnel {
            client,
            opened,
            first,
        });
    }

    /// The answer of the server at `destination`. `open` opens a connection to it, unless one is
    /// idle.
    ///
    /// # Errors
    ///
    /// The server has not answered.
    pub(crate) async fn pass_on(
        &self,
        mut request: Request<Incoming>,
        destination: &Destination,
        open: impl Future<Output = Result<Opened, Refusal>>,
    ) -> Result<Response<Body>, NotPassed> {
        if is_coded(request.headers()) {
            let details = "only the Transfer-Encoding chunked is passed on".to_owned();
            let status = StatusCode::NOT_IMPLEMENTED;
            return Err(Refusal::new(status, "http_request_error", details).into());
        }
        let client = hyper::upgrade::on(&mut request);
        let passed = match self.idle.remove(destination).await {
            Some(backend) => {
                let passed = backend.pass_on(request, Lasts::ManyRequests).await;
                passed.map_err(ServerClosed)?
            }
            None => pass_on_first(request, open).await?,
        };
        Ok(match passed {
            Passed::Answer(answer, backend) => {
                let afterwards = (self.idle.clone(), destination.clone());
                Answer::response(answer, backend, Some(afterwards))
            }
            Passed::Switched(answer, opened, first) => {
                self.become_tunnel(client, opened, first);
                answer.map(|_| nothing())
            }
        })
    }

    /// Serves what the connection has become, and ends the connections to servers.
    async fn finish(self) -> Result<()> {
        let tunnel = self.tunnel.into_inner();
        if let Some(tunnel) = tunnel {
            let client = tunnel.client.await.context("become a tunnel")?;
            bridge(tunnel.opened, tunnel.first, TokioIo::new(client)).await?;
        }
        self.idle.finish().await;
        Ok(())
    }
}

async fn pass_on_first(
    request: Request<Incoming>,
    open: impl Future<Output = Result<Opened, Refusal>>,
) -> Result<Passed, Refusal> {
    let opened = open.await?;
    let backend = Backend::handshake(opened).await?;
    Ok(backend.pass_on(request, Lasts::ManyRequests).await?)
}

/// The connection ends with this answer.
pub(crate) fn last(mut answer: Response<Body>) -> Response<Body> {
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(CONNECTION, close);
    answer
}

/// The body of an answer that has none.
pub(crate) fn nothing() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests;
