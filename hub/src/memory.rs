//! What the hub remembers, behind one lock, and the task that writes it to the disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use bytes::Bytes;
use culvert_daemon::{Drain, chain};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::cache::{Bounds, Cache, Extent, Identity, Now};
use crate::config::StateDir;
use crate::store::{Batch, Rows, Store, Table, WRITE_AT, WRITE_EVERY};

/// Rows of [`Table::Tokens`] begin with one of these.
const IDENTITY_ROW: &str = "identity:";
const ANSWER_ROW: &str = "answer:";
/// Tokens whose owner is remembered, and answers to requests for tokens; a node has some 110 pods.
const MAX_TOKENS: usize = 4096;
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
}

/// What is behind the lock.
pub(crate) struct Kept {
    pub(crate) cache: Cache,
    /// Text of the identity, by the SHA-256 of a token.
    identities: BTreeMap<String, String>,
    /// Answers to requests for tokens, by path and digest of the request.
    token_answers: BTreeMap<String, Bytes>,
    unsaved_tokens: Batch,
}

/// Health of the disk, for `status`.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct DiskStatus {
    pub(crate) commits: u64,
    pub(crate) written_bytes: u64,
    pub(crate) errors: u64,
    pub(crate) last_error: Option<String>,
}

/// The task that writes.
pub(crate) struct MemoryWriter {
    memory: Memory,
    store: Store,
    status: tokio::sync::watch::Sender<DiskStatus>,
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
            identities: read_rows(&rows, IDENTITY_ROW, |value| {
                String::from_utf8_lossy(value).into_owned()
            }),
            token_answers: read_rows(&rows, ANSWER_ROW, Bytes::copy_from_slice),
            unsaved_tokens: Batch::default(),
        };
        let memory = Self(Arc::new(Shared {
            kept: Mutex::new(kept),
            start: Instant::now(),
            write_now: Notify::new(),
        }));
        let writer = MemoryWriter {
            memory: memory.clone(),
            store,
            status: tokio::sync::watch::Sender::default(),
        };
        (memory, writer)
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            wall: SystemTime::now(),
            uptime: self.0.start.elapsed(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes as soon as possible: the link went down, which a power cut may follow.
    pub(crate) fn write_soon(&self) {
        self.0.write_now.notify_one();
    }
}

fn read_rows<T>(rows: &Rows, prefix: &str, read: impl Fn(&[u8]) -> T) -> BTreeMap<String, T> {
    rows.all(Table::Tokens)
        .filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.to_owned(), read(value))))
        .collect()
}

impl Kept {
    /// Whose token this is, if the API server has accepted it.
    pub(crate) fn identity_of(&self, token_digest: &str) -> Option<Identity> {
        Identity::parse(self.identities.get(token_digest)?)
    }

    /// The API server has accepted this token.
    pub(crate) fn learn_identity(&mut self, token_digest: &str, identity: &Identity) {
        let text = identity.to_string();
        if self.identities.get(token_digest) == Some(&text) {
            return;
        }
        if self.identities.len() >= MAX_TOKENS
            && let Some((oldest, _)) = self.identities.pop_first()
        {
            self.unsaved_tokens
                .remove(Table::Tokens, format!("{IDENTITY_ROW}{oldest}"));
        }
        let key = format!("{IDENTITY_ROW}{token_digest}");
        self.unsaved_tokens
            .put(Table::Tokens, key, text.clone().into_bytes());
        self.identities.insert(token_digest.to_owned(), text);
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
            return batch;
        }
        let mut batch = self.cache.take_everything(Extent::All);
        self.unsaved_tokens = Batch::default();
        self.put_tokens(&mut batch);
        batch
    }

    fn put_tokens(&self, batch: &mut Batch) {
        for (digest, identity) in &self.identities {
            let key = format!("{IDENTITY_ROW}{digest}");
            batch.put(Table::Tokens, key, identity.clone().into_bytes());
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
        self.cache.unsaved_bytes() + self.unsaved_tokens.bytes()
    }
}

impl MemoryWriter {
    pub(crate) fn status(&self) -> tokio::sync::watch::Receiver<DiskStatus> {
        self.status.subscribe()
    }

    /// Writes every 5 s or 1 MiB, at once when told to, and a last time when the drain begins.
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
        let batch = {
            let mut kept = self.memory.lock();
            let everything = self.store.wants_everything();
            let worth = everything || kept.unsaved_bytes() > 0;
            worth.then(|| kept.take_batch(everything))
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
        if rescue {
            let essential = self.memory.lock().cache.take_everything(Extent::Essential);
            if let Err(error) = self.store.write_rescue(&essential) {
                tracing::warn!(error = chain(&error), "the rescue file cannot be written");
            }
        }
        let health = self.store.health();
        self.status.send_replace(DiskStatus {
            commits: health.commits,
            written_bytes: health.written_bytes,
            errors: health.errors,
            last_error: health.last_error.as_ref().map(|error| chain(error)),
        });
        self
    }
}
