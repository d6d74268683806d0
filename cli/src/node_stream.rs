//! A connection with a port of a node, through a proxy and the node's agent, which dials it. Its bytes
//! are in the one stream of a CONNECT over HTTP/2. On the way are Unix sockets, pipes and the API
//! server's proxy, on which a cut would look like an end, and some end both directions when one ends.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use culvert_api::{CLAIMED_USER_HEADER, ClaimedUser, FRAMING_HEADER, FRAMING_HTTP2, NodeName};
use http::Request;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::hosts::{ByteStream, Connection, Host, NoAnswer, NodeWay};

/// The proxy's answer to CONNECT.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Forwarders on the way forget connections in which nothing moves.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes to and from a port of a node. They pass for as long as the connection lives.
pub(crate) type NodeStream = (Connection, Box<dyn ByteStream>);

/// Connects by the proxy of one host.
pub(crate) async fn connect_node(
    host: &Host,
    node: &NodeName,
    port: u16,
) -> Result<NodeStream, NoAnswer> {
    let mut way = host.connect_node(node, port).await?;
    match open(&mut way, node, port).await {
        Ok(stream) => Ok((way.connection, stream)),
        Err(error) => Err(way.connection.unanswered(&error).await),
    }
}

async fn open(way: &mut NodeWay, node: &NodeName, port: u16) -> Result<Box<dyn ByteStream>> {
    let mut stream = way.connection.take_stream()?;
    if let Some(proxy) = &way.proxy {
        ask_for(&mut stream, node, port, proxy.user.as_ref()).await?;
    }
    let mut client = http2::Builder::new(TokioExecutor::new());
    client
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let begun = client.handshake(TokioIo::new(stream)).await;
    let (mut sender, moved) = begun.context("begin HTTP/2")?;
    let mut driver = JoinSet::new();
    driver.spawn(moved);
    let request = Request::connect(format!("{node}:{port}")).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await.context("CONNECT")?;
    let status = response.status();
    ensure!(status.is_success(), "the proxy answers {status}");
    let stream = hyper::upgrade::on(response).await?;
    way.connection.attach((sender, driver));
    Ok(Box::new(TokioIo::new(stream)))
}

/// Asks a proxy's socket for a connection with a port of a node, over HTTP/2.
async fn ask_for(
    stream: &mut Box<dyn ByteStream>,
    node: &NodeName,
    port: u16,
    user: Option<&ClaimedUser>,
) -> Result<()> {
    let mut request = format!("CONNECT {node}:{port} HTTP/1.1\r\nHost: {node}:{port}\r\n");
    if let Some(user) = user {
        request += &format!("{CLAIMED_USER_HEADER}: {user}\r\n");
    }
    let framing = format!("{FRAMING_HEADER}: {FRAMING_HTTP2}\r\n");
    request += &framing;
    request += "\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // Byte by byte: what follows the head is HTTP/2.
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(
            head.len() < MAX_HEAD_BYTES,
            "the proxy's answer to CONNECT has no end"
        );
        let byte = stream.read_u8().await;
        head.push(byte.context("the proxy's answer to CONNECT")?);
    }
    let head = String::from_utf8_lossy(&head);
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200"), "the proxy answers {status}");
    ensure!(
        head.contains(&framing),
        "the proxy is of an earlier build than this program: upgrade it"
    );
    Ok(())
}
