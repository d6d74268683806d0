//! Connections of people with nodes. The caller has authorized the user.
//!
//! The client is a proxy of HTTP upgrades, such as that of the API server for pods, which ends both
//! directions of a connection when one of them ends, or is on a Unix socket, which has no reset. So
//! the bytes go over HTTP/2, in the one stream of a CONNECT: there each direction ends on its own,
//! and a cut does not look like an end.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use culvert_api::NodeName;
use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::error::RouteError;
use culvert_proxy_streams::limits::ClientKind;
use culvert_proxy_streams::live::Frontend;
use culvert_proxy_streams::routed::RoutedClient;
use h2::server::{Builder, Connection};
use http::{Method, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::http2::{SEND_BUFFER, STREAM_WINDOW, tunnel};
use super::{Connect, HEAD_TIMEOUT};
use crate::http::bridge::STALLED;
use crate::http::opened::{Opened, Unopened};

/// A connection with a port of a node. Its backend has answered.
pub struct UserConnection(Opened);

impl From<Opened> for UserConnection {
    fn from(opened: Opened) -> Self {
        Self(opened)
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NotConnected(#[from] Unopened);

impl Connect {
    /// Opens a connection with a port of a node, and of nothing else. `user` is the client in logs.
    /// Dropping the future cancels the dial.
    ///
    /// # Errors
    ///
    /// The node or the port is not reached; this is already recorded.
    pub async fn open_for_user(
        &self,
        node: NodeName,
        port: u16,
        user: String,
    ) -> Result<UserConnection, NotConnected> {
        let destination = Destination::Node(node, port);
        let mut record = self.router.start_record(Frontend::View, user, &destination);
        let route = match self.router.route(destination) {
            Ok(route) => route,
            Err(error) => {
                let error = RouteError::from(error);
                record.record_refusal(&error);
                return Err(NotConnected(error.into()));
            }
        };
        let client = ClientKind::Connect;
        let routed = RoutedClient::new(self.router.clone(), route, client, record);
        Ok(UserConnection(Opened::stream(routed).await?))
    }
}

impl UserConnection {
    /// Relays until both directions have ended. If the future is dropped before, the backend sees a
    /// reset.
    ///
    /// # Errors
    ///
    /// The client has left or does not speak the protocol, or the connection was cut.
    pub async fn relay<C>(self, client: C) -> Result<()>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let mut server = Builder::new();
        server
            .max_concurrent_streams(1)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW)
            .max_send_buffer_size(SEND_BUFFER);
        let handshake = timeout(HEAD_TIMEOUT, server.handshake::<_, Bytes>(client)).await;
        let mut connection = handshake
            .context("the client began no HTTP/2")?
            .context("HTTP/2")?;
        let accepted = timeout(HEAD_TIMEOUT, connection.accept()).await;
        let accepted = accepted.context("the client sent no request")?;
        let (request, mut respond) = accepted.context("the client has left")??;
        ensure!(request.method() == Method::CONNECT, "this is no CONNECT");
        let to_client = respond.send_response(Response::new(()), false)?;
        let relayed = tunnel(self.0, request.into_body(), to_client);
        tokio::select! {
            // The future is large, and few clients take this path.
            relayed = Box::pin(relayed) => relayed?,
            left = until_left(&mut connection) => return left,
        }
        connection.graceful_shutdown();
        let sent = timeout(STALLED, until_closed(&mut connection)).await;
        sent.context("the client does not take the last bytes")?
    }
}

/// Moves the connection's bytes until the client has left. There is one request only.
async fn until_left<C>(connection: &mut Connection<C, Bytes>) -> Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    match connection.accept().await {
        Some(Ok(_)) => bail!("the client sent a second request"),
        Some(Err(error)) => Err(error).context("HTTP/2"),
        None => bail!("the client has left"),
    }
}

/// Moves the last bytes, until the client has closed the connection. It may do so once it has them,
/// before the last frames about the connection itself.
async fn until_closed<C>(connection: &mut Connection<C, Bytes>) -> Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    match connection.accept().await {
        Some(Ok(_)) | None => Ok(()),
        Some(Err(error)) if error.is_io() => Ok(()),
        Some(Err(error)) => Err(error).context("HTTP/2"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use culvert_daemon::Worker;
    use culvert_tunnel::{RelayError, Socket};
    use h2::{RecvStream, SendStream};
    use http::Request;
    use tokio::io::DuplexStream;
    use tokio::task::JoinSet;

    use super::*;
    use crate::http::opened::Pair;

    /// A client that has begun its CONNECT. Its bytes move until the set is dropped.
    struct Client {
        to_node: SendStream<Bytes>,
        from_node: RecvStream,
        driver: JoinSet<Result<(), h2::Error>>,
    }

    impl Client {
        async fn connect(io: DuplexStream) -> Result<Self, h2::Error> {
            let (sender, connection) = h2::client::handshake(io).await.unwrap();
            let mut driver = JoinSet::new();
            driver.spawn(connection);
            let mut sender = sender.ready().await.unwrap();
            let request = Request::connect("edge-1:22").body(()).unwrap();
            let (response, to_node) = sender.send_request(request, false).unwrap();
            Ok(Self {
                to_node,
                from_node: response.await?.into_body(),
                driver,
            })
        }
    }

    /// A connection whose backend is this.
    fn opened<F>(backend: impl FnOnce(Socket) -> F) -> UserConnection
    where
        F: Future<Output = Result<(), RelayError>> + Send + 'static,
    {
        let (pair, other) = Pair::new().unwrap();
        UserConnection(pair.relayed(Worker::current().run(backend(other))))
    }

    /// Sends all back once the client has ended its direction.
    async fn echo_at_the_end(socket: Socket) -> Result<(), RelayError> {
        let mut heard = BytesMut::new();
        loop {
            socket.readable().await.map_err(RelayError::Socket)?;
            if let Ok(0) = socket.try_read(&mut heard) {
                break;
            }
        }
        let sent = socket.write_all(&heard).await;
        sent.map_err(RelayError::Socket)
    }

    #[tokio::test]
    async fn each_direction_ends_on_its_own() {
        let (near, far) = tokio::io::duplex(64 << 10);
        let asked = async {
            let mut client = Client::connect(near).await.unwrap();
            let end = true;
            client
                .to_node
                .send_data("still there?".into(), end)
                .unwrap();
            let mut answer = BytesMut::new();
            while let Some(bytes) = client.from_node.data().await {
                answer.extend_from_slice(&bytes.unwrap());
            }
            assert_eq!(answer, "still there?");
            let Client { mut driver, .. } = client;
            driver.join_next().await.unwrap().unwrap().unwrap();
        };
        let (served, ()) = tokio::join!(opened(echo_at_the_end).relay(far), asked);
        served.unwrap();
    }

    #[tokio::test]
    async fn a_cut_does_not_look_like_an_end() {
        let (near, far) = tokio::io::duplex(64 << 10);
        let asked = async {
            // The answer may be cut too.
            if let Ok(mut client) = Client::connect(near).await {
                client.from_node.data().await.unwrap().unwrap_err();
            }
        };
        let cut = opened(|_| async { Err(RelayError::Moved) });
        let (served, ()) = tokio::join!(cut.relay(far), asked);
        served.unwrap_err();
    }
}
