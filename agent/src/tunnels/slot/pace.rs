//! When a slot tries again, and how often it looks for another proxy behind an address.

use std::time::Duration;

use culvert_daemon::{Backoff, jittered};
use tokio::time::Instant;

use super::error::SlotError;
use crate::tunnels::placement::Placement;

/// Attempts in a row to find another proxy behind an address that leads to one with enough tunnels.
/// With two proxies behind it that act by chance, one of 64 agents finds only one of them.
pub(super) const MAX_LOOKS: u32 = 6;
/// Longest time until one more attempt of that kind.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// When a slot tries again.
pub(super) struct Pace {
    backoff: Backoff,
    pub(super) attempts: usize,
    /// How many times the slot may still look for another proxy behind an address.
    pub(super) looks: u32,
    /// When it may do so again, if there is no new reason until then.
    pub(super) look_again: Instant,
    /// The [`Placement::reasons_to_look`] that are known here.
    reasons: u64,
}

impl Pace {
    pub(super) fn new(placement: &Placement) -> Self {
        Self {
            backoff: Backoff::for_tunnels(),
            attempts: 0,
            looks: MAX_LOOKS,
            look_again: Instant::now() + jittered(LOOK_AGAIN),
            reasons: placement.reasons_to_look(),
        }
    }

    /// With a reason that is new, the slot may look as often as at first.
    pub(super) fn update(&mut self, reasons: u64) {
        if reasons != self.reasons {
            self.reasons = reasons;
            self.looks = MAX_LOOKS;
        }
    }

    pub(super) fn look_again(&mut self) {
        self.looks = self.looks.max(1);
        self.look_again = Instant::now() + jittered(LOOK_AGAIN);
    }

    /// How long the next attempt waits, after an attempt or a tunnel of this length.
    pub(super) fn wait(&mut self, error: &SlotError, life: Duration) -> Duration {
        if let Some([from, to]) = error.times() {
            return rand::random_range(from..to);
        }
        match error {
            SlotError::Tunnel(_) => self.backoff.wait_after(life),
            // The address is left alone for long.
            _ if error.is_refusal() => {
                self.backoff.reset();
                self.backoff.wait()
            }
            SlotError::Connect(_)
            | SlotError::Tls(_)
            | SlotError::Refused(_)
            | SlotError::Dismissed
            | SlotError::Unused
            | SlotError::Declined(_) => self.backoff.wait(),
        }
    }
}
