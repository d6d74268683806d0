//! From a socket into a stream of the tunnel.

use std::future::poll_fn;
use std::io;

use bytes::{BufMut, BytesMut};
use h2::SendStream;

use super::RelayError;
use crate::budget::Budget;
use crate::frame::HEADER_MAX;
use crate::http2::FRAME_SIZE;
use crate::outbox::Payload;
use crate::socket::Socket;
use crate::transferred::Meter;

/// A read starts this large, grows while reads fill it, and shrinks again: small messages must not
/// hold large buffers.
const READ_MIN: usize = 4 << 10;
/// The largest read makes just one DATA frame.
const READ_MAX: usize = FRAME_SIZE as usize - HEADER_MAX;
/// What a client may say before its backend has answered: a request or a TLS handshake's first
/// message, which are what a round trip is worth saving for.
const FIRST_MAX: usize = 16 << 10;
/// What a read counts of that at least: each is a frame of its own, which waits in the agent's
/// HTTP/2 until its dial has ended.
const PIECE_COST: usize = 1 << 10;

/// Copies until the socket's end.
pub(super) async fn into_tunnel(
    socket: &Socket,
    send: &mut SendStream<Payload>,
    budget: &Budget,
    meter: &Meter,
) -> Result<(), RelayError> {
    let mut size = READ_MIN;
    loop {
        readable(socket, send).await?;
        // Room first: what nobody can take stays in the socket, and a stalled stream holds no
        // buffer.
        if budget.is_full() {
            // Boxed: idle streams would all be that much larger.
            Box::pin(outbox_capacity(socket, send, budget)).await?;
        }
        let wanted = capacity(socket, send, size + HEADER_MAX).await? - HEADER_MAX;
        let mut buffer = BytesMut::with_capacity(wanted + HEADER_MAX);
        buffer.put_bytes(0, HEADER_MAX);
        match socket.try_read(&mut (&mut buffer).limit(wanted)) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                meter.add(read);
                size = next_size(size, read);
                if send
                    .send_data(Payload::data(fitted(buffer), budget), false)
                    .is_err()
                {
                    return Err(reset(send).await);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(RelayError::Socket(error)),
        }
    }
}

/// Sends the first [`FIRST_MAX`] bytes of a socket as they come, before the relay begins. An end is
/// left for the relay to find again; a failure, which a socket tells only once, is returned.
pub(crate) async fn send_first(
    socket: &Socket,
    send: &mut SendStream<Payload>,
    budget: &Budget,
    meter: &Meter,
) -> io::Result<()> {
    let mut room = FIRST_MAX;
    while room > 0 {
        socket.readable().await?;
        let wanted = room.min(READ_MIN);
        let mut first = BytesMut::with_capacity(wanted);
        match socket.try_read(&mut (&mut first).limit(wanted)) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                room = room.saturating_sub(read.max(PIECE_COST));
                send_now(&first, send, budget, meter);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends what came before the relay began. That is little: it goes ahead of the window. A stream
/// that takes it no more has failed, which the relay finds behind what has come out of it.
pub(crate) fn send_now(
    bytes: &[u8],
    send: &mut SendStream<Payload>,
    budget: &Budget,
    meter: &Meter,
) {
    for piece in bytes.chunks(READ_MAX) {
        let mut buffer = BytesMut::zeroed(HEADER_MAX);
        buffer.extend_from_slice(piece);
        meter.add(piece.len());
        if send
            .send_data(Payload::data(buffer, budget), false)
            .is_err()
        {
            return;
        }
    }
}

/// Waits until the socket has bytes, or an end, to read.
async fn readable(socket: &Socket, send: &mut SendStream<Payload>) -> Result<(), RelayError> {
    tokio::select! {
        biased;
        ready = socket.readable() => ready.map_err(RelayError::Socket),
        failed = reset(send) => Err(failed),
    }
}

/// Waits until the stream is reset, or its tunnel lost.
pub(super) async fn reset(send: &mut SendStream<Payload>) -> RelayError {
    match poll_fn(|context| send.poll_reset(context)).await {
        Ok(reason) => RelayError::Reset(reason),
        Err(error) => error.into(),
    }
}

/// Waits until the tunnel has less to send. A stream that is reset meanwhile, or a socket that
/// fails, ends the wait.
async fn outbox_capacity(
    socket: &Socket,
    send: &mut SendStream<Payload>,
    budget: &Budget,
) -> Result<(), RelayError> {
    tokio::select! {
        biased;
        failed = reset(send) => Err(failed),
        () = budget.capacity() => Ok(()),
        failed = socket.failure() => Err(RelayError::Socket(failed)),
    }
}

/// Waits until the stream takes a frame with at least one byte, at most `wanted` in all. A socket
/// that fails meanwhile ends the wait: its client has gone.
async fn capacity(
    socket: &Socket,
    send: &mut SendStream<Payload>,
    wanted: usize,
) -> Result<usize, RelayError> {
    // For many small messages in one go: each assignment wakes the task that waits for this stream,
    // which is this one.
    if send.capacity() < wanted {
        send.reserve_capacity(FRAME_SIZE as usize);
    }
    loop {
        let capacity = send.capacity();
        if capacity > HEADER_MAX {
            return Ok(capacity.min(wanted));
        }
        tokio::select! {
            biased;
            capacity = poll_fn(|context| send.poll_capacity(context)) => match capacity {
                Some(capacity) => capacity?,
                None => return Err(reset(send).await),
            },
            // Boxed: idle streams would all be that much larger.
            failed = Box::pin(socket.failure()) => return Err(RelayError::Socket(failed)),
        };
    }
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

/// A buffer of about the length of what is in it: a queue of small frames must not hold large
/// buffers.
fn fitted(buffer: BytesMut) -> BytesMut {
    if buffer.len() < buffer.capacity() / 4 {
        BytesMut::from(&buffer[..])
    } else {
        buffer
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
    fn a_small_message_holds_a_small_buffer() {
        let mut buffer = BytesMut::with_capacity(READ_MAX);
        buffer.extend_from_slice(b"ping");
        assert!(fitted(buffer).capacity() < 100);
    }
}
