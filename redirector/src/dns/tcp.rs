//! DNS over TCP. hickory's own server takes any number of connections; ours has a ceiling.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hickory_server::net::xfer::Protocol;
use hickory_server::server::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::handler::Handler;

/// Connections at once; a client needs one, for a moment.
const CONNECTIONS: usize = 256;
/// For a whole question, for a whole answer, and between two questions (RFC 7766 wants a few seconds).
const TIMEOUT: Duration = Duration::from_secs(10);
/// After an accept that failed, as it does without free file descriptors.
const BACK_OFF: Duration = Duration::from_millis(100);
/// A question is a name of at most 255 bytes and a few options.
const LONGEST_QUESTION: u16 = 4096;

/// Accepts for ever.
pub(super) async fn serve(listener: TcpListener, handler: Arc<Handler>) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, client)) if connections.len() < CONNECTIONS && handler.is_allowed(client.ip()) => {
                let handler = Arc::clone(&handler);
                connections.spawn(async move {
                    if let Err(error) = converse(stream, client, &handler).await {
                        tracing::debug!(client.addr = %client, cause = format!("{error:#}"), "DNS over TCP ended");
                    }
                });
            }
            // One too many, or one that may not ask: closed.
            Ok(_dropped) => {}
            Err(error) => {
                tracing::warn!(%error, "DNS connection not accepted");
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }
}

/// Answers one question after the other until the client leaves.
async fn converse(mut stream: TcpStream, client: SocketAddr, handler: &Handler) -> Result<()> {
    while let Some(question) = timeout(TIMEOUT, read(&mut stream)).await.context("wait for a question")?? {
        let request = Request::from_bytes(question, client, Protocol::Tcp).context("parse the question")?;
        let answer = handler.respond(&request).context("encode the answer")?;
        timeout(TIMEOUT, write(&mut stream, &answer)).await.context("wait for the client")??;
    }
    Ok(())
}

/// A question with its length before it (RFC 1035, 4.2.2); none when the client has closed.
async fn read(stream: &mut TcpStream) -> Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error).context("read a question"),
    };
    if length > LONGEST_QUESTION {
        bail!("a question of {length} bytes; {LONGEST_QUESTION} are enough for any");
    }
    let mut question = vec![0; length.into()];
    stream.read_exact(&mut question).await.context("read a question")?;
    Ok(Some(question))
}

async fn write(stream: &mut TcpStream, answer: &[u8]) -> Result<()> {
    let length = u16::try_from(answer.len()).context("an answer longer than TCP's DNS can say")?;
    let mut message = length.to_be_bytes().to_vec();
    message.extend_from_slice(answer);
    stream.write_all(&message).await.context("write an answer")
}
