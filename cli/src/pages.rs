//! Pages of programs: of a proxy and a redirector by their admin sockets, of an agent and a hub
//! through a tunnel of their node. One connection serves several pages, one after the other.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use culvert_api::NodeName;
use culvert_daemon::PageClient;
use http::StatusCode;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::hosts::{ByteStream, Connection, Host, NoAnswer, Socket};
use crate::node_stream::connect_node;

/// Tunnels of ten thousand nodes take some MiB.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// A connection with a program that has pages.
pub(crate) struct Pages {
    client: PageClient,
    connection: Connection,
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
        let client = PageClient::over(stream).await?;
        Ok(Self { client, connection })
    }

    /// A page, whatever its status.
    pub(crate) async fn get(&mut self, path: &str) -> Result<(StatusCode, String), NoAnswer> {
        match self.client.get(path, MAX_PAGE_BYTES).await {
            Ok(page) => {
                let text = String::from_utf8_lossy(page.body()).into_owned();
                Ok((page.status(), text))
            }
            Err(error) => Err(self.connection.unanswered(&error).await),
        }
    }

    /// A page of JSON.
    pub(crate) async fn json<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, NoAnswer> {
        let (status, text) = self.get(path).await?;
        Ok(parsed(path, status, &text)?)
    }
}

fn parsed<T: DeserializeOwned>(path: &str, status: StatusCode, text: &str) -> Result<T> {
    ensure!(status.is_success(), "{path}: {status}: {}", text.trim());
    serde_json::from_str(text).with_context(|| format!("{path} is not as expected"))
}
