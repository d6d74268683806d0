//! DNS over TCP, with limits on connections in total and per client: hickory's own server has none.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hickory_server::net::xfer::Protocol;
use hickory_server::server::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::handler::Handler;

/// Connections at once; a client needs one for a moment.
const CONNECTIONS: usize = 256;
/// Connections of one client address, which may be a resolver for many: no client alone shuts the
/// others out.
const OF_ONE_CLIENT: usize = 32;
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
    let slots = Slots::default();
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, client)) if handler.is_allowed(client.ip()) => {
                let Some(slot) = slots.take(client.ip()) else {
                    continue;
                };
                let handler = Arc::clone(&handler);
                connections.spawn(async move {
                    let _slot = slot;
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

/// How many connections each client has.
#[derive(Clone, Debug, Default)]
struct Slots(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// The right to one connection, until dropped.
#[derive(Debug)]
struct Slot {
    slots: Slots,
    client: IpAddr,
}

impl Slots {
    /// None: one too many, of this client or of all.
    fn take(&self, client: IpAddr) -> Option<Slot> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, of_client) = (
            taken.values().sum::<usize>(),
            taken.get(&client).copied().unwrap_or_default(),
        );
        if all >= CONNECTIONS || of_client >= OF_ONE_CLIENT {
            return None;
        }
        taken.insert(client, of_client + 1);
        Some(Slot {
            slots: self.clone(),
            client,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.client);
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

/// A message with its length before it (RFC 1035, 4.2.2); `None` once the other end has closed.
pub(super) async fn read(stream: &mut TcpStream, longest: u16) -> Result<Option<Vec<u8>>> {
    let length = match stream.read_u16().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error).context("read a message"),
    };
    if length > longest {
        bail!("a message of {length} bytes; {longest} are enough for any");
    }
    let mut message = vec![0; length.into()];
    stream
        .read_exact(&mut message)
        .await
        .context("read a message")?;
    Ok(Some(message))
}

pub(super) async fn write(stream: &mut TcpStream, message: &[u8]) -> Result<()> {
    let length = u16::try_from(message.len()).context("a message longer than TCP's DNS can say")?;
    let mut sent = length.to_be_bytes().to_vec();
    sent.extend_from_slice(message);
    stream.write_all(&sent).await.context("write a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn one_client_has_its_share_and_all_together_have_a_ceiling() {
        let slots = Slots::default();
        let take = |number: u8| {
            (0..CONNECTIONS)
                .map_while(|_| slots.take(client(number)))
                .collect::<Vec<_>>()
        };
        let greedy = take(1);
        assert_eq!(greedy.len(), OF_ONE_CLIENT);
        let others: Vec<_> = (2..=100).map(take).collect();
        assert_eq!(
            others.iter().map(Vec::len).sum::<usize>(),
            CONNECTIONS - OF_ONE_CLIENT
        );
        drop(greedy);
        assert!(slots.take(client(200)).is_some());
        drop(others);
        assert!(slots.0.lock().unwrap().is_empty());
    }
}
