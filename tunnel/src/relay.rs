//! Copies one connection's bytes both ways between a socket and a stream of a tunnel. Both ends of a tunnel run this.
//!
//! One task does it all: nothing is buffered while a stream is idle, a direction that ends is half-closed, and whatever
//! fails resets both sides at once, even a side that waits for the other's window.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};

use crate::frame::{self, Decoder, FrameError, HEADER_ROOM};
use crate::grpc;
use crate::http2::FRAME_SIZE;
use crate::socket::{Close, Socket};

/// A read starts this large, grows while reads fill it, and shrinks again: small messages must not hold large buffers.
const READ_MIN: usize = 4 << 10;
/// The largest read makes just one DATA frame.
const READ_MAX: usize = FRAME_SIZE as usize - HEADER_ROOM;

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
            Self::Reset(_) => "peer_reset",
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

/// How an end finishes its direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The gRPC client: its messages just end.
    EndOfStream,
    /// The gRPC server: trailers with the call's status.
    Trailers,
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

/// Relays until both directions ended or one failed; then, as when it is dropped, the stream is reset and the socket ends with
/// RST, never with a FIN that would pass off a part as the whole.
///
/// # Errors
/// What failed first.
pub(crate) async fn relay(
    socket: Socket,
    early: Early,
    mut send: SendStream<Bytes>,
    mut incoming: Incoming,
    finish: Finish,
    transferred: &Transferred,
) -> Result<(), RelayError> {
    socket.on_close(Close::Reset);
    let inward = out_of_tunnel(&socket, early.out_of_tunnel, &mut incoming, &transferred.out_of_tunnel);
    let outward = into_tunnel(&socket, early.into_tunnel, &mut send, finish, &transferred.into_tunnel);
    let result = tokio::try_join!(inward, outward).map(|_| ());
    match result {
        Ok(()) => socket.on_close(Close::Finish),
        Err(_) => send.send_reset(Reason::CANCEL),
    }
    result
}

async fn into_tunnel(
    socket: &Socket,
    early: Bytes,
    send: &mut SendStream<Bytes>,
    finish: Finish,
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
            Ok(0) => break,
            Ok(read) => {
                count.fetch_add(read as u64, Ordering::Relaxed);
                size = next_size(size, read);
                send.send_data(frame::seal(fitted(buffer)), false)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => send.reserve_capacity(0),
            Err(error) => return Err(RelayError::Socket(error)),
        }
    }
    send.reserve_capacity(0);
    match finish {
        Finish::EndOfStream => send.send_data(Bytes::new(), true)?,
        Finish::Trailers => send.send_trailers(grpc::ok_trailers())?,
    }
    Ok(())
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
        reset = poll_fn(|context| send.poll_reset(context)) => Err(RelayError::Reset(reset?)),
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
                None => return Err(RelayError::Reset(Reason::STREAM_CLOSED)),
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

async fn out_of_tunnel(
    socket: &Socket,
    early: Bytes,
    incoming: &mut Incoming,
    count: &AtomicU64,
) -> Result<(), RelayError> {
    socket.write_all(&early).await.map_err(RelayError::Socket)?;
    count.fetch_add(early.len() as u64, Ordering::Relaxed);
    drop(early);
    while let Some(data) = incoming.data().await? {
        socket.write_all(&data).await.map_err(RelayError::Socket)?;
        count.fetch_add(data.len() as u64, Ordering::Relaxed);
        incoming.release(data.len())?;
    }
    socket.shutdown_write().map_err(RelayError::Socket)
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
    fn a_small_message_holds_a_small_buffer() {
        let mut buffer = BytesMut::with_capacity(READ_MAX);
        buffer.extend_from_slice(b"ping");
        assert!(fitted(buffer).capacity() < 100);
    }
}
