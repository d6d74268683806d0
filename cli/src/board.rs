//! What is known at present and what was known before, shared by the task that asks and those that
//! show it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::session::Session;
use crate::site::Site;
use crate::watch::{History, Watch};

/// What pages are made of.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// `None`: no host has answered yet.
    pub(crate) site: Option<Site>,
    pub(crate) history: History,
}

/// The same for several tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedBoard(Arc<Mutex<Board>>);

impl Board {
    /// Adds what is known at a moment.
    pub(crate) fn record(&mut self, site: Site, at: Instant) {
        self.history.record(&site, at);
        self.site = Some(site);
    }
}

impl SharedBoard {
    /// Asks all hosts again and again.
    pub(crate) async fn watch(&self, session: Arc<Session>, interval: Duration, news: &Notify) {
        let mut watch = Watch::new(session);
        loop {
            let (site, at) = watch.ask().await;
            self.lock().record(site, at);
            news.notify_one();
            sleep(interval).await;
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Board> {
        self.0.lock()
    }
}
