//! Copies one connection's bytes both ways between a socket and a stream of a tunnel. Both ends of
//! a tunnel run this.
//!
//! One task relays both directions. Nothing is buffered while a stream is idle. A direction that
//! ends is half-closed. A failure of one side reaches the other side after the data that came
//! before it, even while a direction waits for its window.
//!
//! Every stream has such a task, so its future must be small: async fn arguments are stored twice
//! in the future (rust-lang/rust#62958); pass by reference.

mod backlog;
mod between_tunnels;
mod error;
mod into_tunnel;
mod out_of_tunnel;
mod receive_halves;
mod relocation;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::time::Duration;

use h2::{Reason, SendStream};
use tokio::time::timeout;

pub(crate) use between_tunnels::between_tunnels;
pub use error::RelayError;
use into_tunnel::into_tunnel;
pub(crate) use into_tunnel::{reset, send_first, send_now};
pub(crate) use out_of_tunnel::Incoming;
use out_of_tunnel::out_of_tunnel;
use receive_halves::ReceiveHalves;
pub(crate) use relocation::{Relocation, SendHalf};

use crate::answer::Direction;
use crate::budget::Budget;
use crate::budget::outbox::Payload;
use crate::grpc;
use crate::role::Role;
use crate::socket::{Close, Socket};
use crate::transferred::{Meter, Transferred};

/// After a failure, data that came before it may take this long to be delivered.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Relays until both directions have ended or one has failed. Data from before a failure is still
/// delivered. After an error, or when this is dropped, the caller must drop the stream and the
/// socket, which resets both: truncated data must not end with FIN.
///
/// # Errors
/// The first failure of either side or of the tunnel.
pub(crate) async fn relay(
    socket: &Socket,
    send: &mut SendStream<Payload>,
    incoming: &mut Incoming,
    role: Role,
    transferred: &Transferred,
) -> Result<(), RelayError> {
    socket.on_close(Close::Reset);
    let budget = incoming.budget();
    let relocation = incoming.relocation();
    let mut halves = ReceiveHalves::new(incoming);
    let mut from_tunnel = pin!(out_of_tunnel(
        socket,
        &mut halves,
        role,
        &transferred.out_of_tunnel
    ));
    let first = {
        let mut to_tunnel = ToTunnel {
            socket,
            send,
            budget,
            meter: &transferred.into_tunnel,
            role,
        };
        let to_tunnel = pin!(to_tunnel.run(relocation.as_deref()));
        first_half(from_tunnel.as_mut(), to_tunnel).await
    };
    finish(send, role, first.as_ref().err());
    if let Some(relocation) = &relocation {
        relocation.sent_all();
    }
    let result = match first {
        Ok(Direction::OutOfTunnel) => Ok(()),
        Ok(Direction::IntoTunnel) => second_half(from_tunnel, socket, send, role).await,
        Err(error) => Err(error),
    };
    if result.is_ok() {
        socket.on_close(Close::Finish);
    }
    result
}

/// The direction from the socket into the tunnel.
struct ToTunnel<'a> {
    socket: &'a Socket,
    send: &'a mut SendStream<Payload>,
    /// The budget of the tunnel that it sends by.
    budget: Budget,
    meter: &'a Meter,
    role: Role,
}

impl ToTunnel<'_> {
    /// Copies until the socket's end. Once another tunnel is offered, the rest goes through that one.
    /// The copy waits only at frame boundaries: all that was read has been sent.
    async fn run(&mut self, relocation: Option<&Relocation>) -> Result<(), RelayError> {
        let Some(relocation) = relocation else {
            return into_tunnel(self.socket, self.send, &self.budget, self.meter).await;
        };
        loop {
            let half = tokio::select! {
                biased;
                half = poll_fn(|context| relocation.poll_send_half(context)) => half,
                ended = into_tunnel(self.socket, self.send, &self.budget, self.meter) => {
                    return ended;
                }
            };
            if relocation::leave(self.send, self.role).is_err() {
                return Err(reset(self.send).await);
            }
            let SendHalf { stream, budget } = *half;
            *self.send = stream;
            self.budget = budget;
        }
    }
}

/// Runs both directions until the one into the tunnel has ended, and returns the one that ended
/// first. After a failure of one direction, the other delivers its data if its own source and sink
/// still work. Boxed: few streams get there, and the future of every stream would be larger.
async fn first_half(
    mut from_tunnel: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    mut to_tunnel: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
) -> Result<Direction, RelayError> {
    tokio::select! {
        biased;
        ended = from_tunnel.as_mut() => match ended {
            Ok(()) => to_tunnel.await.map(|()| Direction::OutOfTunnel),
            Err(error @ RelayError::Socket(_)) => Err(Box::pin(after_delivery(to_tunnel, error)).await),
            Err(error) => Err(error),
        },
        ended = to_tunnel.as_mut() => match ended {
            Ok(()) => Ok(Direction::IntoTunnel),
            Err(error @ RelayError::Socket(_)) => Err(error),
            Err(error) => Err(Box::pin(after_delivery(from_tunnel, error)).await),
        },
    }
}

/// Runs the direction out of the tunnel to its end. The other direction has ended, so failures of
/// the socket and of the stream are watched here.
async fn second_half(
    mut from_tunnel: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    socket: &Socket,
    send: &mut SendStream<Payload>,
    role: Role,
) -> Result<(), RelayError> {
    let failed = tokio::select! {
        biased;
        ended = from_tunnel.as_mut() => match ended {
            Err(error) => error,
            Ok(()) => return Ok(()),
        },
        failed = socket.failure() => RelayError::Socket(failed),
        failed = reset(send) => Box::pin(after_delivery(from_tunnel, failed)).await,
    };
    if role == Role::Proxy {
        send.send_reset(Reason::CANCEL);
    }
    Err(failed)
}

/// Lets the other direction deliver its data after one has failed with `error`, for some seconds.
pub(crate) async fn after_delivery(
    half: Pin<&mut impl Future<Output = Result<(), RelayError>>>,
    error: RelayError,
) -> RelayError {
    // The relay ends with the first failure, whether or not all was delivered.
    timeout(DELIVERY_TIMEOUT, half).await.ok();
    error
}

/// Ends the stream's half into the tunnel.
fn finish(send: &mut SendStream<Payload>, role: Role, failed: Option<&RelayError>) {
    send.reserve_capacity(0);
    let finished = match (role, failed) {
        (Role::Proxy, None) => send.send_data(Payload::end(), true),
        (Role::Agent, None) => send.send_trailers(grpc::trailers(grpc::OK)),
        // Trailers arrive after the data; a reset would overtake it.
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
