//! DNS over TCP, with limits on connections in total and per client: hickory's own server has none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::Quota;
use hickory_server::net::xfer::Protocol;
use hickory_server::server::Request;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::framing::{read, write};
use super::handler::Handler;

/// Connections at once; a client needs one for a moment.
const CONNECTIONS: usize = 256;
/// Limit of connections of one client address, which may be a resolver for many clients: no single
/// client uses up the total.
const MAX_PER_CLIENT: usize = 32;
/// Limit for receiving a question, for sending an answer, and between two questions (RFC 7766 asks
/// for a few seconds).
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, as without free file descriptors.
const BACK_OFF: Duration = Duration::from_millis(100);
/// A question is a name of at most 255 bytes and a few options.
const LONGEST_QUESTION: u16 = 4096;

/// Accepts connections until it is dropped.
pub(super) async fn serve(listener: TcpListener, handler: Arc<Handler>) -> Result<()> {
    let mut connections = JoinSet::new();
    let quota = Quota::new(MAX_PER_CLIENT, CONNECTIONS);
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, client)) if handler.is_allowed(client.ip()) => {
                let Some(permit) = quota.acquire(client.ip()) else {
                    continue;
                };
                let handler = Arc::clone(&handler);
                connections.spawn(async move {
                    let _permit = permit;
                    if let Err(error) = converse(stream, client, &handler).await {
                        tracing::debug!(
                            client.addr = %client,
                            reason = format!("{error:#}"),
                            "DNS over TCP ended"
                        );
                    }
                });
            }
            // A client that may not ask is closed, like one over the limit above.
            Ok(_dropped) => {}
            Err(error) => {
                tracing::warn!(%error, "DNS connection not accepted");
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }
}

/// Answers one question after another until the client closes.
async fn converse(mut stream: TcpStream, client: SocketAddr, handler: &Handler) -> Result<()> {
    while let Some(question) = timeout(TIMEOUT, read(&mut stream, LONGEST_QUESTION))
        .await
        .context("wait for a question")??
    {
        let request =
            Request::from_bytes(question, client, Protocol::Tcp).context("parse the question")?;
        let answer = handler
            .respond(&request)
            .await
            .context("encode the answer")?;
        timeout(TIMEOUT, write(&mut stream, &answer))
            .await
            .context("wait for the client")??;
    }
    Ok(())
}
