//! What a stream receives, through all tunnels that it moves to: each half is read to its end before
//! the next one is.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::time::timeout;

use super::{DELIVERY_TIMEOUT, Incoming, RelayError, Relocation};

/// The direction out of the tunnel.
pub(super) struct Inward<'a> {
    /// The half that is read.
    pub(super) half: &'a mut Incoming,
    /// The half in another tunnel. Its payload is gathered meanwhile, so that it counts in the
    /// budget.
    next: Option<Box<Incoming>>,
    /// `None`: the stream stays in its tunnel.
    relocation: Option<Arc<Relocation>>,
}

impl<'a> Inward<'a> {
    pub(super) fn new(half: &'a mut Incoming) -> Self {
        let relocation = half.relocation();
        Self {
            half,
            next: None,
            relocation,
        }
    }

    /// Whether nothing follows what waits.
    pub(super) fn has_ended(&self) -> bool {
        self.half.has_ended() && !self.half.has_moved()
    }

    /// Waits for more payload; `false` at the end.
    pub(super) async fn receive(&mut self) -> Result<bool, RelayError> {
        let Some(relocation) = &self.relocation else {
            return self.half.receive().await;
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
                failed = gather(&mut self.next, relocation) => return Err(failed),
            }
        }
        // Boxed to keep idle streams small.
        Box::pin(self.follow()).await
    }

    /// Goes on with the next half, once the socket has taken all of this one.
    async fn follow(&mut self) -> Result<bool, RelayError> {
        let Some(relocation) = self.relocation.clone() else {
            return Ok(false);
        };
        if !self.half.is_empty() {
            return Err(gather(&mut self.next, &relocation).await);
        }
        let next = match self.next.take() {
            Some(next) => next,
            None => relocation.next_receive_half().await?,
        };
        *self.half = *next;
        relocation.followed();
        self.half.set_relocation(relocation);
        Ok(true)
    }

    /// Reads the half in another tunnel to its end, if this one ended before the other end knew of it:
    /// dropped, it would be reset.
    pub(super) async fn discard_next(&mut self) {
        if let Some(next) = &mut self.next {
            let discarded = timeout(DELIVERY_TIMEOUT, next.discard());
            discarded.await.unwrap_or_default();
        }
    }
}

/// The relay has ended.
impl Drop for Inward<'_> {
    fn drop(&mut self) {
        if let Some(relocation) = &self.relocation {
            relocation.close();
        }
    }
}

/// Receives by the half in another tunnel, once there is one. Returns the error that ends it.
async fn gather(next: &mut Option<Box<Incoming>>, relocation: &Relocation) -> RelayError {
    let next = match next {
        Some(next) => next,
        None => {
            let half = poll_fn(|context| relocation.poll_receive_half(context)).await;
            next.insert(half)
        }
    };
    // Boxed to keep idle streams small.
    Box::pin(next.gather()).await
}
