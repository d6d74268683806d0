//! What the hub remembers, behind one lock, and the task that writes it to the disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use bytes::Bytes;
use culvert_daemon::{Drain, chain};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::cache::{Bounds, Cache, Extent, Identity, Now};
use crate::config::StateDir;
use crate::events::EventQueue;
use crate::store::{Batch, Rows, Store, Table, WRITE_AT, WRITE_EVERY};
use crate::upstream::watcher::LinkStatus;

/// Rows of [`Table::Tokens`] begin with one of these.
const IDENTITY_ROW: &str = "identity:";
const ANSWER_ROW: &str = "answer:";
/// Tokens whose owner is remembered, and answers to requests for tokens; a node has some 110 pods.
const MAX_TOKENS: usize = 4096;
/// How long is kept what nobody asks for, and a token that has expired.
const KEPT_UNASKED: Duration = Duration::from_secs(7 * 24 * 3600);
/// For how long the link must have been up before anything is forgotten: by then every client that
/// is there has asked again.
const LINK_UP: Duration = Duration::from_secs(3600);
/// How often unsaved bytes are counted.
const LOOK: Duration = Duration::from_millis(500);
/// How often the rescue file is written, if anything changed.
const RESCUE_EVERY: Duration = Duration::from_secs(600);

/// The memory of the hub. Clones share it.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Shared>);

struct Shared {
    kept: Mutex<Kept>,
    start: Instant,
    /// The next write is due now.
    write_now: Notify,
    /// Something was written that only the hub knows.
    written_locally: watch::Sender<()>,
}

/// What is behind the lock.
pub(crate) struct Kept {
    pub(crate) cache: Cache,
    /// By the SHA-256 of a token.
    identities: BTreeMap<String, KnownToken>,
    /// Answers to requests for tokens, by path and digest of the request.
    token_answers: BTreeMap<String, Bytes>,
    unsaved_tokens: Batch,
    pub(crate) events: EventQueue,
    /// Old things were forgotten: the disk may have unused space after the next write.
    forgot: bool,
}

/// A token that the API server has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownToken {
    /// In seconds since 1970; the largest number if it does not say.
    expires: u64,
    /// Text of the identity.
    owner: String,
}

impl KnownToken {
    fn row(&self) -> Vec<u8> {
        format!("{} {}", self.expires, self.owner).into_bytes()
    }

    fn read(row: &[u8]) -> Option<Self> {
        let (expires, owner) = std::str::from_utf8(row).ok()?.split_once(' ')?;
        Some(Self {
            expires: expires.parse().ok()?,
            owner: owner.to_owned(),
        })
    }
}

/// Health of the disk, for `status`.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct DiskStatus {
    pub(crate) commits: u64,
    pub(crate) written_bytes: u64,
    pub(crate) errors: u64,
    pub(crate) last_error: Option<String>,
}

impl DiskStatus {
    fn of(store: &Store) -> Self {
        let health = store.health();
        Self {
            commits: health.commits,
            written_bytes: health.written_bytes,
            errors: health.errors,
            last_error: health.last_error.as_ref().map(|error| chain(error)),
        }
    }
}

/// The task that writes.
pub(crate) struct MemoryWriter {
    memory: Memory,
    store: Store,
    status: watch::Sender<DiskStatus>,
}

impl Memory {
    /// Reads what an earlier process left on the disk.
    pub(crate) fn open(state: &StateDir) -> (Self, MemoryWriter) {
        let (mut store, rows) = Store::open(state.path(), Duration::ZERO);
        let mut cache = Cache::new(Bounds::default());
        let restored = cache.restore(&rows);
        if restored.damaged_sets > 0 {
            store.demand_everything();
        }
        tracing::info!(
            sets = restored.sets,
            damaged_sets = restored.damaged_sets,
            loaded_from = ?store.health().loaded_from,
            "memory read"
        );
        let kept = Kept {
            cache,
            identities: read_rows(&rows, IDENTITY_ROW, KnownToken::read),
            token_answers: read_rows(&rows, ANSWER_ROW, |value| {
                Some(Bytes::copy_from_slice(value))
            }),
            unsaved_tokens: Batch::default(),
            events: EventQueue::restore(&rows),
            forgot: false,
        };
        let memory = Self(Arc::new(Shared {
            kept: Mutex::new(kept),
            start: Instant::now(),
            write_now: Notify::new(),
            written_locally: watch::Sender::default(),
        }));
        let writer = MemoryWriter {
            memory: memory.clone(),
            status: watch::Sender::new(DiskStatus::of(&store)),
            store,
        };
        (memory, writer)
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            wall: SystemTime::now(),
            uptime: self.0.start.elapsed(),
        }
    }

    /// Forgets what nobody has asked for in a week, and tokens that expired a week ago.
    fn forget_old(&self) {
        let week_ago = self.now().wall.checked_sub(KEPT_UNASKED);
        let Some(since) = week_ago.filter(|it| *it > SystemTime::UNIX_EPOCH) else {
            return;
        };
        let mut kept = self.lock();
        let sets = kept.cache.forget_unasked(since);
        let at = since.duration_since(SystemTime::UNIX_EPOCH);
        kept.forget_expired(at.unwrap_or_default().as_secs());
        kept.forgot = true;
        tracing::debug!(sets, "what nobody asks for any more was forgotten");
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the open watches that an overlay came or changed.
    pub(crate) fn tell_watches(&self) {
        self.0.written_locally.send_replace(());
    }

    /// Changes when an overlay came or changed.
    pub(crate) fn local_writes(&self) -> watch::Receiver<()> {
        self.0.written_locally.subscribe()
    }

    /// Writes as soon as possible: the link went down, which a power cut may follow.
    pub(crate) fn write_soon(&self) {
        self.0.write_now.notify_one();
    }
}

fn read_rows<T>(
    rows: &Rows,
    prefix: &str,
    read: impl Fn(&[u8]) -> Option<T>,
) -> BTreeMap<String, T> {
    rows.all(Table::Tokens)
        .filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.to_owned(), read(value)?)))
        .collect()
}

impl Kept {
    /// Whose token this is, if the API server has accepted it.
    pub(crate) fn identity_of(&self, token_digest: &str) -> Option<Identity> {
        Identity::parse(&self.identities.get(token_digest)?.owner)
    }

    /// The API server has accepted this token, which expires at this time in seconds since 1970.
    pub(crate) fn learn_identity(
        &mut self,
        token_digest: &str,
        identity: &Identity,
        expires: Option<u64>,
    ) {
        let known = KnownToken {
            expires: expires.unwrap_or(u64::MAX),
            owner: identity.to_string(),
        };
        if self.identities.get(token_digest) == Some(&known) {
            return;
        }
        if self.identities.len() >= MAX_TOKENS {
            let first = self.identities.iter().min_by_key(|(_, it)| it.expires);
            if let Some(first) = first.map(|(digest, _)| digest.clone()) {
                self.forget_token(&first);
            }
        }
        let key = format!("{IDENTITY_ROW}{token_digest}");
        self.unsaved_tokens.put(Table::Tokens, key, known.row());
        self.identities.insert(token_digest.to_owned(), known);
    }

    /// Forgets the tokens that had expired at this time, in seconds since 1970.
    fn forget_expired(&mut self, at: u64) {
        let expired = self.identities.iter().filter(|(_, it)| it.expires < at);
        let expired: Vec<_> = expired.map(|(digest, _)| digest.clone()).collect();
        for digest in expired {
            self.forget_token(&digest);
        }
    }

    /// The API server has refused this token.
    pub(crate) fn forget_token(&mut self, token_digest: &str) {
        if self.identities.remove(token_digest).is_some() {
            let key = format!("{IDENTITY_ROW}{token_digest}");
            self.unsaved_tokens.remove(Table::Tokens, key);
        }
    }

    /// The last real answer to this request for a token.
    pub(crate) fn token_answer(&self, request: &str) -> Option<Bytes> {
        self.token_answers.get(request).cloned()
    }

    /// Whether there is an answer to a request for a token of this service account.
    pub(crate) fn has_token_of(&self, namespace: &str, account: &str) -> bool {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token ");
        let from = self.token_answers.range(path.clone()..);
        from.take(1).any(|(request, _)| request.starts_with(&path))
    }

    pub(crate) fn keep_token_answer(&mut self, request: String, answer: Bytes) {
        if self.token_answers.len() >= MAX_TOKENS
            && let Some((oldest, _)) = self.token_answers.pop_first()
        {
            self.unsaved_tokens
                .remove(Table::Tokens, format!("{ANSWER_ROW}{oldest}"));
        }
        let key = format!("{ANSWER_ROW}{request}");
        self.unsaved_tokens.put(Table::Tokens, key, answer.to_vec());
        self.token_answers.insert(request, answer);
    }

    fn take_batch(&mut self, everything: bool) -> Batch {
        if !everything {
            let mut batch = self.cache.take_changes();
            batch.extend(std::mem::take(&mut self.unsaved_tokens));
            batch.extend(self.events.take_unsaved());
            return batch;
        }
        let mut batch = self.cache.take_everything(Extent::All);
        self.unsaved_tokens = Batch::default();
        self.put_tokens(&mut batch);
        self.events.put_all(&mut batch);
        batch
    }

    fn put_tokens(&self, batch: &mut Batch) {
        for (digest, identity) in &self.identities {
            let key = format!("{IDENTITY_ROW}{digest}");
            batch.put(Table::Tokens, key, identity.row());
        }
        for (request, answer) in &self.token_answers {
            batch.put(
                Table::Tokens,
                format!("{ANSWER_ROW}{request}"),
                answer.to_vec(),
            );
        }
    }

    fn unsaved_bytes(&self) -> usize {
        self.cache.unsaved_bytes() + self.unsaved_tokens.bytes() + self.events.unsaved_bytes()
    }
}

impl MemoryWriter {
    pub(crate) fn status(&self) -> watch::Receiver<DiskStatus> {
        self.status.subscribe()
    }

    /// Writes every 12 s or 4 MiB, at once when told to, and a last time when the drain begins.
    ///
    /// # Errors
    /// None for a disk that cannot be written: the memory goes on without it.
    pub(crate) async fn run(mut self, drain: Drain) -> Result<()> {
        let mut next_rescue = Instant::now() + RESCUE_EVERY;
        while !drain.has_begun() {
            tokio::select! {
                () = self.due() => {}
                () = drain.begun() => {}
            }
            let rescue = Instant::now() >= next_rescue;
            if rescue {
                next_rescue = Instant::now() + RESCUE_EVERY;
            }
            self = self.write(rescue).await?;
        }
        Ok(())
    }

    async fn due(&self) {
        let told = self.memory.0.write_now.notified();
        let full = async {
            while self.memory.lock().unsaved_bytes() < WRITE_AT {
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = told => {}
            _ = timeout(WRITE_EVERY, full) => {}
        }
    }

    async fn write(self, rescue: bool) -> Result<Self> {
        let writing = tokio::task::spawn_blocking(move || self.write_blocking(rescue));
        writing.await.context("write the memory to the disk")
    }

    fn write_blocking(mut self, rescue: bool) -> Self {
        let uptime = self.memory.now().uptime;
        if !self.store.is_due(uptime) {
            return self;
        }
        let (batch, forgot) = {
            let mut kept = self.memory.lock();
            let everything = self.store.wants_everything();
            let worth = everything || kept.unsaved_bytes() > 0;
            let batch = worth.then(|| kept.take_batch(everything));
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
        }
        if forgot && let Err(error) = self.store.compact(uptime) {
            tracing::warn!(error = chain(error), "the disk cannot be compacted");
        }
        if rescue {
            let essential = self.memory.lock().cache.take_everything(Extent::Essential);
            if let Err(error) = self.store.write_rescue(&essential) {
                tracing::warn!(error = chain(&error), "the rescue file cannot be written");
            }
        }
        self.status.send_replace(DiskStatus::of(&self.store));
        self
    }
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
            () = sleep(LINK_UP) => memory.forget_old(),
            () = drain.begun() => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: Identity = Identity::Node;

    fn memory(directory: &tempfile::TempDir) -> Memory {
        Memory::open(&StateDir::new(directory.path().to_owned())).0
    }

    #[test]
    fn the_token_that_expires_first_makes_way() {
        let directory = tempfile::tempdir().unwrap();
        let memory = memory(&directory);
        let mut kept = memory.lock();
        kept.learn_identity("0 for ever", &APP, None);
        kept.learn_identity("1 late", &APP, Some(9_000));
        for number in 2..MAX_TOKENS as u64 {
            kept.learn_identity(&format!("{number}"), &APP, Some(number));
        }
        kept.learn_identity("new", &APP, Some(5_000));
        assert_eq!(kept.identities.len(), MAX_TOKENS);
        assert!(kept.identity_of("2").is_none());
        for known in ["0 for ever", "1 late", "3", "new"] {
            assert!(kept.identity_of(known).is_some(), "{known}");
        }
        kept.forget_expired(5_001);
        assert_eq!(kept.identities.len(), 2);
    }

    #[test]
    fn a_disk_that_was_not_opened_is_reported_before_the_first_write() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hub");
        std::fs::write(&file, b"a file where the directory should be").unwrap();
        let (_, writer) = Memory::open(&StateDir::new(file));
        assert!(writer.status().borrow().last_error.is_some());
    }

    #[test]
    fn a_row_of_a_token_is_read_as_it_was_written() {
        let known = KnownToken {
            expires: 7,
            owner: "user:somebody else".to_owned(),
        };
        assert_eq!(KnownToken::read(&known.row()), Some(known));
        assert_eq!(KnownToken::read(b"user:x"), None);
    }
}
