//! What the hub remembers, behind one lock, and the task that writes it to the disk.

mod reboot;
mod tokens;
mod writer;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use bytes::Bytes;
use culvert_daemon::Drain;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use self::reboot::PresentPods;
use self::tokens::Tokens;
pub(crate) use self::tokens::{MAX_TOKENS, TOKEN};
pub(crate) use self::writer::{DiskStatus, MemoryWriter};
use crate::cache::{Bounds, Cache, Clock};
use crate::events::EventQueue;
use crate::state_dir::StateDir;
use crate::store::{Batch, LoadedFrom, Store};
use crate::upstream::cluster::KnownVersions;
use crate::upstream::watcher::LinkStatus;

/// How long something is remembered that no client asks for.
const FORGET_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// For how long the link must have been up before anything is forgotten: by then every client that
/// is there has asked again.
const FORGET_AFTER_UP: Duration = Duration::from_secs(3600);
/// Kubelet waits no longer for a disk.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The memory of the hub. Clones share it.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Shared>);

struct Shared {
    kept: Mutex<Remembered>,
    start: Instant,
    /// What the clock of the system said then. It may be moved later, by days: what it says counts
    /// only once, so that nothing is suddenly old.
    start_wall: SystemTime,
    /// The next write is due now.
    write_now: Notify,
    /// The number of the last batch that is on the disk, or that the disk did not take.
    last_batch: watch::Sender<u64>,
    /// Something was written that only the hub knows.
    written_locally: watch::Sender<()>,
}

/// What is behind the lock.
pub(crate) struct Remembered {
    pub(crate) cache: Cache,
    pub(crate) tokens: Tokens,
    pub(crate) events: EventQueue,
    /// Old things were forgotten: the disk may have unused space after the next write.
    forgot: bool,
    /// How many times a batch was taken for the disk.
    batches: u64,
}

impl Memory {
    /// Reads what an earlier process left on the disk.
    pub(crate) fn open(state: &StateDir) -> (Self, MemoryWriter) {
        let (mut store, rows) = Store::open(state.path(), Duration::ZERO);
        let mut cache = Cache::new(Bounds::default());
        let mut tokens = Tokens::default();
        let restored = cache.restore(&rows);
        tokens.restore(&rows);
        let loaded_from = store.health().loaded_from;
        let is_incomplete = loaded_from == LoadedFrom::DamagedDatabase
            || rows.damaged > 0
            || restored.damaged_sets > 0;
        if is_incomplete {
            store.demand_everything();
        }
        let mut rescued = 0;
        if is_incomplete && let Some(rescue) = store.rescue() {
            rescued = cache.restore_missing(&rescue).sets;
            tokens.restore(&rescue);
        }
        tracing::info!(
            sets = restored.sets,
            damaged_sets = restored.damaged_sets,
            rescued_sets = rescued,
            ?loaded_from,
            "memory read"
        );
        let kept = Remembered {
            cache,
            tokens,
            events: EventQueue::restore(&rows),
            forgot: false,
            batches: 0,
        };
        let memory = Self::of(kept);
        let now = memory.now();
        memory.lock().cache.believe_no_later_than(now);
        let is_whole = loaded_from == LoadedFrom::Database && !is_incomplete;
        let on_disk = is_whole.then(|| memory.on_disk());
        let writer = MemoryWriter::new(memory.clone(), store, on_disk);
        (memory, writer)
    }

    fn of(kept: Remembered) -> Self {
        Self(Arc::new(Shared {
            kept: Mutex::new(kept),
            start: Instant::now(),
            start_wall: SystemTime::now(),
            write_now: Notify::new(),
            last_batch: watch::Sender::default(),
            written_locally: watch::Sender::default(),
        }))
    }

    pub(crate) fn now(&self) -> Clock {
        let uptime = self.0.start.elapsed();
        Clock {
            wall: self.0.start_wall + uptime,
            uptime,
        }
    }

    /// Forgets what no client has asked for in a week and no pod needs, and old tokens.
    fn forget_old(&self) {
        let now = self.now();
        let Some(since) = now.wall.checked_sub(FORGET_AFTER) else {
            return;
        };
        let Ok(now_seconds) = now.wall.duration_since(SystemTime::UNIX_EPOCH) else {
            return;
        };
        let mut kept = self.lock();
        let present = PresentPods::read(&kept.cache);
        let sets = kept.cache.forget_unasked(since, &present.needed);
        kept.cache.settle_doubts(now);
        let pods = Some(&present.uids).filter(|_| present.are_known);
        kept.tokens.forget_expired(now_seconds.as_secs(), pods);
        kept.forgot = true;
        tracing::debug!(sets, "what no client asks for any more was forgotten");
    }

    /// Remembers the answer to a request for a token.
    pub(crate) fn record_token_answer(&self, request: String, answer: Bytes) {
        let mut kept = self.lock();
        let present = kept
            .tokens
            .is_full()
            .then(|| PresentPods::read(&kept.cache));
        let present = present.filter(|present| present.are_known);
        let uids = present.as_ref().map(|present| &present.uids);
        kept.tokens.record_answer(request, answer, uids);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.kept.lock()
    }

    /// Wakes the open watches: an overlay came or changed.
    pub(crate) fn wake_watches(&self) {
        self.0.written_locally.send_replace(());
    }

    /// Changes when an overlay came or changed.
    pub(crate) fn local_writes(&self) -> watch::Receiver<()> {
        self.0.written_locally.subscribe()
    }

    /// Waits until the local writes are on the disk, or the disk does not take them. Their writer does
    /// not repeat what was acknowledged: a hub that is killed must not forget it.
    pub(crate) async fn save_local_writes(&self) {
        let wanted = {
            let kept = self.lock();
            if kept.cache.has_unsaved_local_writes() {
                self.write_soon();
                kept.batches + 1
            } else {
                // They may be in a batch that is being written.
                kept.batches
            }
        };
        let mut last = self.0.last_batch.subscribe();
        // The sender is in `self`.
        let saved = last.wait_for(|last| *last >= wanted);
        drop(timeout(SAVE_TIMEOUT, saved).await);
    }

    /// Writes as soon as possible: the link went down, which a power cut may follow.
    pub(crate) fn write_soon(&self) {
        self.0.write_now.notify_one();
    }
}

impl KnownVersions for Memory {
    fn newest(&self) -> u64 {
        self.lock().cache.newest_core_version()
    }

    fn observe(&self, version: u64, known: u64) {
        let is_restored = self.lock().cache.observe_newest_version(version, known);
        if is_restored {
            tracing::warn!(
                version,
                "the cluster was restored from a backup: all lists are read again"
            );
        }
    }
}

impl Remembered {
    /// The number of the batch that is taken next, with all that is unsaved now.
    fn begin_batch(&mut self) -> u64 {
        self.batches += 1;
        self.batches
    }

    fn take_batch(&mut self, extent: BatchExtent) -> Batch {
        if extent == BatchExtent::Changes {
            let mut batch = self.cache.take_changes();
            batch.extend(self.tokens.take_unsaved());
            batch.extend(self.events.take_unsaved());
            return batch;
        }
        let mut batch = self.cache.take_everything();
        drop(self.tokens.take_unsaved());
        self.tokens.put_all(&mut batch);
        self.events.put_all(&mut batch);
        batch
    }

    /// What the node and its pods need to start.
    fn essentials(&self) -> Batch {
        let present = PresentPods::read(&self.cache);
        let mut batch = self.cache.essentials(&present.needed.identities);
        self.tokens.put_all(&mut batch);
        batch
    }

    fn unsaved_bytes(&self) -> usize {
        self.cache.unsaved_bytes() + self.tokens.unsaved_bytes() + self.events.unsaved_bytes()
    }
}

/// What a batch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchExtent {
    Changes,
    Everything,
}

/// Forgets old things each hour that the link has been up without a break.
///
/// # Errors
/// None; the type is that of a supervised task.
pub(crate) async fn forget_while_up(
    memory: Memory,
    mut link: watch::Receiver<LinkStatus>,
    drain: Drain,
) -> Result<()> {
    loop {
        tokio::select! {
            up = link.wait_for(LinkStatus::is_up) => drop(up.context("follow the link")?),
            () = drain.begun() => return Ok(()),
        }
        tokio::select! {
            down = link.wait_for(|link| !link.is_up()) => drop(down.context("follow the link")?),
            () = sleep(FORGET_AFTER_UP) => memory.forget_old(),
            () = drain.begun() => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_moved_moves_no_time_of_the_memory() {
        let directory = tempfile::tempdir().unwrap();
        let (memory, _writer) = Memory::open(&StateDir::new(directory.path().to_owned()));
        let began = |now: Clock| now.wall - now.uptime;
        assert_eq!(began(memory.now()), began(memory.now()));
    }
}
