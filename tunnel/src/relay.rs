//! Copies one connection's bytes both ways between a socket and a stream of a tunnel. Both ends of
//! a tunnel run this.
//!
//! One task does it all: nothing is buffered while a stream is idle, a direction that ends is
//! half-closed, and a failure of either side reaches the other behind what that side had said, even
//! while one waits for the other's window.

mod backlog;
mod error;
mod into_tunnel;
mod out_of_tunnel;

use std::pin::{Pin, pin};
use std::time::Duration;

use h2::{Reason, SendStream};
use tokio::time::timeout;

pub use error::RelayError;
use into_tunnel::{into_tunnel, reset};
pub(crate) use into_tunnel::{send_first, send_now};
pub(crate) use out_of_tunnel::Incoming;
use out_of_tunnel::out_of_tunnel;

use crate::grpc;
use crate::outbox::Payload;
use crate::role::Role;
use crate::socket::{Close, Socket};
use crate::transferred::Transferred;

/// How long the direction that still works may take to deliver what it has when the other has
/// failed.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Relays until both directions ended or one failed. What one side had said before it failed still
/// reaches the other. Where this fails, or is dropped, the stream and the socket are to be dropped
/// too, which resets both: no FIN may pass off a part as the whole.
///
/// # Errors
/// What failed first.
pub(crate) async fn relay(
    socket: &Socket,
    send: &mut SendStream<Payload>,
    incoming: &mut Incoming,
    role: Role,
    transferred: &Transferred,
) -> Result<(), RelayError> {
    socket.on_close(Close::Reset);
    let budget = incoming.budget();
    let mut inward = pin!(out_of_tunnel(
        socket,
        incoming,
        role,
        &transferred.out_of_tunnel
    ));
    let first = {
        let outward = into_tunnel(socket, send, &budget, &transferred.into_tunnel);
        first_half(inward.as_mut(), pin!(outward)).await
    };
    finish(send, role, first.as_ref().err());
    let result = match first {
        Ok(Direction::Inward) => Ok(()),
        Ok(Direction::Outward) => second_half(inward, socket, send, role).await,
        Err(error) => Err(error),
    };
    if result.is_ok() {
        socket.on_close(Close::Finish);
    }
    result
}

/// One of a relay's directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// Tunnel to socket.
    Inward,
    /// Socket to tunnel.
    Outward,
}

/// Runs both directions until the one into the tunnel has ended; says which one was last. A
/// direction whose own source and sink are in order gets to finish what it has when the other
/// fails: boxed, for few streams get there and all would be that much larger.
async fn first_half(
    mut inward: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    mut outward: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
) -> Result<Direction, RelayError> {
    tokio::select! {
        biased;
        ended = inward.as_mut() => match ended {
            Ok(()) => outward.await.map(|()| Direction::Inward),
            Err(error @ RelayError::Socket(_)) => Err(Box::pin(after_delivery(outward, error)).await),
            Err(error) => Err(error),
        },
        ended = outward.as_mut() => match ended {
            Ok(()) => Ok(Direction::Outward),
            Err(error @ RelayError::Socket(_)) => Err(error),
            Err(error) => Err(Box::pin(after_delivery(inward, error)).await),
        },
    }
}

/// Runs the direction out of the tunnel to its end. The other one has ended, so nothing else would
/// notice a failure of its side.
async fn second_half(
    mut inward: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    socket: &Socket,
    send: &mut SendStream<Payload>,
    role: Role,
) -> Result<(), RelayError> {
    let failed = tokio::select! {
        biased;
        ended = inward.as_mut() => match ended {
            Err(error) => error,
            Ok(()) => return Ok(()),
        },
        failed = socket.failure() => RelayError::Socket(failed),
        failed = reset(send) => Box::pin(after_delivery(inward, failed)).await,
    };
    if role == Role::Proxy {
        send.send_reset(Reason::CANCEL);
    }
    Err(failed)
}

async fn after_delivery(
    half: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    error: RelayError,
) -> RelayError {
    // Whether it got to its end or not, the failure is what the relay ends with.
    timeout(DELIVERY_TIMEOUT, half).await.ok();
    error
}

/// Ends the direction into the tunnel, which has read all that its socket had.
fn finish(send: &mut SendStream<Payload>, role: Role, failed: Option<&RelayError>) {
    send.reserve_capacity(0);
    let finished = match (role, failed) {
        (Role::Proxy, None) => send.send_data(Payload::end(), true),
        (Role::Agent, None) => send.send_trailers(grpc::trailers(grpc::OK)),
        // In its place behind the data: a reset would overtake them.
        (Role::Agent, Some(RelayError::Socket(_))) => {
            send.send_trailers(grpc::trailers(grpc::ABORTED))
        }
        (Role::Proxy | Role::Agent, Some(_)) => {
            send.send_reset(Reason::CANCEL);
            Ok(())
        }
    };
    if let Err(error) = finished {
        tracing::debug!(%error, "the stream had ended already");
    }
}
