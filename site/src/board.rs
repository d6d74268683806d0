//! What is known at present and what was known before, shared by those that ask and those that show it.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::history::History;
use crate::site::Site;

/// What pages are made of.
#[derive(Debug, Default)]
pub struct Board {
    /// `None`: no host has answered yet.
    pub site: Option<Site>,
    /// What was seen before it.
    pub history: History,
}

/// The same for several tasks.
#[derive(Clone, Debug, Default)]
pub struct SharedBoard(Arc<Mutex<Board>>);

impl Board {
    /// Adds what is known at a moment.
    pub fn record(&mut self, site: Site, at: Instant) {
        self.history.record(&site, at);
        self.site = Some(site);
    }
}

impl SharedBoard {
    /// For a moment: others wait.
    pub fn lock(&self) -> MutexGuard<'_, Board> {
        self.0.lock()
    }
}
