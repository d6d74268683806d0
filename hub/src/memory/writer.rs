//! The task that writes the memory to the disk.

use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::{Drain, chain};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::reboot::OnDisk;
use super::{BatchExtent, Memory};
use crate::store::{Store, WRITE_AT, WRITE_EVERY};

/// How often unsaved bytes are counted.
const FLUSH_CHECK_EVERY: Duration = Duration::from_millis(500);
/// Between two writes because the node has read something new that it cannot start without.
const URGENT_EVERY: Duration = Duration::from_secs(2);
/// How often the rescue file is written, if anything in it changed.
const RESCUE_EVERY: Duration = Duration::from_secs(600);
/// The same for a large one, which wears flash.
const LARGE_RESCUE_EVERY: Duration = Duration::from_secs(3600);
/// In bytes.
const LARGE_RESCUE: usize = 1 << 20;

/// Health of the disk, for `status`.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct DiskStatus {
    pub(crate) commits: u64,
    pub(crate) written_bytes: u64,
    pub(crate) errors: u64,
    pub(crate) last_error: Option<String>,
    /// `None`: nothing was written or read.
    #[serde(skip)]
    pub(crate) on_disk: Option<OnDisk>,
}

impl DiskStatus {
    fn of(store: &Store) -> Self {
        let health = store.health();
        Self {
            commits: health.commits,
            written_bytes: health.written_bytes,
            errors: health.errors,
            last_error: health.last_error.as_ref().map(|error| chain(error)),
            on_disk: None,
        }
    }
}

/// The task that writes.
pub(crate) struct MemoryWriter {
    memory: Memory,
    store: Store,
    status: watch::Sender<DiskStatus>,
    /// In uptime.
    last_write: Duration,
    next_rescue: Duration,
}

impl MemoryWriter {
    /// `on_disk` is what was read, if it was read whole.
    pub(super) fn new(memory: Memory, store: Store, on_disk: Option<OnDisk>) -> Self {
        let mut status = DiskStatus::of(&store);
        status.on_disk = on_disk;
        Self {
            memory,
            store,
            status: watch::Sender::new(status),
            last_write: Duration::ZERO,
            next_rescue: Duration::ZERO,
        }
    }

    pub(crate) fn status(&self) -> watch::Receiver<DiskStatus> {
        self.status.subscribe()
    }

    /// Writes every 12 s or 4 MiB, at once when told to, and a last time when the drain begins.
    ///
    /// # Errors
    /// None for a disk that cannot be written: the memory goes on without it.
    pub(crate) async fn run(mut self, drain: Drain) -> Result<()> {
        while !drain.has_begun() {
            tokio::select! {
                () = self.due() => {}
                () = drain.begun() => {}
            }
            let is_last = drain.has_begun();
            let writing = tokio::task::spawn_blocking(move || self.write(is_last));
            self = writing.await.context("write the memory to the disk")?;
        }
        Ok(())
    }

    async fn due(&self) {
        let told = self.memory.0.write_now.notified();
        let full = async {
            while !self.is_due_now() {
                sleep(FLUSH_CHECK_EVERY).await;
            }
        };
        tokio::select! {
            () = told => {}
            _ = timeout(WRITE_EVERY, full) => {}
        }
    }

    fn is_due_now(&self) -> bool {
        let since_write = self.memory.now().uptime.saturating_sub(self.last_write);
        let kept = self.memory.lock();
        kept.unsaved_bytes() >= WRITE_AT
            || (since_write >= URGENT_EVERY
                && (kept.cache.has_unsaved_essential() || kept.tokens.unsaved_bytes() > 0))
    }

    fn write(mut self, is_last: bool) -> Self {
        let batch = self.memory.lock().begin_batch();
        let uptime = self.memory.now().uptime;
        if self.store.is_due(uptime) {
            self.write_batch(uptime, is_last);
        }
        self.memory.0.last_batch.send_replace(batch);
        self
    }

    fn write_batch(&mut self, uptime: Duration, is_last: bool) {
        self.last_write = uptime;
        let everything = self.store.wants_everything();
        let mut on_disk = self.status.borrow().on_disk.clone();
        let (batch, forgot) = {
            let now = self.memory.now();
            let mut kept = self.memory.lock();
            let worth = everything || kept.unsaved_bytes() > 0;
            let extent = if everything {
                BatchExtent::Everything
            } else {
                BatchExtent::Changes
            };
            let batch = worth.then(|| kept.take_batch(extent));
            if batch.is_some() {
                on_disk = Some(OnDisk::of(&kept, &kept.cache.statuses(now)));
            }
            (batch, std::mem::take(&mut kept.forgot))
        };
        if let Some(batch) = batch.filter(|batch| !batch.is_empty())
            && let Err(error) = self.store.write(&batch, uptime)
        {
            let error = chain(error);
            tracing::warn!(
                error,
                "the disk cannot be written: the memory goes on without it"
            );
            on_disk = self.status.borrow().on_disk.clone();
        }
        let is_enough = on_disk.as_ref().is_some_and(OnDisk::is_enough);
        if forgot || is_last || (is_enough && uptime >= self.next_rescue) {
            self.write_rescue(uptime);
        }
        if forgot && let Err(error) = self.store.compact(uptime) {
            tracing::warn!(error = chain(error), "the disk cannot be compacted");
        }
        let mut status = DiskStatus::of(&self.store);
        status.on_disk = on_disk;
        self.status.send_replace(status);
    }

    fn write_rescue(&mut self, uptime: Duration) {
        let essentials = self.memory.lock().essentials();
        let pause = if essentials.bytes() > LARGE_RESCUE {
            LARGE_RESCUE_EVERY
        } else {
            RESCUE_EVERY
        };
        self.next_rescue = uptime + pause;
        if let Err(error) = self.store.write_rescue(&essentials) {
            tracing::warn!(error = chain(&error), "the rescue file cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::StateDir;

    #[test]
    fn a_disk_that_was_not_opened_is_reported_before_the_first_write() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hub");
        std::fs::write(&file, b"a file where the directory should be").unwrap();
        let (_, writer) = Memory::open(&StateDir::new(file));
        assert!(writer.status().borrow().last_error.is_some());
    }
}
