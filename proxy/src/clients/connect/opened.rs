//! A connection to a destination, for clients whose bytes come in TLS: the end of a pair of Unix
//! sockets whose other end is relayed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use culvert_daemon::Worker;
use culvert_tunnel::{RelayError, Socket};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::{Connect, DirectRequest, Plan};
use crate::directory::Destination;
use crate::streams::error::RouteError;
use crate::streams::live::Frontend;
use crate::streams::routed::RoutedClient;

/// A connection whose backend has answered.
pub(super) struct Opened {
    /// The client's end. It reads an end if the backend ended its direction, and none after a cut.
    pub(super) socket: UnixStream,
    pub(super) relay: Relay,
}

type Relaying = AbortOnDropHandle<Result<(), RelayError>>;

/// The relay of the other end. If it is dropped before its end, the backend sees a reset.
pub(super) struct Relay {
    /// `None` after its end.
    task: Option<Relaying>,
    /// Keeps the other end open, so that the client's end reads no end after a cut.
    other_end: Option<OwnedFd>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unopened {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("the proxy has no socket for the connection")]
    Socket(#[from] io::Error),
}

impl Relay {
    /// Waits for the end. Afterwards the client's end reads what is left, and then an end.
    ///
    /// # Errors
    ///
    /// The connection was cut: what was read may be incomplete.
    pub(super) async fn ended(&mut self) -> Result<(), RelayError> {
        let Some(task) = &mut self.task else {
            return Ok(());
        };
        // The thread ends with the process; only then is there no result.
        let ended = task
            .await
            .unwrap_or_else(|gone| Err(RelayError::Socket(io::Error::other(gone))));
        self.task = None;
        ended?;
        self.other_end = None;
        Ok(())
    }

    /// Completes when the connection is cut.
    pub(super) async fn cut(&mut self) -> RelayError {
        match self.ended().await {
            Err(cut) => cut,
            Ok(()) => std::future::pending().await,
        }
    }
}

impl Connect {
    /// Opens a connection to `destination`. Dropping the future cancels the dial.
    pub(super) async fn open(
        &self,
        destination: Destination,
        client: String,
    ) -> Result<Opened, Unopened> {
        let plan = self.decide(destination, Frontend::ConnectTls, client)?;
        let (socket, other) = UnixStream::pair()?;
        let other_end = Some(other.as_fd().try_clone_to_owned()?);
        let task = match plan {
            Plan::Node(routed) => open_stream(routed, other.into()).await?,
            Plan::Direct(request) => Box::pin(self.dial(request, other.into())).await?,
        };
        let relay = Relay {
            task: Some(task),
            other_end,
        };
        Ok(Opened { socket, relay })
    }

    async fn dial(&self, mut request: DirectRequest, client: Socket) -> Result<Relaying, Unopened> {
        let backend = request.dial(&self.direct).await?;
        let task = async move { request.relay(client, backend, Bytes::new()).await };
        Ok(Worker::current().run(task))
    }
}

/// Opens the stream on the thread of its tunnel, which then relays it.
async fn open_stream(mut routed: RoutedClient, client: Socket) -> Result<Relaying, Unopened> {
    let worker = routed.worker().unwrap_or_else(Worker::current);
    let client = client.detach()?;
    let (opened_tx, opened) = oneshot::channel();
    let task = worker.run(async move {
        let client = client.attach().map_err(RelayError::Socket)?;
        let (opened, stream) = match routed.open(None).await {
            Ok(stream) => (Ok(()), Some(stream)),
            Err(error) => (Err(error), None),
        };
        // Whoever waited for it is gone if nobody takes it; then this task ends too.
        let _told = opened_tx.send(opened);
        match stream {
            Some(mut stream) => routed.relay(&mut stream, &[], &client).await,
            None => Ok(()),
        }
    });
    opened
        .await
        .map_err(|_| io::Error::other("too many sockets"))??;
    Ok(task)
}
