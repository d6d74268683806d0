//! Copies from a socket into a stream of the tunnel.

use std::future::poll_fn;
use std::io;

use bytes::{BufMut, BytesMut};
use h2::SendStream;

use super::RelayError;
use crate::budget::Budget;
use crate::budget::outbox::Payload;
use crate::frame::HEADER_MAX;
use crate::http2::FRAME_HEAD;
use crate::send_queue::FRAME_SIZE;
use crate::socket::Socket;
use crate::transferred::Meter;

/// The smallest read. Reads grow while they are filled, and shrink again, so that small messages do
/// not hold large buffers.
const READ_MIN: usize = 4 << 10;
/// The largest read fills one DATA frame.
const READ_MAX: usize = FRAME_SIZE as usize - FRAME_HEAD - HEADER_MAX;
/// Bytes of a client that are sent before its backend has answered: enough for a request or the
/// first message of a TLS handshake.
const FIRST_MAX: usize = 16 << 10;
/// Each read counts as at least this much of that: it is a frame of its own, which waits at the
/// agent until the dial has ended.
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
        // Capacity comes first, so that data stays in the socket and a stalled stream holds no
        // buffer.
        if budget.is_full() {
            // Boxed to keep idle streams small.
            Box::pin(outbox_capacity(socket, send, budget)).await?;
        }
        let limit = budget.frame_limit() - FRAME_HEAD - HEADER_MAX;
        let wanted = size.min(limit) + HEADER_MAX;
        let wanted = capacity(socket, send, wanted).await? - HEADER_MAX;
        let mut buffer = BytesMut::with_capacity(wanted + HEADER_MAX);
        buffer.put_bytes(0, HEADER_MAX);
        match socket.try_read(&mut (&mut buffer).limit(wanted)) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                meter.add(&buffer[HEADER_MAX..]);
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

/// Sends the first [`FIRST_MAX`] bytes of a socket as they arrive, before the relay begins. The
/// relay will find an end again. A failure is returned, because a socket reports it only once.
pub(crate) async fn send_first(
    socket: &Socket,
    send: &mut SendStream<Payload>,
    budget: &Budget,
    meter: &Meter,
) -> io::Result<()> {
    let mut left = FIRST_MAX;
    while left > 0 {
        socket.readable().await?;
        let wanted = left.min(READ_MIN);
        let mut first = BytesMut::with_capacity(wanted);
        match socket.try_read(&mut (&mut first).limit(wanted)) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                left = left.saturating_sub(read.max(PIECE_COST));
                send_now(&first, send, budget, meter);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends data from before the relay, without waiting for the window: it is little. If the stream
/// has failed, the relay reports it.
pub(crate) fn send_now(
    bytes: &[u8],
    send: &mut SendStream<Payload>,
    budget: &Budget,
    meter: &Meter,
) {
    for piece in bytes.chunks(READ_MAX) {
        let mut buffer = BytesMut::zeroed(HEADER_MAX);
        buffer.extend_from_slice(piece);
        meter.add(piece);
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
pub(crate) async fn reset(send: &mut SendStream<Payload>) -> RelayError {
    match poll_fn(|context| send.poll_reset(context)).await {
        Ok(reason) => RelayError::Reset(reason),
        Err(error) => error.into(),
    }
}

/// Waits until the tunnel has less unsent data. A reset of the stream or a failure of the socket
/// ends the wait.
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

/// Waits until the stream has capacity for a frame with payload, and returns it, at most `wanted`.
/// A failure of the socket ends the wait.
async fn capacity(
    socket: &Socket,
    send: &mut SendStream<Payload>,
    wanted: usize,
) -> Result<usize, RelayError> {
    // Reserved for many small messages at once: each reservation wakes this task.
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
            // Boxed to keep idle streams small.
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

/// Copies a small message into a small buffer: a queue of small frames must not hold large buffers.
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
