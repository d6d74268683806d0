//! From a stream of the tunnel out to a socket.

use std::io;

use bytes::Bytes;
use h2::RecvStream;
use tokio::sync::futures::OwnedNotified;

use super::RelayError;
use super::backlog::Backlog;
use crate::budget::{Budget, Share, SocketPeer};
use crate::first_message::{FirstMessageError, first_message};
use crate::frame::{Decoder, FrameError};
use crate::grpc;
use crate::role::Role;
use crate::socket::Socket;
use crate::transferred::Meter;

/// Copies until the stream's end. While the socket takes nothing, what arrives is moved out of
/// HTTP/2's hands: there each frame costs some 200 bytes whatever its length, and enough small ones
/// would end the whole tunnel.
pub(super) async fn out_of_tunnel(
    socket: &Socket,
    incoming: &mut Incoming,
    role: Role,
    meter: &Meter,
) -> Result<(), RelayError> {
    loop {
        if incoming.backlog.is_empty() && !incoming.receive().await? {
            break;
        }
        match socket.try_write(incoming.backlog.front()) {
            Ok(written) => {
                meter.add(written);
                incoming.wrote(written)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Boxed: idle streams would all be that much larger.
                Box::pin(stalled(socket, incoming, role)).await?;
            }
            Err(error) => return Err(RelayError::Socket(error)),
        }
    }
    incoming.end(role).await?;
    socket.shutdown_write().map_err(RelayError::Socket)
}

/// Waits until a socket takes bytes again, or until more come for it.
async fn stalled(socket: &Socket, incoming: &mut Incoming, role: Role) -> Result<(), RelayError> {
    let evicted = incoming.stalls(|| socket_peer(socket, role));
    let ended = incoming.ended;
    tokio::select! {
        biased;
        () = evicted => Err(RelayError::Budget),
        ready = socket.writable() => ready.map_err(RelayError::Socket),
        received = incoming.receive(), if !ended => received.map(|_| ()),
    }
}

fn socket_peer(socket: &Socket, role: Role) -> SocketPeer {
    match (socket.peer(), role) {
        (Some(client), Role::Proxy) => SocketPeer::client(client.ip()),
        (Some(backend), Role::Agent) => SocketPeer::Backend(backend),
        (None, _) => SocketPeer::Unknown,
    }
}

/// Payload of a stream as it comes in, of which the window is given back as the payload is dealt
/// with.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: RecvStream,
    decoder: Decoder,
    chunk: Bytes,
    /// Bytes of `chunk`'s frames that were framing: given back with the next payload.
    framing: usize,
    /// What the socket has not taken yet.
    backlog: Backlog,
    /// Nothing comes behind the backlog.
    ended: bool,
    /// Of the memory for payload that waits.
    share: Share,
}

impl Incoming {
    /// A body of which nothing has been read.
    pub(crate) fn new(stream: RecvStream, share: Share) -> Self {
        let (decoder, backlog) = (Decoder::default(), Backlog::default());
        Self {
            stream,
            decoder,
            chunk: Bytes::new(),
            framing: 0,
            backlog,
            ended: false,
            share,
        }
    }

    /// The budget of what this stream, and its tunnel, may hold.
    pub(crate) fn budget(&self) -> Budget {
        self.share.budget.clone()
    }

    /// The message that comes before the payload, of at most `max` bytes.
    pub(crate) async fn first_message(&mut self, max: usize) -> Result<Bytes, FirstMessageError> {
        let (message, behind) = first_message(&mut self.stream, max).await?;
        self.chunk = behind;
        Ok(message)
    }

    /// Takes what comes while there is no socket to write it to, so that it counts. Returns why the
    /// stream has to end.
    pub(crate) async fn gather(&mut self) -> RelayError {
        loop {
            if self.ended {
                return std::future::pending().await;
            }
            let evicted = (!self.backlog.is_empty()).then(|| self.stalls(|| SocketPeer::Unknown));
            let evicted = async {
                if let Some(evicted) = evicted {
                    evicted.await
                } else {
                    std::future::pending().await
                }
            };
            let received = tokio::select! {
                biased;
                () = evicted => Err(RelayError::Budget),
                received = self.receive() => received,
            };
            if let Err(error) = received {
                return error;
            }
        }
    }

    fn stalls(&mut self, socket_peer: impl FnOnce() -> SocketPeer) -> OwnedNotified {
        if !self.share.is_stalled() {
            self.backlog.blocks();
        }
        self.share.stalls(self.backlog.held(), socket_peer)
    }

    /// Waits for more payload; false at the end.
    async fn receive(&mut self) -> Result<bool, RelayError> {
        while !self.ended {
            let before = self.chunk.len();
            let data = self.decoder.data(&mut self.chunk)?;
            let payload = data.as_ref().map_or(0, Bytes::len);
            self.framing += before - self.chunk.len() - payload;
            if let Some(data) = data {
                self.backlog.push(data, before);
                return Ok(true);
            }
            // An empty slice keeps what it is a slice of.
            self.chunk = Bytes::new();
            // Framing that was given back while the socket takes nothing would come without end.
            if !self.share.is_stalled() {
                self.release(0)?;
            }
            match self.stream.data().await {
                Some(chunk) => self.chunk = chunk?,
                None if self.decoder.between_messages() => self.ended = true,
                None => return Err(FrameError::Truncated.into()),
            }
        }
        Ok(false)
    }

    /// The socket has taken `written` bytes: the other end may send as many more.
    fn wrote(&mut self, written: usize) -> Result<(), RelayError> {
        self.backlog.advance(written);
        self.share.moves(written, self.backlog.held());
        self.release(written)
    }

    /// Whether the end of the payload was the end of what the other side had to say.
    async fn end(&mut self, role: Role) -> Result<(), RelayError> {
        if role == Role::Agent {
            return Ok(());
        }
        let trailers = self.stream.trailers().await?.ok_or(FrameError::Truncated)?;
        if grpc::is_ok(&trailers) {
            Ok(())
        } else {
            Err(RelayError::Aborted)
        }
    }

    /// Reads what is left to its end, or to a failure.
    pub(crate) async fn discard(&mut self) {
        while let Some(Ok(_)) = self.stream.data().await {}
    }

    /// Lets the other end send `payload` bytes more.
    fn release(&mut self, payload: usize) -> Result<(), RelayError> {
        let bytes = payload + std::mem::take(&mut self.framing);
        Ok(self.stream.flow_control().release_capacity(bytes)?)
    }
}
