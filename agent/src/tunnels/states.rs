//! The present states of the agent's tunnels, for `/debug` and readiness.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use culvert_api::HostPort;
use culvert_daemon::{Counts, Gate, Idle};
use culvert_tunnel::{AgentTunnelState, LiveStream, Transferred};
use serde::Serialize;
use tokio::sync::watch;

/// The name of a tunnel slot. The agent sends it to the proxy in `Describe`: a later tunnel of a
/// slot supersedes an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotName {
    pub(crate) proxy: HostPort,
    pub(crate) number: u8,
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.proxy, self.number)
    }
}

/// The states of all tunnels. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Tunnels {
    entries: Arc<Mutex<BTreeMap<SlotName, Entry>>>,
    idle: Idle<StreamKey>,
    gate: Gate,
    answering: watch::Sender<BTreeSet<HostPort>>,
}

/// The entry of one slot.
#[derive(Debug)]
pub(crate) struct SlotEntry {
    name: SlotName,
    /// A proxy that was removed and listed again has a new entry of the same name while the old
    /// one's streams still end.
    generation: u64,
    tunnels: Tunnels,
}

#[derive(Debug)]
struct Entry {
    generation: u64,
    state: TunnelState,
    since: Instant,
    last_error: Option<String>,
}

#[derive(Debug)]
enum TunnelState {
    Connecting,
    Up(AgentTunnelState),
    Waiting,
}

/// A tunnel in `/debug/tunnels`.
#[derive(Debug, Serialize)]
pub(crate) struct TunnelView {
    pub(crate) tunnel: String,
    pub(crate) state: &'static str,
    age_seconds: f64,
    round_trip_seconds: Option<f64>,
    streams: usize,
    last_error: Option<String>,
}

/// A stream in `/debug/streams`, with the proxy's field names. Idle times are exact to one second.
#[derive(Debug, Serialize)]
pub(crate) struct StreamView {
    tunnel: String,
    stream: u64,
    original_dst: String,
    address: String,
    port: u32,
    age_seconds: f64,
    bytes_to_backend: u64,
    bytes_to_client: u64,
    idle_to_backend_seconds: f64,
    idle_to_client_seconds: f64,
}

/// A stream of a slot. The proxy numbers its streams, so two proxies may use the same number.
type StreamKey = (SlotName, u64);

impl Tunnels {
    /// `gate` is open while at least one tunnel is up.
    pub(crate) fn new(gate: Gate) -> Self {
        Self {
            entries: Arc::default(),
            idle: Idle::default(),
            gate,
            answering: watch::Sender::default(),
        }
    }

    /// Adds a slot.
    pub(crate) fn entry(&self, name: SlotName) -> SlotEntry {
        static GENERATIONS: AtomicU64 = AtomicU64::new(0);
        let entry = SlotEntry {
            name,
            generation: GENERATIONS.fetch_add(1, Ordering::Relaxed),
            tunnels: self.clone(),
        };
        entry.connecting();
        entry
    }

    /// The proxies to which a tunnel is up.
    pub(crate) fn answering(&self) -> watch::Receiver<BTreeSet<HostPort>> {
        self.answering.subscribe()
    }

    pub(crate) fn tunnels(&self) -> Vec<TunnelView> {
        self.lock()
            .iter()
            .map(|(name, entry)| entry.view(name))
            .collect()
    }

    pub(crate) fn streams(&self) -> Vec<StreamView> {
        let now = Instant::now();
        self.idle.look(self.counts(), now);
        self.lock()
            .iter()
            .flat_map(|(name, entry)| entry.streams(name, &self.idle, now))
            .collect()
    }

    /// Round-trip times of the tunnels that are up, by slot.
    pub(crate) fn round_trips(&self) -> Vec<(SlotName, Duration)> {
        let entries = self.lock();
        entries
            .iter()
            .filter_map(|(name, entry)| Some((name.clone(), entry.round_trip()?)))
            .collect()
    }

    /// Tracks how long each stream has moved no bytes.
    pub(crate) async fn watch_idle(self) -> anyhow::Result<()> {
        let idle = self.idle.clone();
        idle.keep_looking(move || self.counts()).await
    }

    fn counts(&self) -> Vec<(StreamKey, Counts)> {
        self.lock()
            .iter()
            .flat_map(|(name, entry)| entry.counts(name))
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SlotName, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotEntry {
    pub(crate) fn connecting(&self) {
        self.set(TunnelState::Connecting, |_| {});
    }

    pub(crate) fn up(&self, state: AgentTunnelState) {
        self.set(TunnelState::Up(state), |entry| entry.last_error = None);
    }

    /// Records that the next attempt waits because of `error`. Returns whether the error is new.
    pub(crate) fn waiting(&self, error: &str) -> bool {
        let mut news = true;
        self.set(TunnelState::Waiting, |entry| {
            news = entry.last_error.as_deref() != Some(error);
            entry.last_error = Some(error.to_owned());
        });
        news
    }

    fn set(&self, state: TunnelState, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.tunnels.lock();
        let fresh = || Entry {
            generation: self.generation,
            state: TunnelState::Connecting,
            since: Instant::now(),
            last_error: None,
        };
        let entry = entries.entry(self.name.clone()).or_insert_with(fresh);
        match entry.generation.cmp(&self.generation) {
            std::cmp::Ordering::Less => *entry = fresh(),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => return,
        }
        entry.state = state;
        entry.since = Instant::now();
        change(entry);
        let error = entry.last_error.clone();
        self.judge(&entries, error);
    }

    /// Updates which proxies answer, and readiness: the agent is ready with one tunnel.
    fn judge(&self, entries: &BTreeMap<SlotName, Entry>, error: Option<String>) {
        let up = entries
            .iter()
            .filter(|(_, entry)| matches!(entry.state, TunnelState::Up(_)));
        let answering: BTreeSet<_> = up.map(|(name, _)| name.proxy.clone()).collect();
        if answering.is_empty() {
            self.tunnels
                .gate
                .close(error.unwrap_or_else(|| format!("connecting to {}", self.name.proxy)));
        } else {
            self.tunnels.gate.open();
        }
        self.tunnels.answering.send_if_modified(|before| {
            let news = *before != answering;
            *before = answering;
            news
        });
    }
}

impl Drop for SlotEntry {
    fn drop(&mut self) {
        let mut entries = self.tunnels.lock();
        if entries
            .get(&self.name)
            .is_some_and(|entry| entry.generation == self.generation)
        {
            entries.remove(&self.name);
        }
        self.judge(&entries, None);
    }
}

impl Entry {
    fn view(&self, name: &SlotName) -> TunnelView {
        let state = match &self.state {
            TunnelState::Connecting => "connecting",
            TunnelState::Up(_) => "up",
            TunnelState::Waiting => "waiting",
        };
        TunnelView {
            tunnel: name.to_string(),
            state,
            age_seconds: self.since.elapsed().as_secs_f64(),
            round_trip_seconds: self.round_trip().map(|round_trip| round_trip.as_secs_f64()),
            streams: self.live().len(),
            last_error: self.last_error.clone(),
        }
    }

    fn streams(&self, name: &SlotName, idle: &Idle<StreamKey>, now: Instant) -> Vec<StreamView> {
        let view = |stream: &Arc<LiveStream>| {
            let [to_backend, to_client] = bytes(stream);
            let idle = idle
                .of(&(name.clone(), stream.open.stream), now)
                .map(|idle| idle.as_secs_f64());
            StreamView {
                tunnel: name.to_string(),
                stream: stream.open.stream,
                age_seconds: stream.since.elapsed().as_secs_f64(),
                bytes_to_backend: to_backend,
                bytes_to_client: to_client,
                idle_to_backend_seconds: idle[0],
                idle_to_client_seconds: idle[1],
                original_dst: stream.open.original_dst.clone(),
                address: stream.open.address.clone(),
                port: stream.open.port,
            }
        };
        self.live().iter().map(view).collect()
    }

    fn counts(&self, name: &SlotName) -> Vec<(StreamKey, Counts)> {
        self.live()
            .iter()
            .map(|stream| ((name.clone(), stream.open.stream), bytes(stream)))
            .collect()
    }

    fn round_trip(&self) -> Option<Duration> {
        match &self.state {
            TunnelState::Up(live) => live.round_trip(),
            TunnelState::Connecting | TunnelState::Waiting => None,
        }
    }

    fn live(&self) -> Vec<Arc<LiveStream>> {
        match &self.state {
            TunnelState::Up(live) => live.streams(),
            TunnelState::Connecting | TunnelState::Waiting => Vec::new(),
        }
    }
}

/// Bytes to the backend and to the client.
fn bytes(stream: &LiveStream) -> Counts {
    let Transferred {
        into_tunnel,
        out_of_tunnel,
    } = &stream.transferred;
    [out_of_tunnel.bytes(), into_tunnel.bytes()]
}

#[cfg(test)]
mod tests {
    use culvert_daemon::Readiness;

    use super::*;

    #[test]
    fn one_tunnel_that_is_up_makes_the_agent_ready_and_the_last_error_tells_why_not() {
        let readiness = Readiness::default();
        let tunnels = Tunnels::new(readiness.gate("tunnel"));
        let entry = |number| {
            tunnels.entry(SlotName {
                proxy: "p:1".parse().unwrap(),
                number,
            })
        };
        let (first, second) = (entry(0), entry(1));
        assert!(first.waiting("connection refused"), "news");
        assert!(!first.waiting("connection refused"), "no news");
        assert_eq!(
            readiness.missing(),
            [("tunnel", "connection refused".to_owned())]
        );
        second.up(AgentTunnelState::default());
        first.connecting();
        assert_eq!(readiness.missing(), []);
        let states: Vec<_> = tunnels
            .tunnels()
            .into_iter()
            .map(|view| (view.tunnel, view.state))
            .collect();
        assert_eq!(
            states,
            [
                ("p:1/0".to_owned(), "connecting"),
                ("p:1/1".to_owned(), "up")
            ]
        );
        assert!(second.waiting("the tunnel ended"));
        assert_eq!(readiness.missing().len(), 1);
    }
}
