//! How a relay moves its stream to another tunnel. The halves of a stream there are offered, and
//! each direction takes its own at a frame boundary: the sender ends the old half with `moved`, and
//! the receiver reads the old half to its end before it reads the new one. So a direction stays in
//! order without numbers and without a buffer.

use std::future::poll_fn;

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use h2::SendStream;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{Incoming, RelayError};
use crate::budget::Budget;
use crate::budget::outbox::Payload;
use crate::frame::{self, FrameError};
use crate::grpc;
use crate::proto::tunnel::{Frame, Moved, frame::Kind};
use crate::role::Role;

/// The new half may come this much later than the end of the old one: it takes another tunnel.
const OFFER_TIMEOUT: Duration = Duration::from_secs(20);

/// The moves of one stream, at one end.
#[derive(Debug)]
pub(crate) struct Relocation {
    role: Role,
    state: Mutex<State>,
    /// Notified when the move that began fails.
    abandoned: Notify,
    /// Notified of the end of the relay. A move that waits for the other end waits for it too.
    closed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The other end was asked, or asked this one: halves are on their way.
    is_asked: bool,
    send: Option<Box<SendHalf>>,
    receive: Option<Box<Incoming>>,
    /// The relay, which waits for either half. It is one task for both directions.
    relay: Option<Waker>,
    /// The direction out of the tunnel has not ended its old half yet.
    is_reading_old: bool,
    /// The direction into the tunnel has ended.
    has_sent_all: bool,
    /// The direction out of the tunnel has ended.
    has_received_all: bool,
    is_closed: bool,
    moves: u32,
}

/// The half of a stream that the direction into the tunnel sends by.
#[derive(Debug)]
pub(crate) struct SendHalf {
    pub(crate) stream: SendStream<Payload>,
    /// The budget of its tunnel.
    pub(crate) budget: Budget,
}

/// The stream moves already, or cannot move any more.
#[derive(Debug)]
pub(crate) struct CannotMove;

impl State {
    fn poll<T>(
        &mut self,
        context: &Context<'_>,
        take: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Poll<T> {
        let Some(half) = take(self) else {
            let relay = context.waker();
            if !self
                .relay
                .as_ref()
                .is_some_and(|known| known.will_wake(relay))
            {
                self.relay = Some(relay.clone());
            }
            return Poll::Pending;
        };
        Poll::Ready(half)
    }
}

impl Relocation {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            state: Mutex::default(),
            abandoned: Notify::new(),
            closed: Notify::new(),
        }
    }

    /// Begins a move, of which there is one at a time. A stream whose direction into the tunnel has
    /// ended stays where it is.
    pub(crate) fn claim(&self) -> Result<(), CannotMove> {
        let mut state = self.lock();
        let is_under_way = state.is_asked || state.send.is_some() || state.is_reading_old;
        if is_under_way || state.has_sent_all || state.is_closed {
            return Err(CannotMove);
        }
        state.is_asked = true;
        Ok(())
    }

    /// The move that began comes to nothing.
    pub(crate) fn abandon(&self) {
        self.lock().is_asked = false;
        self.abandoned.notify_one();
    }

    /// Offers the halves of the move that began. A direction that has ended needs none: its half ends
    /// in order. If the relay has ended, both are reset.
    pub(crate) fn offer(&self, mut send: SendHalf, receive: Incoming) {
        let mut state = self.lock();
        state.is_asked = false;
        if state.is_closed {
            return;
        }
        state.moves += 1;
        if state.has_sent_all {
            end(&mut send.stream, self.role);
        } else {
            state.send = Some(Box::new(send));
        }
        if !state.has_received_all {
            state.receive = Some(Box::new(receive));
            state.is_reading_old = true;
        }
        if let Some(relay) = state.relay.take() {
            relay.wake();
        }
    }

    /// Waits for a half to send by, in place of the present one. A poll is all that it stores in the
    /// future of an idle stream.
    pub(super) fn poll_send_half(&self, context: &Context<'_>) -> Poll<Box<SendHalf>> {
        let mut state = self.lock();
        state.poll(context, |state| state.send.take())
    }

    /// Waits for a half to receive by, after the present one.
    pub(super) fn poll_receive_half(&self, context: &Context<'_>) -> Poll<Box<Incoming>> {
        let mut state = self.lock();
        state.poll(context, |state| state.receive.take())
    }

    /// The same once the present one has ended with `moved`.
    pub(super) async fn next_receive_half(&self) -> Result<Box<Incoming>, RelayError> {
        let offered = timeout(OFFER_TIMEOUT, async {
            tokio::select! {
                biased;
                half = poll_fn(|context| self.poll_receive_half(context)) => Some(half),
                () = self.no_move() => None,
            }
        });
        match offered.await {
            Ok(Some(half)) => Ok(half),
            // The other end should not have said that it moved.
            Ok(None) | Err(_) => Err(FrameError::NotData.into()),
        }
    }

    /// The direction out of the tunnel has read all of the old half.
    pub(super) fn followed(&self) {
        self.lock().is_reading_old = false;
    }

    /// Waits until no move is under way.
    async fn no_move(&self) {
        while self.lock().is_asked {
            self.abandoned.notified().await;
        }
    }

    /// The direction into the tunnel has ended by the half that it has now.
    pub(super) fn sent_all(&self) {
        let mut state = self.lock();
        state.has_sent_all = true;
        if let Some(mut half) = state.send.take() {
            end(&mut half.stream, self.role);
        }
    }

    /// The direction out of the tunnel has ended by the half that it has now. Returns the half that it
    /// was offered and did not need.
    pub(super) fn received_all(&self) -> Option<Box<Incoming>> {
        let mut state = self.lock();
        state.has_received_all = true;
        state.receive.take()
    }

    /// The relay has ended.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.send = None;
        state.receive = None;
        self.closed.notify_one();
    }

    /// Waits for the end of the relay.
    pub(crate) async fn closed(&self) {
        while !self.lock().is_closed {
            self.closed.notified().await;
        }
    }

    /// How often the stream has moved.
    pub(crate) fn moves(&self) -> u32 {
        self.lock().moves
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Ends a half that the direction into the tunnel leaves for another one.
pub(super) fn leave(send: &mut SendStream<Payload>, role: Role) -> Result<(), h2::Error> {
    let moved = frame::encode(&Frame {
        kind: Some(Kind::Moved(Moved {})),
    });
    send.reserve_capacity(0);
    match role {
        Role::Proxy => send.send_data(moved.into(), true),
        Role::Agent => {
            send.send_data(moved.into(), false)?;
            send.send_trailers(grpc::trailers(grpc::OK))
        }
    }
}

/// Ends a half by which nothing was sent.
fn end(send: &mut SendStream<Payload>, role: Role) {
    let ended = match role {
        Role::Proxy => send.send_data(Payload::end(), true),
        Role::Agent => send.send_trailers(grpc::trailers(grpc::OK)),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "the stream had ended already");
    }
}
