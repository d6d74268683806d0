//! A connection with a port of a node, through a proxy and the node's agent, which dials it.

use anyhow::{Context, Result, bail, ensure};
use culvert_api::NodeName;
use culvert_api::proto::control as proto;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::control::Control;
use crate::places::{ByteStream, Connection, Host, NoAnswer, Socket};
use crate::session::Session;

/// The proxy's answer to CONNECT.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// Bytes to and from a port of a node. They pass for as long as the connection lives.
pub(crate) type NodeStream = (Connection, Box<dyn ByteStream>);

/// Connects by the proxy of one place.
pub(crate) async fn connect_node(
    place: &Host,
    node: &NodeName,
    port: u16,
) -> Result<NodeStream, NoAnswer> {
    let mut connection = place.connect(Socket::Connect).await?;
    let mut stream = connection.take_stream()?;
    match ask_for(&mut stream, node, port).await {
        Ok(()) => Ok((connection, stream)),
        Err(error) => Err(connection.unanswered(&error).await),
    }
}

/// The place to connect by: the first to answer that has a tunnel of the node, or else the first to
/// answer, because its proxy may reach another one.
///
/// # Errors
/// No host answers.
pub(crate) async fn nearest_place<'a>(session: &'a Session, node: &NodeName) -> Result<&'a Host> {
    let mut questions = FuturesUnordered::new();
    for place in &session.places.cloud {
        questions.push(async move {
            let asked = timeout(session.timeout, tunnels(place, node)).await;
            (place, asked)
        });
    }
    let mut answering = None;
    let mut reason = String::new();
    while let Some((place, asked)) = questions.next().await {
        match asked {
            Ok(Ok(0)) => answering = answering.or(Some(place)),
            Ok(Ok(_)) => return Ok(place),
            Ok(Err(unanswered)) => reason = format!("{}: {}", place.name(), unanswered.text),
            Err(_) => reason = format!("{}: no answer in time", place.name()),
        }
    }
    match answering {
        Some(place) => Ok(place),
        None if reason.is_empty() => bail!("this host has no proxy: give --ssh HOST or --context"),
        None => bail!("no host has answered: {reason}"),
    }
}

/// How many tunnels of the node end there.
async fn tunnels(place: &Host, node: &NodeName) -> Result<u32, NoAnswer> {
    let mut control = Control::connect(place).await?;
    let nodes = control.list_nodes(proto::ListNodesRequest {}).await?.nodes;
    let found = nodes.iter().find(|status| status.name == node.as_str());
    Ok(found.map_or(0, |status| status.tunnels))
}

/// Asks a proxy for a connection with a port of a node.
async fn ask_for(stream: &mut Box<dyn ByteStream>, node: &NodeName, port: u16) -> Result<()> {
    let request = format!("CONNECT {node}:{port} HTTP/1.1\r\nHost: {node}:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // Byte by byte: what follows the head is the node's.
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
    Ok(())
}
