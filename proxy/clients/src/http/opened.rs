//! A connection to a destination, for clients that the proxy talks with: the end of a pair of Unix
//! sockets whose other end is relayed.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_daemon::Worker;
use culvert_proxy_streams::error::RouteError;
use culvert_proxy_streams::routed::RoutedClient;
use culvert_tunnel::{RelayError, Socket};
use socket2::SockRef;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

/// A connection whose backend has answered.
pub(crate) struct Opened {
    /// The client's end. It reads an end if the backend ended its direction, and none after a cut.
    pub(crate) socket: UnixStream,
    pub(crate) relay: Relay,
}

/// The task that relays.
pub(crate) type Relaying = AbortOnDropHandle<Result<(), RelayError>>;

/// The relay of the other end. If it is dropped before its end, the backend sees a reset.
pub(crate) struct Relay {
    /// `None` after its end.
    task: Option<Relaying>,
    /// Keeps the other end open, so that the client's end reads no end after a cut.
    other_end: Option<OwnedFd>,
}

/// Both ends, before the other one is relayed.
pub(crate) struct Pair {
    socket: UnixStream,
    other_end: OwnedFd,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unopened {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("the proxy has no socket for the connection")]
    Socket(#[from] io::Error),
}

impl Pair {
    /// A pair, and its other end, which is to be relayed.
    pub(crate) fn new() -> io::Result<(Self, Socket)> {
        let (socket, other) = UnixStream::pair()?;
        let other_end = other.as_fd().try_clone_to_owned()?;
        Ok((Self { socket, other_end }, other.into()))
    }

    /// The connection that `task` relays.
    pub(crate) fn relayed(self, task: Relaying) -> Opened {
        let relay = Relay {
            task: Some(task),
            other_end: Some(self.other_end),
        };
        Opened {
            socket: self.socket,
            relay,
        }
    }
}

impl Opened {
    /// Opens a client's stream. Dropping the future cancels the dial.
    pub(crate) async fn stream(routed: RoutedClient) -> Result<Self, Unopened> {
        let (pair, other) = Pair::new()?;
        Ok(pair.relayed(open_stream(routed, other).await?))
    }
}

impl Relay {
    /// Waits for the end. Afterwards the client's end reads what is left, and then an end.
    ///
    /// # Errors
    ///
    /// The connection was cut: what was read may be incomplete.
    pub(crate) async fn ended(&mut self) -> Result<(), RelayError> {
        poll_fn(|context| self.poll_ended(context)).await
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RelayError>> {
        let Some(task) = &mut self.task else {
            return Poll::Ready(Ok(()));
        };
        // The thread ends with the process; only then is there no result.
        let ended = match ready!(Pin::new(task).poll(context)) {
            Ok(ended) => ended,
            Err(gone) => Err(RelayError::Socket(io::Error::other(gone))),
        };
        self.task = None;
        if ended.is_ok() {
            self.other_end = None;
        }
        Poll::Ready(ended)
    }

    /// Completes when the connection is cut.
    pub(crate) async fn cut(&mut self) -> RelayError {
        poll_fn(|context| self.poll_cut(context)).await
    }

    /// Ready when the connection is cut.
    pub(crate) fn poll_cut(&mut self, context: &mut Context<'_>) -> Poll<RelayError> {
        match self.poll_ended(context) {
            Poll::Ready(Err(cut)) => Poll::Ready(cut),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    /// Ends the client's direction, and waits for the end.
    ///
    /// # Errors
    ///
    /// As [`Self::ended`].
    pub(crate) async fn finish(&mut self) -> Result<(), RelayError> {
        if let Some(other_end) = &self.other_end {
            let shut = SockRef::from(other_end).shutdown(std::net::Shutdown::Read);
            shut.map_err(RelayError::Socket)?;
        }
        self.ended().await
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
        // If the receiver is gone, so is the client; then this task ends too.
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
