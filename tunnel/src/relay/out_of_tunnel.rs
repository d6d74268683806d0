//! From a stream of the tunnel out to a socket.

use std::collections::VecDeque;
use std::io;

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;

use super::{RelayError, Role};
use crate::budget::Share;
use crate::first_message::{FirstMessageError, first_message};
use crate::frame::{Decoder, FrameError};
use crate::grpc;
use crate::socket::Socket;
use crate::transferred::Meter;

/// Pieces below this length are put together while their socket is blocked.
const PIECE_MIN: usize = 4 << 10;

/// Copies until the stream's end. While the socket takes nothing, what arrives is moved out of HTTP/2's hands: there each frame
/// costs some 200 bytes whatever its length, and enough small ones would end the whole tunnel.
pub(super) async fn out_of_tunnel(
    socket: &Socket,
    incoming: &mut Incoming,
    role: Role,
    meter: &Meter,
) -> Result<(), RelayError> {
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
                meter.add(written);
                backlog.advance(written);
                incoming.share.moves();
                incoming.release(written)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Boxed: idle streams would all be that much larger.
                ended |= Box::pin(stalled(socket, incoming, &mut backlog, ended)).await?;
            }
            Err(error) => return Err(RelayError::Socket(error)),
        }
    }
    incoming.end(role).await?;
    socket.shutdown_write().map_err(RelayError::Socket)
}

/// Waits until a socket takes bytes again, or until more come for it. Whether those have come to their end.
async fn stalled(
    socket: &Socket,
    incoming: &mut Incoming,
    backlog: &mut Backlog,
    ended: bool,
) -> Result<bool, RelayError> {
    let given_up = incoming.share.stalls(backlog.bytes);
    tokio::select! {
        biased;
        ready = socket.writable() => ready.map_err(RelayError::Socket)?,
        () = given_up => return Err(RelayError::Budget),
        data = incoming.data(), if !ended => match data? {
            Some(data) => backlog.push(data),
            None => return Ok(true),
        },
    }
    Ok(false)
}

/// Payload that a socket has not taken yet, bounded by the stream's window; small pieces are put together.
#[derive(Debug, Default)]
struct Backlog {
    pieces: VecDeque<Bytes>,
    /// Behind `pieces`, still growing.
    tail: BytesMut,
    /// In all of them.
    bytes: usize,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn push(&mut self, data: Bytes) {
        let is_first = self.is_empty();
        self.bytes += data.len();
        // The first piece is written at once: copying it would be a waste.
        if data.len() < PIECE_MIN && !is_first {
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
        self.bytes -= written;
        match self.pieces.front_mut() {
            Some(piece) if written == piece.len() => drop(self.pieces.pop_front()),
            Some(piece) => piece.advance(written),
            None => self.tail.advance(written),
        }
    }
}

/// Payload of a stream as it comes in, of which the window is given back as the payload is dealt with.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: RecvStream,
    decoder: Decoder,
    chunk: Bytes,
    /// Bytes of `chunk`'s frames that were framing: given back with the next payload.
    framing: usize,
    /// Of the memory for payload that waits.
    share: Share,
}

impl Incoming {
    /// A body of which nothing has been read.
    pub(crate) fn new(stream: RecvStream, share: Share) -> Self {
        Self { stream, decoder: Decoder::default(), chunk: Bytes::new(), framing: 0, share }
    }

    /// The message that comes before the payload.
    pub(crate) async fn first_message(&mut self) -> Result<Bytes, FirstMessageError> {
        let (message, behind) = first_message(&mut self.stream).await?;
        self.chunk = behind;
        Ok(message)
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
