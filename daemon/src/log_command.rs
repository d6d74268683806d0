//! `PROGRAM log FILTER`: changes what a running program logs, over its admin socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use axum::body::{Body, to_bytes};
use axum::http::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The program answers from memory, so it answers fast.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Larger than any answer.
const MAX_ANSWER: usize = 64 << 10;

/// Changes what the running program logs, until the next change or restart.
#[derive(clap::Args, Clone, Debug)]
pub struct LogCommand {
    /// A level such as `info`, or filters such as `info,culvert_tunnel=debug`.
    #[arg(value_name = "FILTER")]
    filter: String,
}

impl LogCommand {
    #[cfg(test)]
    pub(crate) fn new(filter: &str) -> Self {
        Self {
            filter: filter.to_owned(),
        }
    }

    /// Sends the filter to the program that listens on the socket.
    ///
    /// # Errors
    /// No program answers there, or it refuses the filter.
    pub async fn run(&self, socket: &Path) -> Result<()> {
        timeout(ANSWER_TIMEOUT, self.put(socket))
            .await
            .map_err(|_| {
                anyhow!(
                    "no answer on the admin socket {} within {} s",
                    socket.display(),
                    ANSWER_TIMEOUT.as_secs()
                )
            })?
    }

    async fn put(&self, socket: &Path) -> Result<()> {
        let stream = UnixStream::connect(socket).await.map_err(|error| {
            let hint = if error.kind() == std::io::ErrorKind::PermissionDenied {
                "only root and the program's own user may use it: try with sudo"
            } else {
                "is the program running on this host? If it has another --admin-socket, give the \
                 same here"
            };
            anyhow!(
                "no answer on the admin socket {}: {error}: {hint}",
                socket.display()
            )
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .context("speak HTTP")?;
        let request = Request::put("/debug/log")
            .header("host", "localhost")
            .body(Body::from(self.filter.clone()));
        let answered = async {
            let answer = sender
                .send_request(request.context("make the request")?)
                .await
                .context("send the filter")?;
            let status = answer.status();
            let body = to_bytes(Body::new(answer.into_body()), MAX_ANSWER)
                .await
                .context("read the answer")?;
            if status.is_success() {
                Ok(())
            } else {
                bail!(
                    "the program answers {status}: {}",
                    String::from_utf8_lossy(&body).trim()
                )
            }
        };
        let mut connection = std::pin::pin!(connection);
        let mut answered = std::pin::pin!(answered);
        tokio::select! {
            answered = &mut answered => answered,
            // The connection may end directly after the answer.
            _ = &mut connection => answered.await,
        }
    }
}
