//! `culvert connect`: standard input and output lead to a port of a node, as ssh's ProxyCommand wants
//! it.

use std::io::{self, Read, Write, stdin, stdout};
use std::thread;

use anyhow::{Context, Result, anyhow};
use culvert_api::Query;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::forward::node_and_port;
use crate::hosts::ByteStream;
use crate::nearest::nearest_host;
use crate::node_stream::connect_node;
use crate::session::Session;

/// The port of ssh.
const USUAL_PORT: u16 = 22;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// Chunks that wait.
const MAX_CHUNKS: usize = 4;

/// Passes bytes until the node's side ends.
///
/// # Errors
/// The node is not reached, or the connection is lost.
pub(super) async fn run(session: &Session, destination: &Query) -> Result<()> {
    let (node, port) = node_and_port(destination, USUAL_PORT)?;
    let host = nearest_host(session, &node).await?;
    let connected = timeout(session.timeout, connect_node(host, &node, port)).await;
    let connected = connected.with_context(|| format!("{node}:{port} by {}: late", host.name()))?;
    let (_connection, stream) = connected.map_err(|unanswered| {
        anyhow!("{}; `culvert why {node}:{port}` says more", unanswered.text)
    })?;
    let (mut from_node, mut to_node) = split(stream);
    let passed = pass(&mut from_node, &mut to_node).await;
    passed.with_context(|| {
        format!("the connection with {node}:{port} was cut: `culvert observe` says why")
    })
}

/// Passes both directions.
async fn pass(
    from_node: &mut ReadHalf<Box<dyn ByteStream>>,
    to_node: &mut WriteHalf<Box<dyn ByteStream>>,
) -> io::Result<()> {
    let downwards = print(from_node);
    tokio::pin!(downwards);
    let sent = tokio::select! {
        ended = &mut downwards => return ended,
        sent = send(to_node) => sent,
    };
    // The answer may still come, also that of a node that reads no more.
    downwards.await?;
    sent
}

/// Sends standard input, and its end.
async fn send(to_node: &mut WriteHalf<Box<dyn ByteStream>>) -> io::Result<()> {
    let (chunk_tx, mut chunk_rx) = mpsc::channel(MAX_CHUNKS);
    // It ends with the process: a read of standard input cannot be cancelled.
    thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        while let Ok(count @ 1..) = stdin().read(&mut chunk) {
            if chunk_tx.blocking_send(chunk[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    while let Some(chunk) = chunk_rx.recv().await {
        to_node.write_all(&chunk).await?;
    }
    to_node.shutdown().await
}

/// Prints what comes, each chunk as soon as it is there.
async fn print(from_node: &mut ReadHalf<Box<dyn ByteStream>>) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = from_node.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        let mut out = stdout();
        out.write_all(&chunk[..count])?;
        out.flush()?;
    }
}
