//! Copies one connection's bytes both ways between a socket and a stream of a tunnel. Both ends of a tunnel run this.
//!
//! One task does it all: nothing is buffered while a stream is idle, a direction that ends is half-closed, and a failure of
//! either side reaches the other behind what that side had said, even while one waits for the other's window.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use tokio::time::timeout;

use crate::frame::{self, Decoder, FrameError, HEADER_ROOM};
use crate::grpc;
use crate::http2::FRAME_SIZE;
use crate::socket::{Close, Socket};

/// A read starts this large, grows while reads fill it, and shrinks again: small messages must not hold large buffers.
const READ_MIN: usize = 4 << 10;
/// The largest read makes just one DATA frame.
const READ_MAX: usize = FRAME_SIZE as usize - HEADER_ROOM;

/// Pieces below this length are put together while their socket is blocked.
const PIECE_MIN: usize = 4 << 10;
/// How long the direction that still works may take to deliver what it has when the other has failed.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Payload bytes of a stream so far.
#[derive(Debug, Default)]
pub struct Transferred {
    /// Read from this end's socket and given to the tunnel.
    pub into_tunnel: AtomicU64,
    /// Taken from the tunnel and written to this end's socket.
    pub out_of_tunnel: AtomicU64,
}

/// Why a relay ended before both directions did.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// This end's socket failed or was reset.
    #[error("this side's connection")]
    Socket(#[source] io::Error),
    /// The other end reset the stream: its connection failed or was reset.
    #[error("the other side's connection was reset ({0})")]
    Reset(Reason),
    /// All that the other side had to say has come, and then its connection was reset.
    #[error("the other side's connection was reset")]
    Aborted,
    /// The tunnel ended.
    #[error("the tunnel was lost")]
    Tunnel(#[source] h2::Error),
    /// The other end sent what is no data frame.
    #[error("the other end of the tunnel broke the protocol")]
    Frame(#[from] FrameError),
}

impl RelayError {
    /// Label for metrics and logs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Socket(_) => "reset",
            Self::Reset(_) | Self::Aborted => "peer_reset",
            Self::Tunnel(_) => "tunnel_lost",
            Self::Frame(_) => "protocol_error",
        }
    }
}

impl From<h2::Error> for RelayError {
    fn from(error: h2::Error) -> Self {
        match error.reason() {
            Some(reason) if error.is_reset() => Self::Reset(reason),
            _ => Self::Tunnel(error),
        }
    }
}

/// Which end of the gRPC call a relay stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The proxy: its messages just end, or the stream is reset.
    Client,
    /// The agent: ends with trailers, which tell in their place behind the data whether that was all.
    Server,
}

/// Payload of a stream as it comes in, of which the window is given back as the payload is dealt with.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: RecvStream,
    decoder: Decoder,
    chunk: Bytes,
    /// Bytes of `chunk`'s frames that were framing: given back with the next payload.
    framing: usize,
}

impl Incoming {
    /// `read` are bytes that were taken from `stream` already, behind its first message.
    pub(crate) fn new(stream: RecvStream, read: Bytes) -> Self {
        Self { stream, decoder: Decoder::default(), chunk: read, framing: 0 }
    }

    /// The next payload bytes; `None` at the end. To be followed by [`Self::release`].
    async fn data(&mut self) -> Result<Option<Bytes>, RelayError> {
        loop {
            let before = self.chunk.len();
            let data = self.decoder.data(&mut self.chunk)?;
            self.framing += before - self.chunk.len() - data.as_ref().map_or(0, Bytes::len);
            if data.is_some() {
                return Ok(data);
            }
            self.release(0)?;
            match self.stream.data().await {
                Some(chunk) => self.chunk = chunk?,
                None if self.decoder.between_messages() => return Ok(None),
                None => return Err(FrameError::Truncated.into()),
            }
        }
    }

    /// Whether the end of the payload was the end of what the other side had to say.
    async fn end(&mut self, role: Role) -> Result<(), RelayError> {
        if role == Role::Server {
            return Ok(());
        }
        let trailers = self.stream.trailers().await?.ok_or(FrameError::Truncated)?;
        if grpc::is_ok(&trailers) { Ok(()) } else { Err(RelayError::Aborted) }
    }

    /// Lets the other end send `payload` bytes more.
    fn release(&mut self, payload: usize) -> Result<(), RelayError> {
        let bytes = payload + std::mem::take(&mut self.framing);
        // The first message's bytes were given back when it was read; what was read behind it counts as used already.
        let bytes = bytes.min(self.stream.flow_control().used_capacity());
        Ok(self.stream.flow_control().release_capacity(bytes)?)
    }
}

/// Bytes that arrived before the relay began; each goes ahead of its direction.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// For the tunnel: what a client sent behind its request.
    pub(crate) into_tunnel: Bytes,
    /// For the socket: what came with the `open`.
    pub(crate) out_of_tunnel: Bytes,
}

/// Relays until both directions ended or one failed. What one side had said before it failed still reaches the other; then, as
/// when this is dropped, the stream and the socket are reset: no FIN may pass off a part as the whole.
///
/// # Errors
/// What failed first.
pub(crate) async fn relay(
    socket: Socket,
    early: Early,
    mut send: SendStream<Bytes>,
    mut incoming: Incoming,
    role: Role,
    transferred: &Transferred,
) -> Result<(), RelayError> {
    socket.on_close(Close::Reset);
    let mut inward = pin!(out_of_tunnel(&socket, early.out_of_tunnel, &mut incoming, role, &transferred.out_of_tunnel));
    let first = {
        let outward = into_tunnel(&socket, early.into_tunnel, &mut send, &transferred.into_tunnel);
        first_half(inward.as_mut(), pin!(outward)).await
    };
    finish(&mut send, role, first.as_ref().err());
    let result = match first {
        Ok(Half::Inward) => Ok(()),
        Ok(Half::Outward) => second_half(inward, &socket, &mut send, role).await,
        Err(error) => Err(error),
    };
    if result.is_ok() {
        socket.on_close(Close::Finish);
    }
    result
}

/// One of a relay's directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    /// Tunnel to socket.
    Inward,
    /// Socket to tunnel.
    Outward,
}

/// Runs both directions until the one into the tunnel has ended; says which one was last. A direction whose own source and sink
/// are in order gets to finish what it has when the other fails.
async fn first_half(
    mut inward: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    mut outward: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
) -> Result<Half, RelayError> {
    tokio::select! {
        biased;
        ended = inward.as_mut() => match ended {
            Ok(()) => outward.await.map(|()| Half::Inward),
            Err(error @ RelayError::Socket(_)) => Err(after_last_words(outward, error).await),
            Err(error) => Err(error),
        },
        ended = outward.as_mut() => match ended {
            Ok(()) => Ok(Half::Outward),
            Err(error @ RelayError::Socket(_)) => Err(error),
            Err(error) => Err(after_last_words(inward, error).await),
        },
    }
}

/// Runs the direction out of the tunnel to its end. The other one has ended, so nothing else would notice a failure of its side.
async fn second_half(
    mut inward: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    socket: &Socket,
    send: &mut SendStream<Bytes>,
    role: Role,
) -> Result<(), RelayError> {
    let failed = tokio::select! {
        biased;
        ended = inward.as_mut() => match ended {
            Err(error) => error,
            Ok(()) => return Ok(()),
        },
        failed = socket.failure() => RelayError::Socket(failed),
        failed = reset(send) => after_last_words(inward, failed).await,
    };
    if role == Role::Client {
        send.send_reset(Reason::CANCEL);
    }
    Err(failed)
}

async fn after_last_words(
    half: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    error: RelayError,
) -> RelayError {
    // Whether it got to its end or not, the failure is what the relay ends with.
    timeout(LAST_WORDS, half).await.ok();
    error
}

/// Ends the direction into the tunnel, which has read all that its socket had.
fn finish(send: &mut SendStream<Bytes>, role: Role, failed: Option<&RelayError>) {
    send.reserve_capacity(0);
    let finished = match (role, failed) {
        (Role::Client, None) => send.send_data(Bytes::new(), true),
        (Role::Server, None) => send.send_trailers(grpc::trailers(grpc::OK)),
        // In its place behind the data: a reset would overtake them.
        (Role::Server, Some(RelayError::Socket(_))) => send.send_trailers(grpc::trailers(grpc::ABORTED)),
        (Role::Client | Role::Server, Some(_)) => {
            send.send_reset(Reason::CANCEL);
            Ok(())
        }
    };
    if let Err(error) = finished {
        tracing::debug!(%error, "the stream had ended already");
    }
}

/// Copies until the socket's end.
async fn into_tunnel(
    socket: &Socket,
    early: Bytes,
    send: &mut SendStream<Bytes>,
    count: &AtomicU64,
) -> Result<(), RelayError> {
    send_early(&early, send, count)?;
    drop(early);
    let mut size = READ_MIN;
    loop {
        readable(socket, send).await?;
        // Room first: what nobody can take stays in the socket, and a stalled stream holds no buffer.
        let room = room(socket, send, size + HEADER_ROOM).await?;
        let wanted = room.min(size + HEADER_ROOM) - HEADER_ROOM;
        let mut buffer = BytesMut::with_capacity(wanted + HEADER_ROOM);
        buffer.put_bytes(0, HEADER_ROOM);
        match socket.try_read(&mut (&mut buffer).limit(wanted)) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                count.fetch_add(read as u64, Ordering::Relaxed);
                size = next_size(size, read);
                if send.send_data(frame::seal(fitted(buffer)), false).is_err() {
                    return Err(reset(send).await);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => send.reserve_capacity(0),
            Err(error) => return Err(RelayError::Socket(error)),
        }
    }
}

/// Early bytes are few: they are sent as they are, ahead of the window.
fn send_early(early: &Bytes, send: &mut SendStream<Bytes>, count: &AtomicU64) -> Result<(), RelayError> {
    for piece in early.chunks(READ_MAX) {
        let mut buffer = BytesMut::zeroed(HEADER_ROOM);
        buffer.extend_from_slice(piece);
        send.send_data(frame::seal(buffer), false)?;
    }
    count.fetch_add(early.len() as u64, Ordering::Relaxed);
    Ok(())
}

/// Waits until the socket has bytes, or an end, to read.
async fn readable(socket: &Socket, send: &mut SendStream<Bytes>) -> Result<(), RelayError> {
    tokio::select! {
        biased;
        ready = socket.readable() => ready.map_err(RelayError::Socket),
        failed = reset(send) => Err(failed),
    }
}

/// Waits until the stream is reset, or its tunnel lost.
async fn reset(send: &mut SendStream<Bytes>) -> RelayError {
    match poll_fn(|context| send.poll_reset(context)).await {
        Ok(reason) => RelayError::Reset(reason),
        Err(error) => error.into(),
    }
}

/// Waits until the stream takes a frame with at least one byte, at most `wanted` in all. A socket that fails meanwhile ends the
/// wait: its client has gone.
async fn room(socket: &Socket, send: &mut SendStream<Bytes>, wanted: usize) -> Result<usize, RelayError> {
    send.reserve_capacity(wanted);
    while send.capacity() <= HEADER_ROOM {
        tokio::select! {
            biased;
            capacity = poll_fn(|context| send.poll_capacity(context)) => match capacity {
                Some(capacity) => capacity?,
                None => return Err(reset(send).await),
            },
            failed = socket.failure() => return Err(RelayError::Socket(failed)),
        };
    }
    Ok(send.capacity())
}

fn next_size(size: usize, read: usize) -> usize {
    if read == size {
        (size * 4).min(READ_MAX)
    } else if read < size / 4 {
        (size / 2).max(READ_MIN)
    } else {
        size
    }
}

/// A buffer of about the length of what is in it: a queue of small frames must not hold large buffers.
fn fitted(buffer: BytesMut) -> BytesMut {
    if buffer.len() < buffer.capacity() / 4 { BytesMut::from(&buffer[..]) } else { buffer }
}

/// Copies until the stream's end. While the socket takes nothing, what arrives is moved out of HTTP/2's hands: there each frame
/// costs some 200 bytes whatever its length, and enough small ones would end the whole tunnel.
async fn out_of_tunnel(
    socket: &Socket,
    early: Bytes,
    incoming: &mut Incoming,
    role: Role,
    count: &AtomicU64,
) -> Result<(), RelayError> {
    socket.write_all(&early).await.map_err(RelayError::Socket)?;
    count.fetch_add(early.len() as u64, Ordering::Relaxed);
    drop(early);
    let mut backlog = Backlog::default();
    let mut ended = false;
    loop {
        if backlog.is_empty() {
            match incoming.data().await? {
                Some(data) => backlog.push(data),
                None => break,
            }
        }
        match socket.try_write(backlog.front()) {
            Ok(written) => {
                count.fetch_add(written as u64, Ordering::Relaxed);
                backlog.advance(written);
                incoming.release(written)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::select! {
                biased;
                ready = socket.writable() => ready.map_err(RelayError::Socket)?,
                data = incoming.data(), if !ended => match data? {
                    Some(data) => backlog.push(data),
                    None => ended = true,
                },
            },
            Err(error) => return Err(RelayError::Socket(error)),
        }
    }
    incoming.end(role).await?;
    socket.shutdown_write().map_err(RelayError::Socket)
}

/// Payload that a socket has not taken yet, bounded by the stream's window; small pieces are put together.
#[derive(Debug, Default)]
struct Backlog {
    pieces: VecDeque<Bytes>,
    /// Behind `pieces`, still growing.
    tail: BytesMut,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.tail.is_empty()
    }

    fn push(&mut self, data: Bytes) {
        // The first piece is written at once: copying it would be a waste.
        if data.len() < PIECE_MIN && !self.is_empty() {
            self.tail.extend_from_slice(&data);
            return;
        }
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        self.pieces.push_back(data);
    }

    fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail, |piece| piece)
    }

    fn advance(&mut self, written: usize) {
        match self.pieces.front_mut() {
            Some(piece) if written == piece.len() => drop(self.pieces.pop_front()),
            Some(piece) => piece.advance(written),
            None => self.tail.advance(written),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_grow_with_bulk_and_shrink_with_small_messages() {
        let mut size = READ_MIN;
        for _ in 0..4 {
            size = next_size(size, size);
        }
        assert_eq!(size, READ_MAX);
        for _ in 0..9 {
            size = next_size(size, 100);
        }
        assert_eq!(size, READ_MIN);
    }

    #[test]
    fn a_backlog_keeps_order_and_puts_small_pieces_together() {
        let mut backlog = Backlog::default();
        let large = Bytes::from(vec![7; PIECE_MIN]);
        let pieces = [
            Bytes::from_static(b"a"),
            Bytes::from_static(b"b"),
            Bytes::from_static(b"c"),
            large,
            Bytes::from_static(b"d"),
        ];
        pieces.iter().for_each(|piece| backlog.push(piece.clone()));
        assert_eq!(backlog.pieces.len(), 3, "b and c are one");
        let mut read = Vec::new();
        while !backlog.is_empty() {
            let part = backlog.front().len().min(3000);
            read.extend_from_slice(&backlog.front()[..part]);
            backlog.advance(part);
        }
        assert!(read == pieces.concat());
    }

    #[test]
    fn a_small_message_holds_a_small_buffer() {
        let mut buffer = BytesMut::with_capacity(READ_MAX);
        buffer.extend_from_slice(b"ping");
        assert!(fitted(buffer).capacity() < 100);
    }
}
