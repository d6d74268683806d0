//! A connection with a port of a node, through a proxy and the node's agent, which dials it.

use anyhow::{Context, Result, ensure};
use culvert_api::{CLAIMED_USER_HEADER, ClaimedUser, NodeName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::hosts::{ByteStream, Connection, Host, NoAnswer, NodeWay};

/// The proxy's answer to CONNECT.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// Bytes to and from a port of a node. They pass for as long as the connection lives.
pub(crate) type NodeStream = (Connection, Box<dyn ByteStream>);

/// Connects by the proxy of one host.
pub(crate) async fn connect_node(
    host: &Host,
    node: &NodeName,
    port: u16,
) -> Result<NodeStream, NoAnswer> {
    let (mut connection, user) = match host.connect_node(node, port).await? {
        NodeWay::Proxy(connection, user) => (connection, user),
        NodeWay::Node(mut connection) => {
            let stream = connection.take_stream()?;
            return Ok((connection, stream));
        }
    };
    let mut stream = connection.take_stream()?;
    match ask_for(&mut stream, node, port, user.as_ref()).await {
        Ok(()) => Ok((connection, stream)),
        Err(error) => Err(connection.unanswered(&error).await),
    }
}

/// Asks a proxy for a connection with a port of a node.
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
    request += "\r\n";
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
