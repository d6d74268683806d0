//! Asks a program for its pages over a connection that exists, one after the other.

use anyhow::{Context, Result};
use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::HOST;
use axum::http::{Method, Request, Response};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

/// A connection with a program that has pages.
#[derive(Debug)]
pub struct PageClient {
    sender: SendRequest<Body>,
    /// Moves the bytes.
    _driver: JoinSet<hyper::Result<()>>,
}

impl PageClient {
    /// Over this connection.
    ///
    /// # Errors
    /// It is closed.
    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self> {
        let (sender, moved) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(moved);
        Ok(Self {
            sender,
            _driver: driver,
        })
    }

    /// A page of at most so many bytes, whatever its status.
    ///
    /// # Errors
    /// There is no whole answer, or it is longer.
    pub async fn get(&mut self, page: &str, max_bytes: usize) -> Result<Response<Bytes>> {
        self.ask(Method::GET, page, Body::empty(), max_bytes).await
    }

    pub(crate) async fn ask(
        &mut self,
        method: Method,
        page: &str,
        body: Body,
        max_bytes: usize,
    ) -> Result<Response<Bytes>> {
        let request = Request::builder()
            .method(method)
            .uri(page)
            .header(HOST, "localhost")
            .body(body)
            .context("this is no path")?;
        self.sender.ready().await?;
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        let body = to_bytes(Body::new(body), max_bytes).await?;
        Ok(Response::from_parts(head, body))
    }
}
