//! Copies from a stream of one tunnel to a stream of another, without a look at the messages.

use std::future::poll_fn;

use h2::SendStream;

use super::RelayError;
use super::into_tunnel::reset;
use super::out_of_tunnel::Incoming;
use crate::budget::Budget;
use crate::budget::outbox::Payload;
use crate::http2::FRAME_HEAD;
use crate::send_queue::FRAME_SIZE;
use crate::transferred::Meter;

/// Copies until the stream's end. While the other tunnel takes nothing, frames are still taken from
/// HTTP/2 and count in the budget of the tunnel that they came by. `budget` is that of the tunnel
/// that they are sent to.
pub(crate) async fn between_tunnels(
    incoming: &mut Incoming,
    send: &mut SendStream<Payload>,
    budget: &Budget,
    meter: &Meter,
) -> Result<(), RelayError> {
    loop {
        if incoming.is_empty() {
            tokio::select! {
                biased;
                received = incoming.receive_frame() => if !received? { return Ok(()) },
                failed = reset(send) => return Err(failed),
            }
            continue;
        }
        let limit = budget.frame_limit() - FRAME_HEAD;
        if send.capacity() < incoming.next_piece().min(limit) {
            send.reserve_capacity(FRAME_SIZE as usize);
        }
        if send.capacity() == 0 || budget.is_full() {
            // Boxed to keep idle streams small.
            Box::pin(stalled(incoming, send, budget)).await?;
        } else {
            let piece = incoming.read(send.capacity().min(limit))?;
            meter.add(&piece);
            send.send_data(Payload::forwarded(piece, budget), false)?;
        }
    }
}

/// Waits until the other tunnel takes bytes again, or more arrive for it.
async fn stalled(
    incoming: &mut Incoming,
    send: &mut SendStream<Payload>,
    budget: &Budget,
) -> Result<(), RelayError> {
    let evicted = incoming.stalls_between_tunnels();
    let ended = incoming.has_ended();
    tokio::select! {
        biased;
        () = evicted => Err(RelayError::Budget),
        ready = capacity(send, budget) => ready,
        received = incoming.receive_frame(), if !ended => received.map(|_| ()),
    }
}

/// Waits until the stream may send and its tunnel has less unsent data.
async fn capacity(send: &mut SendStream<Payload>, budget: &Budget) -> Result<(), RelayError> {
    while send.capacity() == 0 {
        match poll_fn(|context| send.poll_capacity(context)).await {
            Some(capacity) => drop(capacity?),
            None => return Err(reset(send).await),
        }
    }
    tokio::select! {
        biased;
        failed = reset(send) => Err(failed),
        () = budget.capacity() => Ok(()),
    }
}
