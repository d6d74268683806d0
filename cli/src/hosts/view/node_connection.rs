//! A connection with a node, within one that the view has changed to: in the one stream of a CONNECT
//! over HTTP/2. The API server's proxy ends both directions when one ends; there each ends on its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use culvert_api::NodeName;
use http::Request;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::task::JoinSet;

use crate::hosts::Connection;

/// Forwarders on the way forget connections in which nothing moves.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(30);

/// The proxy has the node's answer already.
pub(super) async fn open(connection: Upgraded, node: &NodeName, port: u16) -> Result<Connection> {
    let mut client = http2::Builder::new(TokioExecutor::new());
    client
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let (mut sender, moved) = client.handshake(connection).await.context("begin HTTP/2")?;
    let mut driver = JoinSet::new();
    driver.spawn(moved);
    let request = Request::connect(format!("{node}:{port}")).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await.context("CONNECT")?;
    let status = response.status();
    ensure!(status.is_success(), "the proxy answers {status}");
    let stream = hyper::upgrade::on(response).await?;
    // What moves the bytes ends with the connection.
    let moving = (sender, driver);
    let stream = TokioIo::new(stream);
    Ok(Connection::through(moving, stream, tokio::io::empty()))
}
