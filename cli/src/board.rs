//! What is known at present and what was known before, shared by whoever asks and whoever shows it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::site::Site;
use crate::watch::History;
use crate::web::Frame;

/// What pages are made of.
#[derive(Debug)]
pub(crate) struct Board {
    /// `None`: nobody has answered yet.
    pub(crate) site: Option<Site>,
    pub(crate) history: History,
    pub(crate) frame: Frame,
}

/// The same for several tasks.
#[derive(Clone, Debug)]
pub(crate) struct SharedBoard(Arc<Mutex<Board>>);

impl Board {
    pub(crate) fn new(frame: Frame) -> Self {
        Self {
            site: None,
            history: History::default(),
            frame,
        }
    }

    /// Adds what is known at a moment.
    pub(crate) fn record(&mut self, site: Site, at: Instant) {
        self.history.record(&site, at);
        self.site = Some(site);
    }
}

impl SharedBoard {
    pub(crate) fn new(board: Board) -> Self {
        Self(Arc::new(Mutex::new(board)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Board> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
