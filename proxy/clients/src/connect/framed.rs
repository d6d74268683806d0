//! Clients of the Unix socket that want their bytes in a stream of HTTP/2, in which a cut does not look
//! like an end.

use std::io;

use anyhow::Result;
use culvert_api::{FRAMING_HEADER, FRAMING_HTTP2};
use culvert_daemon::chain;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio_util::task::TaskTracker;

use super::user::UserConnection;
use super::{Connect, Plan};
use crate::http::response::Refusal;

impl Connect {
    /// Serves a client in a task among `connections`.
    pub(super) fn spawn_framed(
        self,
        client: UnixStream,
        plan: Plan,
        connections: &TaskTracker,
    ) -> io::Result<()> {
        let client = client.into_std()?;
        let worker = self.workers.next();
        let served = async move {
            // Boxed, because few clients take this path.
            if let Err(error) = Box::pin(self.serve_framed(client, plan)).await {
                let reason = chain(&*error);
                tracing::debug!(reason, "a framed connection of the Unix socket was cut");
            }
        };
        connections.spawn_on(served, worker.handle());
        Ok(())
    }

    async fn serve_framed(self, client: std::os::unix::net::UnixStream, plan: Plan) -> Result<()> {
        let mut client = UnixStream::from_std(client)?;
        let opened = tokio::select! {
            opened = self.open_plan(plan) => opened,
            () = left(&client) => return Ok(()),
        };
        match opened {
            Ok(opened) => {
                let answer = format!(
                    "HTTP/1.1 200 Connection Established\r\n{FRAMING_HEADER}: {FRAMING_HTTP2}\r\n\r\n"
                );
                client.write_all(answer.as_bytes()).await?;
                UserConnection::from(opened).relay(client).await
            }
            Err(error) => Ok(client.write_all(&Refusal::from(&error).render()).await?),
        }
    }
}

/// Completes when a client leaves, or sends what it may send after the answer only.
async fn left(client: &UnixStream) {
    while client.readable().await.is_ok() {
        match client.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return,
        }
    }
}
