//! The streams that a tunnel carries and has carried.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::http2::Keepalive;

/// Counts of a tunnel's streams.
#[derive(Debug)]
pub(crate) struct Load {
    /// Streams that are open or being opened.
    pub(crate) active: AtomicU32,
    /// Streams in the whole life of the tunnel.
    pub(crate) opened: AtomicU32,
    /// Streams that this end ended while nothing arrived from the agent.
    pub(crate) given_up_in_silence: AtomicU32,
    /// Whether the agent moves streams between tunnels, as it says.
    pub(crate) moves: AtomicBool,
    pub(crate) keepalive: Keepalive,
}

impl Load {
    pub(crate) fn new(keepalive: Keepalive) -> Self {
        let active = AtomicU32::new(0);
        let opened = AtomicU32::new(0);
        let given_up_in_silence = AtomicU32::new(0);
        let moves = AtomicBool::new(false);
        Self {
            active,
            opened,
            given_up_in_silence,
            moves,
            keepalive,
        }
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.keepalive.is_silent()
    }
}

/// The permit of one stream. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct StreamPermit(Arc<Load>);

impl StreamPermit {
    pub(crate) fn acquire(load: &Arc<Load>, limit: u32) -> Option<Self> {
        load.active
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |active| {
                if active < limit {
                    Some(active + 1)
                } else {
                    None
                }
            })
            .ok()?;
        Some(Self(load.clone()))
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
        if self.0.is_silent() {
            self.0.given_up_in_silence.fetch_add(1, Ordering::Relaxed);
        }
    }
}
