//! Asks a running program of this host over its admin socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use axum::body::{Body, Bytes};
use axum::http::{Method, Response, StatusCode};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::page_client::PageClient;

/// The program answers from memory, so it answers fast.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Larger than any answer for people.
const MAX_TEXT: usize = 64 << 10;

/// The admin socket of a program.
#[derive(Clone, Copy, Debug)]
pub struct AdminSocket<'a>(pub &'a Path);

impl AdminSocket<'_> {
    /// The status and the text of a page.
    ///
    /// # Errors
    /// No program answers there in time.
    pub async fn get(&self, page: &str) -> Result<(StatusCode, String)> {
        let answer = self.page(page, MAX_TEXT).await?;
        Ok((answer.status(), text(&answer)))
    }

    /// A page of at most so many bytes, with its status and headers.
    ///
    /// # Errors
    /// No program answers there in time, or the page is longer.
    pub async fn page(&self, page: &str, max_bytes: usize) -> Result<Response<Bytes>> {
        self.ask(Method::GET, page, Body::empty(), max_bytes).await
    }

    /// Sends a text to a page.
    ///
    /// # Errors
    /// No program answers there in time.
    pub async fn put(&self, page: &str, sent: &str) -> Result<(StatusCode, String)> {
        let body = Body::from(sent.to_owned());
        let answer = self.ask(Method::PUT, page, body, MAX_TEXT).await?;
        Ok((answer.status(), text(&answer)))
    }

    async fn ask(
        &self,
        method: Method,
        page: &str,
        body: Body,
        max_bytes: usize,
    ) -> Result<Response<Bytes>> {
        let asked = async {
            let mut client = PageClient::over(self.connect().await?).await?;
            let answer = client.ask(method, page, body, max_bytes).await;
            answer.with_context(|| format!("ask on the admin socket {}", self.0.display()))
        };
        timeout(ANSWER_TIMEOUT, asked).await.map_err(|_| {
            anyhow!(
                "no answer on the admin socket {} within {} s",
                self.0.display(),
                ANSWER_TIMEOUT.as_secs()
            )
        })?
    }

    async fn connect(&self) -> Result<UnixStream> {
        UnixStream::connect(self.0).await.map_err(|error| {
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
        })
    }
}

fn text(answer: &Response<Bytes>) -> String {
    String::from_utf8_lossy(answer.body()).into_owned()
}
