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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::places::{ByteStream, Connection, Host, NoAnswer, Socket};

/// Tunnels of ten thousand nodes take some MiB.
const MAX_PAGE_BYTES: usize = 64 << 20;
/// The proxy's answer to CONNECT.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// A connection with a program that has pages.
pub(crate) struct Pages {
    sender: SendRequest<Empty<Bytes>>,
    connection: Connection,
    /// Moves the bytes.
    _driver: JoinSet<hyper::Result<()>>,
}

impl Pages {
    /// The pages of a program of a place.
    pub(crate) async fn connect(place: &Host, socket: Socket) -> Result<Self, NoAnswer> {
        Self::over(place.connect(socket).await?).await
    }

    /// The pages of a program on a node, which its agent dials.
    pub(crate) async fn connect_node(
        place: &Host,
        node: &NodeName,
        port: u16,
    ) -> Result<Self, NoAnswer> {
        let mut connection = place.connect(Socket::Connect).await?;
        let mut stream = connection.take_stream()?;
        match ask_for(&mut stream, node, port).await {
            Ok(()) => Ok(Self::start(connection, stream).await?),
            Err(error) => Err(connection.unanswered(&error).await),
        }
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

/// Asks a proxy for a connection with a port of a node.
async fn ask_for(stream: &mut Box<dyn ByteStream>, node: &NodeName, port: u16) -> Result<()> {
    let request = format!("CONNECT {node}:{port} HTTP/1.1\r\nHost: {node}:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // Byte by byte: what follows the head is the node's.
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(
            head.len() < MAX_HEAD_BYTES,
            "the proxy's answer to CONNECT has no end"
        );
        let byte = stream.read_u8().await;
        head.push(byte.context("the proxy's answer to CONNECT")?);
    }
    let head = String::from_utf8_lossy(&head);
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200"), "the proxy answers {status}");
    Ok(())
}
