//! The streams that a proxy may move from one of an agent's tunnels to another. A move takes the
//! relay itself along: once all of the old tunnel is read, the stream ends with the new one alone.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use h2::SendStream;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::LiveStream;
use crate::budget::outbox::Payload;
use crate::relay::{self, Incoming, RelayError, Relocation};
use crate::role::Role;
use crate::socket::Socket;

/// What a proxy names a stream by: random, and known to no one else.
type Key = [u8; 16];

/// The task of an earlier tunnel hands a relay over within this time, or is gone.
const HAND_OVER: Duration = Duration::from_secs(5);

/// The streams of all tunnels of an agent that can move. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct MovableStreams(Arc<Mutex<HashMap<Key, Arc<Entry>>>>);

#[derive(Debug)]
struct Entry {
    stream: Arc<LiveStream>,
    relocation: Arc<Relocation>,
    /// Where the relay goes, if another tunnel wants it.
    wanted: Mutex<Option<oneshot::Sender<Running>>>,
    /// Notified when that is set.
    is_wanted: Notify,
}

/// A stream that is relayed, wherever its task is. Dropping it resets the stream and its backend.
pub(super) struct Running {
    relay: Pin<Box<dyn Future<Output = Result<(), RelayError>> + Send>>,
    /// `None`: it stays in its tunnel.
    listed: Option<Listed>,
}

/// Keeps a stream among the movable ones.
struct Listed {
    streams: MovableStreams,
    key: Key,
    entry: Arc<Entry>,
}

/// A stream that another tunnel asks for.
pub(super) struct ResumableStream(Arc<Entry>);

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

impl MovableStreams {
    /// Lists a stream that its proxy gave a key, with the moves of its relay. `None`: it has no key,
    /// or that of another stream.
    fn list(&self, stream: &Arc<LiveStream>, relocation: &Arc<Relocation>) -> Option<Listed> {
        let key = Key::try_from(&stream.open.key[..]).ok()?;
        let entry = Arc::new(Entry {
            stream: stream.clone(),
            relocation: relocation.clone(),
            wanted: Mutex::default(),
            is_wanted: Notify::new(),
        });
        let mut streams = self.lock();
        if streams.contains_key(&key) {
            return None;
        }
        streams.insert(key, entry.clone());
        drop(streams);
        Some(Listed {
            streams: self.clone(),
            key,
            entry,
        })
    }

    /// The stream of this key.
    pub(super) fn find(&self, key: &[u8]) -> Option<ResumableStream> {
        let key = Key::try_from(key).ok()?;
        self.lock().get(&key).cloned().map(ResumableStream)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Entry>>> {
        self.0.lock()
    }
}

impl ResumableStream {
    pub(super) fn stream(&self) -> &Arc<LiveStream> {
        &self.0.stream
    }

    pub(super) fn relocation(&self) -> &Relocation {
        &self.0.relocation
    }

    /// Takes the relay over from the task that runs it. `None`: it has ended.
    pub(super) async fn take_over(&self) -> Option<Running> {
        let (wanted_tx, wanted_rx) = oneshot::channel();
        *self.0.wanted.lock() = Some(wanted_tx);
        self.0.is_wanted.notify_one();
        tokio::select! {
            biased;
            handed_over = timeout(HAND_OVER, wanted_rx) => handed_over.ok()?.ok(),
            () = self.0.relocation.closed() => None,
        }
    }
}

impl Entry {
    async fn claimant(&self) -> oneshot::Sender<Running> {
        loop {
            let wanted = self.wanted.lock().take();
            match wanted {
                Some(wanted) => return wanted,
                None => self.is_wanted.notified().await,
            }
        }
    }
}

impl Running {
    /// Starts to relay a stream between its backend and the tunnel.
    pub(super) fn start(
        stream: Arc<LiveStream>,
        socket: Socket,
        mut send: SendStream<Payload>,
        mut incoming: Incoming,
        streams: &MovableStreams,
    ) -> Self {
        let relocation = Arc::new(Relocation::new(Role::Agent));
        let listed = streams.list(&stream, &relocation);
        if listed.is_some() {
            incoming.set_relocation(relocation);
        }
        let relay = Box::pin(async move {
            let transferred = &stream.transferred;
            relay::relay(&socket, &mut send, &mut incoming, Role::Agent, transferred).await
        });
        Self { relay, listed }
    }

    /// Relays until the end. `None`: another tunnel has taken the relay over.
    pub(super) async fn run(mut self) -> Option<Result<(), RelayError>> {
        loop {
            let wanted = match &self.listed {
                None => return Some(self.relay.await),
                Some(listed) => tokio::select! {
                    biased;
                    ended = &mut self.relay => return Some(ended),
                    wanted = listed.entry.claimant() => wanted,
                },
            };
            // If the other tunnel is gone, the relay comes back.
            self = wanted.send(self).err()?;
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.streams.lock().remove(&self.key);
    }
}
