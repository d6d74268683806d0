//! What a stream receives, through all tunnels that it moves to: each half is read to its end before
//! the next one is.

use std::future::{pending, poll_fn};
use std::sync::Arc;

use tokio::time::timeout;

use super::{DELIVERY_TIMEOUT, Incoming, RelayError, Relocation};
use crate::frame::FrameError;

/// The direction out of the tunnel.
pub(super) struct ReceiveHalves<'a> {
    /// The half that is read.
    pub(super) half: &'a mut Incoming,
    next: Next,
    /// `None`: the stream stays in its tunnel.
    relocation: Option<Arc<Relocation>>,
}

/// The half in another tunnel. Its payload is gathered meanwhile, so that it counts in the budget.
enum Next {
    /// There is none yet.
    NotOffered,
    Half(Box<Incoming>),
    /// It matters if the stream goes on there, which the end of the present half says.
    Failed(Box<RelayError>),
}

impl<'a> ReceiveHalves<'a> {
    pub(super) fn new(half: &'a mut Incoming) -> Self {
        let relocation = half.relocation();
        Self {
            half,
            next: Next::NotOffered,
            relocation,
        }
    }

    /// Whether nothing follows what waits.
    pub(super) fn has_ended(&self) -> bool {
        let goes_on = self.relocation.is_some() && self.half.has_moved();
        self.half.has_ended() && !goes_on
    }

    /// Waits for more payload; `false` at the end.
    pub(super) async fn receive(&mut self) -> Result<bool, RelayError> {
        let Some(relocation) = &self.relocation else {
            let is_more = self.half.receive().await?;
            if !is_more && self.half.has_moved() {
                return Err(FrameError::NotData.into());
            }
            return Ok(is_more);
        };
        while !self.half.has_moved() {
            tokio::select! {
                biased;
                received = self.half.receive() => {
                    let is_more = received?;
                    if is_more || !self.half.has_moved() {
                        return Ok(is_more);
                    }
                }
                failed = self.next.gather(relocation) => return Err(failed),
            }
        }
        // Boxed to keep idle streams small.
        Box::pin(self.follow()).await
    }

    /// Gathers what comes by the half in another tunnel, while the socket takes what is left of this
    /// one. Returns the error that ends the stream.
    pub(super) async fn gather_next(&mut self) -> RelayError {
        match &self.relocation {
            Some(relocation) => self.next.gather(relocation).await,
            None => pending().await,
        }
    }

    /// Goes on with the next half, once the socket has taken all of this one.
    async fn follow(&mut self) -> Result<bool, RelayError> {
        let Some(relocation) = self.relocation.clone() else {
            return Ok(false);
        };
        if !self.half.is_empty() {
            return Err(self.next.gather(&relocation).await);
        }
        let next = match std::mem::replace(&mut self.next, Next::NotOffered) {
            Next::Half(next) => next,
            Next::NotOffered => relocation.next_receive_half().await?,
            Next::Failed(error) => return Err(*error),
        };
        *self.half = *next;
        relocation.followed();
        self.half.set_relocation(relocation);
        Ok(true)
    }

    /// Reads the half in another tunnel to its end, if this one ended before the other end knew of it:
    /// dropped, it would be reset. What comes later than that is not kept.
    pub(super) async fn discard_next(&mut self) {
        let Some(relocation) = &self.relocation else {
            return;
        };
        if let Some(half) = relocation.received_all() {
            self.next = Next::Half(half);
        }
        if let Next::Half(next) = &mut self.next {
            let discarded = timeout(DELIVERY_TIMEOUT, next.discard());
            discarded.await.unwrap_or_default();
        }
        self.next = Next::NotOffered;
    }
}

/// The relay has ended.
impl Drop for ReceiveHalves<'_> {
    fn drop(&mut self) {
        if let Some(relocation) = &self.relocation {
            relocation.close();
        }
    }
}

impl Next {
    /// Receives by the half in another tunnel, once there is one. Returns the error that ends the
    /// stream: that it takes too much of the budget. Another one is kept.
    async fn gather(&mut self, relocation: &Relocation) -> RelayError {
        if matches!(self, Self::NotOffered) {
            let half = poll_fn(|context| relocation.poll_receive_half(context)).await;
            *self = Self::Half(half);
        }
        if let Self::Half(half) = self {
            // Boxed to keep idle streams small.
            let failed = Box::pin(half.gather()).await;
            if let RelayError::Budget = failed {
                return failed;
            }
            *self = Self::Failed(Box::new(failed));
        }
        pending().await
    }
}
