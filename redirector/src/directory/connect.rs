//! A connection to the directory socket of the proxy.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_api::proto::directory::directory_client::DirectoryClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// A local socket answers at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a proxy that hangs is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Connects to the proxy that listens on this socket.
pub(super) async fn connect(socket: &Path) -> Result<DirectoryClient<Channel>> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_uri: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI only fills the HTTP/2 authority; the connector knows where to go.
    let channel = Endpoint::from_static("http://directory.culvert")
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector(connector)
        .await
        .with_context(|| format!("connect to the proxy at {}", socket.display()))?;
    Ok(DirectoryClient::new(channel))
}
