//! gRPC services on the proxy's Unix sockets: control and directory.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::Drain;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tower::Service;

use crate::sockets::listen;
use crate::sockets::local_socket::LocalSocket;

/// The time that calls may continue during a drain.
const PARTING: Duration = Duration::from_secs(1);

/// Serves a gRPC service on the socket until the drain begins; then calls may end.
pub async fn serve<S>(
    socket: LocalSocket,
    name: &'static str,
    service: S,
    drain: Drain,
) -> Result<()>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let draining = drain.clone();
    listen::serve(socket, name, drain, move |stream, calls: &TaskTracker| {
        calls.spawn(serve_calls(stream, service.clone(), draining.clone()));
    })
    .await
}

async fn serve_calls<S>(stream: UnixStream, service: S, drain: Drain)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.timer(TokioTimer::new());
    let mut served = std::pin::pin!(
        server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
    );
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = drain.begun() => {
            served.as_mut().graceful_shutdown();
            // A connection without any request would never end.
            timeout(PARTING, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "local connection ended");
    }
}
