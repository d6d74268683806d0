//! Asks a running program of this host over its admin socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The program answers from memory, so it answers fast.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Larger than any answer.
const MAX_ANSWER: usize = 64 << 10;

/// The admin socket of a program.
#[derive(Clone, Copy, Debug)]
pub struct AdminSocket<'a>(pub &'a Path);

impl AdminSocket<'_> {
    /// The status and the text of a page.
    ///
    /// # Errors
    /// No program answers there in time.
    pub async fn get(&self, page: &str) -> Result<(StatusCode, String)> {
        self.ask(Method::GET, page, Body::empty()).await
    }

    /// Sends a text to a page.
    ///
    /// # Errors
    /// No program answers there in time.
    pub async fn put(&self, page: &str, text: &str) -> Result<(StatusCode, String)> {
        self.ask(Method::PUT, page, Body::from(text.to_owned()))
            .await
    }

    async fn ask(&self, method: Method, page: &str, body: Body) -> Result<(StatusCode, String)> {
        let request = Request::builder()
            .method(method)
            .uri(page)
            .header("host", "localhost")
            .body(body)
            .context("make the request")?;
        let answered = timeout(ANSWER_TIMEOUT, self.send(request)).await;
        answered.map_err(|_| {
            anyhow!(
                "no answer on the admin socket {} within {} s",
                self.0.display(),
                ANSWER_TIMEOUT.as_secs()
            )
        })?
    }

    async fn send(&self, request: Request<Body>) -> Result<(StatusCode, String)> {
        let stream = UnixStream::connect(self.0).await.map_err(|error| {
            let hint = if error.kind() == std::io::ErrorKind::PermissionDenied {
                "only root and the program's own user may use it: try with sudo"
            } else {
                "is the program running on this host? If it has another --admin-socket, give the \
                 same here"
            };
            anyhow!(
                "no answer on the admin socket {}: {error}: {hint}",
                self.0.display()
            )
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .context("speak HTTP")?;
        let answered = async {
            let answer = sender.send_request(request).await;
            let answer = answer.context("send the request")?;
            let status = answer.status();
            let body = to_bytes(Body::new(answer.into_body()), MAX_ANSWER)
                .await
                .context("read the answer")?;
            Ok((status, String::from_utf8_lossy(&body).into_owned()))
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
