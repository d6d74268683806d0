//! Pages of programs: of a proxy and a redirector by their admin sockets, of an agent and a hub
//! through a tunnel of their node. One connection serves several pages, one after the other.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use culvert_api::NodeName;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::hosts::{ByteStream, Connection, Host, NoAnswer, Socket};
use crate::node_stream::connect_node;

/// Tunnels of ten thousand nodes take some MiB.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// A connection with a program that has pages.
pub(crate) struct Pages {
    sender: SendRequest<Empty<Bytes>>,
    connection: Connection,
    /// Moves the bytes.
    _driver: JoinSet<hyper::Result<()>>,
}

impl Pages {
    /// The pages of a program of a host.
    pub(crate) async fn connect(host: &Host, socket: Socket) -> Result<Self, NoAnswer> {
        Self::over(host.connect(socket).await?).await
    }

    /// The pages of a program on a node, which its agent dials.
    pub(crate) async fn connect_node(
        host: &Host,
        node: &NodeName,
        port: u16,
    ) -> Result<Self, NoAnswer> {
        let (connection, stream) = connect_node(host, node, port).await?;
        Ok(Self::start(connection, stream).await?)
    }

    /// The pages of a program of this host.
    pub(crate) async fn connect_socket(socket: &Path) -> Result<Self, NoAnswer> {
        let stream = UnixStream::connect(socket).await;
        let stream = stream.with_context(|| format!("nothing answers on {}", socket.display()))?;
        Self::over(Connection::direct(stream)).await
    }

    async fn over(mut connection: Connection) -> Result<Self, NoAnswer> {
        let stream = connection.take_stream()?;
        Ok(Self::start(connection, stream).await?)
    }

    async fn start(connection: Connection, stream: Box<dyn ByteStream>) -> Result<Self> {
        let (sender, moved) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(moved);
        Ok(Self {
            sender,
            connection,
            _driver: driver,
        })
    }

    /// A page, whatever its status.
    pub(crate) async fn get(&mut self, path: &str) -> Result<(StatusCode, String), NoAnswer> {
        match self.fetch(path).await {
            Ok(page) => Ok(page),
            Err(error) => Err(self.connection.unanswered(&error).await),
        }
    }

    /// A page of JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, NoAnswer> {
        let (status, text) = self.get(path).await?;
        Ok(parsed(path, status, &text)?)
    }

    async fn fetch(&mut self, path: &str) -> Result<(StatusCode, String)> {
        let request = Request::get(path)
            .header(HOST, "localhost")
            .body(Empty::new())
            .context("this is no path")?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_PAGE_BYTES);
        let body = body.collect().await.map_err(anyhow::Error::from_boxed)?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        Ok((status, text))
    }
}

fn parsed<T: DeserializeOwned>(path: &str, status: StatusCode, text: &str) -> Result<T> {
    ensure!(status.is_success(), "{path}: {status}: {}", text.trim());
    serde_json::from_str(text).with_context(|| format!("{path} is not as expected"))
}
