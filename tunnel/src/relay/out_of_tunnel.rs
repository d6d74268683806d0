//! Copies from a stream of the tunnel to a socket.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use tokio::sync::futures::OwnedNotified;
use tokio::time::timeout;

use super::backlog::Backlog;
use super::{DELIVERY_TIMEOUT, ReceiveHalves, RelayError, Relocation};
use crate::budget::{Budget, Share, SocketPeer};
use crate::first_message::{FirstMessageError, first_message};
use crate::frame::{Decoder, FrameError};
use crate::grpc;
use crate::load::StreamPermit;
use crate::role::Role;
use crate::socket::Socket;
use crate::transferred::Meter;

/// Copies until the stream's end. While the socket is stalled, data is still taken from HTTP/2,
/// where each frame costs some 200 bytes: enough small frames would end the tunnel.
pub(super) async fn out_of_tunnel(
    socket: &Socket,
    halves: &mut ReceiveHalves<'_>,
    role: Role,
    meter: &Meter,
) -> Result<(), RelayError> {
    loop {
        if halves.half.backlog.is_empty() {
            if !halves.receive().await? {
                break;
            }
            continue;
        }
        match socket.try_write(halves.half.backlog.front()) {
            Ok(written) => {
                meter.add(&halves.half.backlog.front()[..written]);
                halves.half.wrote(written)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Boxed to keep idle streams small.
                Box::pin(stalled(socket, halves, role)).await?;
            }
            Err(error) => return Err(RelayError::Socket(error)),
        }
    }
    if role == Role::Proxy {
        // Boxed to keep idle streams small.
        Box::pin(ended_in_order(halves.half, socket)).await?;
    }
    let shut = socket.shutdown_write().map_err(RelayError::Socket);
    Box::pin(halves.discard_next()).await;
    shut
}

/// Checks that the backend's connection ended in order, and was not reset. A reset waits until the
/// client has acknowledged what came before it, for some seconds: it drops what the kernel has not
/// sent yet.
async fn ended_in_order(incoming: &mut Incoming, socket: &Socket) -> Result<(), RelayError> {
    let ended = incoming.trailers().await.and_then(|trailers| {
        if grpc::is_ok(&trailers) {
            Ok(())
        } else {
            Err(RelayError::Aborted)
        }
    });
    if ended.is_err() {
        timeout(DELIVERY_TIMEOUT, socket.acknowledged()).await.ok();
    }
    ended
}

/// Waits until a stalled socket takes bytes again, or more arrive for it.
async fn stalled(
    socket: &Socket,
    halves: &mut ReceiveHalves<'_>,
    role: Role,
) -> Result<(), RelayError> {
    let evicted = halves.half.stalls(|| socket_peer(socket, role));
    let arrived = async {
        if halves.has_ended() {
            Err(halves.gather_next().await)
        } else {
            halves.receive().await.map(drop)
        }
    };
    tokio::select! {
        biased;
        () = evicted => Err(RelayError::Budget),
        ready = socket.writable() => ready.map_err(RelayError::Socket),
        arrived = arrived => arrived,
    }
}

fn socket_peer(socket: &Socket, role: Role) -> SocketPeer {
    match (socket.peer(), role) {
        (Some(client), Role::Proxy) => SocketPeer::client(client.ip()),
        (Some(backend), Role::Agent) => SocketPeer::Backend(backend),
        (None, _) => SocketPeer::Unknown,
    }
}

/// Incoming payload of a stream. Its window is released as the payload is written.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: RecvStream,
    decoder: Decoder,
    chunk: Bytes,
    /// Bytes of framing in `chunk`, whose window is released with the next payload.
    framing: usize,
    backlog: Backlog,
    /// The stream ends after the backlog.
    ended: bool,
    /// The stream's share of the budget, for `backlog`.
    share: Share,
    /// Set if the stream may move to other tunnels.
    relocation: Option<Arc<Relocation>>,
    /// The stream's place in this tunnel, at a proxy.
    permit: Option<StreamPermit>,
}

impl Incoming {
    pub(crate) fn new(stream: RecvStream, share: Share) -> Self {
        let decoder = Decoder::default();
        let backlog = Backlog::default();
        Self {
            stream,
            decoder,
            chunk: Bytes::new(),
            framing: 0,
            backlog,
            ended: false,
            share,
            relocation: None,
            permit: None,
        }
    }

    /// The same with the stream's place in this tunnel.
    pub(crate) fn with_permit(mut self, permit: StreamPermit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Lets the stream move to other tunnels.
    pub(crate) fn set_relocation(&mut self, relocation: Arc<Relocation>) {
        self.relocation = Some(relocation);
    }

    /// The moves of the stream; `None`: it stays in its tunnel.
    pub(crate) fn relocation(&self) -> Option<Arc<Relocation>> {
        self.relocation.clone()
    }

    /// Whether the stream goes on in another tunnel, after what waits.
    pub(super) fn has_moved(&self) -> bool {
        self.ended && self.decoder.has_moved()
    }

    /// The budget of this stream's tunnel.
    pub(crate) fn budget(&self) -> Budget {
        self.share.budget.clone()
    }

    /// Reads the message before the payload, of at most `max` bytes.
    pub(crate) async fn first_message(&mut self, max: usize) -> Result<Bytes, FirstMessageError> {
        let (message, rest) = first_message(&mut self.stream, max).await?;
        self.chunk = rest;
        Ok(message)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Whether the stream ends after what waits.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Waits for another frame of HTTP/2, whatever is in it; `false` at the end.
    pub(super) async fn receive_frame(&mut self) -> Result<bool, RelayError> {
        while !self.ended {
            let frame = std::mem::take(&mut self.chunk);
            if !frame.is_empty() {
                let length = frame.len();
                self.backlog.push(frame, length);
                return Ok(true);
            }
            match self.stream.data().await {
                Some(frame) => self.chunk = frame?,
                None => self.ended = true,
            }
        }
        Ok(false)
    }

    /// How many bytes [`Self::read`] returns at most.
    pub(super) fn next_piece(&self) -> usize {
        self.backlog.front().len()
    }

    /// Removes at most `most` bytes that wait, to be sent on, so the other end may send as many more.
    pub(super) fn read(&mut self, most: usize) -> Result<Bytes, RelayError> {
        let taken = self.backlog.read(most);
        self.consumed(taken.len())?;
        Ok(taken)
    }

    /// What waits cannot be sent on now.
    pub(super) fn stalls_between_tunnels(&mut self) -> OwnedNotified {
        self.stalls(|| SocketPeer::Unknown)
    }

    /// The trailers after the end.
    pub(crate) async fn trailers(&mut self) -> Result<HeaderMap, RelayError> {
        Ok(self.stream.trailers().await?.ok_or(FrameError::Truncated)?)
    }

    /// Takes payload while there is no socket yet, so that it counts in the budget. Returns the
    /// error that ends the stream.
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
        self.share.stalls(self.backlog.memory(), socket_peer)
    }

    /// Waits for more payload; `false` at the end.
    pub(super) async fn receive(&mut self) -> Result<bool, RelayError> {
        while !self.ended {
            let before = self.chunk.len();
            let data = self.decoder.data(&mut self.chunk)?;
            let payload = data.as_ref().map_or(0, Bytes::len);
            self.framing += before - self.chunk.len() - payload;
            if let Some(data) = data {
                self.backlog.push(data, before);
                return Ok(true);
            }
            // An empty slice would keep its buffer alive.
            self.chunk = Bytes::new();
            // While the socket is stalled a peer could send framing without end.
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

    /// The socket has taken `written` bytes, so the other end may send as many more.
    fn wrote(&mut self, written: usize) -> Result<(), RelayError> {
        self.backlog.advance(written);
        self.consumed(written)
    }

    fn consumed(&mut self, taken: usize) -> Result<(), RelayError> {
        self.share.consumed(taken, self.backlog.memory());
        self.release(taken)
    }

    /// Reads and drops the rest.
    pub(crate) async fn discard(&mut self) {
        while let Some(Ok(_)) = self.stream.data().await {}
    }

    /// Lets the other end send `payload` more bytes, and the framing since the last time.
    fn release(&mut self, payload: usize) -> Result<(), RelayError> {
        let bytes = payload + std::mem::take(&mut self.framing);
        Ok(self.stream.flow_control().release_capacity(bytes)?)
    }
}
