//! The present states of the agent's tunnels, for `/debug` and readiness.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_api::HostPort;
use culvert_daemon::{Counts, Gate, Idle};
use culvert_tunnel::{AgentTunnelState, LiveStream, SocketState, Transferred};
use parking_lot::Mutex;
use serde::Serialize;

use crate::tunnels::demand::Counted;
use crate::tunnels::placement::{ProxyId, SlotNumber};

/// The states of all tunnels. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Tunnels {
    entries: Arc<Mutex<BTreeMap<SlotNumber, Entry>>>,
    idle: Idle<StreamKey>,
    gate: Gate,
}

/// The entry of one slot.
#[derive(Debug)]
pub(crate) struct SlotEntry {
    number: SlotNumber,
    tunnels: Tunnels,
}

#[derive(Debug)]
struct Entry {
    state: TunnelState,
    since: Instant,
    last_error: Option<String>,
}

#[derive(Debug)]
enum TunnelState {
    Connecting(HostPort),
    Up(LiveTunnel),
    /// For the next attempt, after one by way of this address.
    Waiting(HostPort),
    /// No other proxy is known: there are enough tunnels to those that are.
    Spare,
}

/// A tunnel that is up.
#[derive(Clone, Debug)]
pub(crate) struct LiveTunnel {
    pub(crate) state: AgentTunnelState,
    pub(crate) socket: SocketState,
    pub(crate) proxy: ProxyId,
    pub(crate) address: HostPort,
}

/// A tunnel in `/debug/tunnels`.
#[derive(Debug, Serialize)]
pub(crate) struct TunnelView {
    pub(crate) tunnel: String,
    pub(crate) state: &'static str,
    /// What is dialled, or led to the proxy.
    pub(crate) proxy: Option<String>,
    /// The proxy's instance; an older proxy has none, and its address stands for it.
    pub(crate) proxy_instance: Option<String>,
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
type StreamKey = (SlotNumber, u64);

impl Tunnels {
    /// `gate` is open while at least one tunnel is up.
    pub(crate) fn new(gate: Gate) -> Self {
        Self {
            entries: Arc::default(),
            idle: Idle::default(),
            gate,
        }
    }

    /// Adds a slot.
    pub(crate) fn entry(&self, number: SlotNumber) -> SlotEntry {
        let entry = SlotEntry {
            number,
            tunnels: self.clone(),
        };
        entry.spare();
        entry
    }

    /// The tunnels to each proxy.
    pub(super) fn counted(&self) -> BTreeMap<ProxyId, Counted> {
        let mut counted = BTreeMap::<ProxyId, Counted>::new();
        for up in self.entries.lock().values().filter_map(Entry::up) {
            let to_it = counted.entry(up.proxy.clone()).or_default();
            to_it.up += 1;
            to_it.busy += u8::from(up.socket.is_busy());
        }
        counted
    }

    pub(crate) fn tunnels(&self) -> Vec<TunnelView> {
        self.entries
            .lock()
            .iter()
            .map(|(number, entry)| entry.view(*number))
            .collect()
    }

    /// How many tunnels are up, and the streams in them.
    pub(crate) fn totals(&self) -> [usize; 2] {
        let mut tunnels = 0;
        let mut streams = 0;
        for up in self.entries.lock().values().filter_map(Entry::up) {
            tunnels += 1;
            streams += up.state.streams().len();
        }
        [tunnels, streams]
    }

    pub(crate) fn streams(&self) -> Vec<StreamView> {
        let now = Instant::now();
        self.idle.look(self.counts(), now);
        let mut streams = Vec::new();
        for (number, entry) in &*self.entries.lock() {
            streams.extend(entry.streams(*number, &self.idle, now));
        }
        streams
    }

    /// Round-trip times of the tunnels that are up, by slot.
    pub(crate) fn round_trips(&self) -> Vec<(SlotNumber, Duration)> {
        let mut round_trips = Vec::new();
        for (number, entry) in &*self.entries.lock() {
            if let Some(round_trip) = entry.round_trip() {
                round_trips.push((*number, round_trip));
            }
        }
        round_trips
    }

    /// Tracks how long each stream has moved no bytes.
    pub(crate) async fn watch_idle(self) -> anyhow::Result<()> {
        let idle = self.idle.clone();
        idle.run(move || self.counts()).await
    }

    fn counts(&self) -> Vec<(StreamKey, Counts)> {
        let mut counts = Vec::new();
        for (number, entry) in &*self.entries.lock() {
            counts.extend(entry.counts(*number));
        }
        counts
    }
}

impl SlotEntry {
    pub(crate) fn connecting(&self, address: &HostPort) {
        self.set(TunnelState::Connecting(address.clone()), |_| {});
    }

    pub(crate) fn up(&self, tunnel: LiveTunnel) {
        self.set(TunnelState::Up(tunnel), |entry| entry.last_error = None);
    }

    /// The next attempt waits because of `error`.
    pub(crate) fn waiting(&self, address: &HostPort, error: &str) {
        self.set(TunnelState::Waiting(address.clone()), |entry| {
            entry.last_error = Some(error.to_owned());
        });
    }

    /// There is nothing to dial.
    pub(crate) fn spare(&self) {
        self.set(TunnelState::Spare, |_| {});
    }

    fn set(&self, state: TunnelState, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.tunnels.entries.lock();
        let entry = entries.entry(self.number).or_insert_with(|| Entry {
            state: TunnelState::Spare,
            since: Instant::now(),
            last_error: None,
        });
        entry.state = state;
        entry.since = Instant::now();
        change(entry);
        self.judge(&entries);
    }

    /// Updates readiness: the agent is ready with one tunnel. Otherwise the newest error says why
    /// not.
    fn judge(&self, entries: &BTreeMap<SlotNumber, Entry>) {
        if entries.values().any(|entry| entry.up().is_some()) {
            self.tunnels.gate.open();
            return;
        }
        let reason = if let Some(error) = newest_error(entries) {
            error.to_owned()
        } else if let Some(address) = entries.values().find_map(Entry::address) {
            format!("connecting to {address}")
        } else {
            "no proxy is known".to_owned()
        };
        self.tunnels.gate.close(reason);
    }
}

fn newest_error(entries: &BTreeMap<SlotNumber, Entry>) -> Option<&str> {
    let failed = entries.values().filter(|entry| entry.last_error.is_some());
    let newest = failed.max_by_key(|entry| entry.since)?;
    newest.last_error.as_deref()
}

impl Drop for SlotEntry {
    fn drop(&mut self) {
        let mut entries = self.tunnels.entries.lock();
        entries.remove(&self.number);
        self.judge(&entries);
    }
}

impl Entry {
    fn view(&self, number: SlotNumber) -> TunnelView {
        let state = match &self.state {
            TunnelState::Connecting(_) => "connecting",
            TunnelState::Up(_) => "up",
            TunnelState::Waiting(_) => "waiting",
            TunnelState::Spare => "spare",
        };
        TunnelView {
            tunnel: number.to_string(),
            state,
            proxy: self.address().map(ToString::to_string),
            proxy_instance: self.up().map(|up| up.proxy.to_string()),
            age_seconds: self.since.elapsed().as_secs_f64(),
            round_trip_seconds: self.round_trip().map(|round_trip| round_trip.as_secs_f64()),
            streams: self.live_streams().len(),
            last_error: self.last_error.clone(),
        }
    }

    fn up(&self) -> Option<&LiveTunnel> {
        match &self.state {
            TunnelState::Up(up) => Some(up),
            TunnelState::Connecting(_) | TunnelState::Waiting(_) | TunnelState::Spare => None,
        }
    }

    /// What is dialled, or led to the proxy.
    fn address(&self) -> Option<&HostPort> {
        match &self.state {
            TunnelState::Up(LiveTunnel { address, .. })
            | TunnelState::Connecting(address)
            | TunnelState::Waiting(address) => Some(address),
            TunnelState::Spare => None,
        }
    }

    fn streams(&self, number: SlotNumber, idle: &Idle<StreamKey>, now: Instant) -> Vec<StreamView> {
        let mut views = Vec::new();
        for stream in self.live_streams() {
            let idle = idle.of(&(number, stream.open.stream), now);
            views.push(StreamView::new(number, &stream, idle));
        }
        views
    }

    fn counts(&self, number: SlotNumber) -> Vec<(StreamKey, Counts)> {
        self.live_streams()
            .iter()
            .map(|stream| ((number, stream.open.stream), bytes(stream)))
            .collect()
    }

    fn round_trip(&self) -> Option<Duration> {
        self.up()?.state.round_trip()
    }

    fn live_streams(&self) -> Vec<Arc<LiveStream>> {
        self.up().map(|up| up.state.streams()).unwrap_or_default()
    }
}

impl StreamView {
    /// `idle` is how long nothing went to the backend and to the client.
    fn new(number: SlotNumber, stream: &LiveStream, idle: [Duration; 2]) -> Self {
        let [to_backend, to_client] = bytes(stream);
        Self {
            tunnel: number.to_string(),
            stream: stream.open.stream,
            age_seconds: stream.since.elapsed().as_secs_f64(),
            bytes_to_backend: to_backend,
            bytes_to_client: to_client,
            idle_to_backend_seconds: idle[0].as_secs_f64(),
            idle_to_client_seconds: idle[1].as_secs_f64(),
            original_dst: stream.open.original_dst.clone(),
            address: stream.open.address.clone(),
            port: stream.open.port,
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
    use culvert_tunnel::ReadAhead;

    use super::*;

    #[test]
    fn one_tunnel_that_is_up_makes_the_agent_ready_and_the_last_error_tells_why_not() {
        let readiness = Readiness::default();
        let tunnels = Tunnels::new(readiness.gate("tunnel"));
        let [first, second, _spare] = [0, 1, 2].map(|number| tunnels.entry(SlotNumber(number)));
        let address: HostPort = "p:1".parse().unwrap();
        let missing = || readiness.missing().remove(0).1;
        first.connecting(&address);
        assert_eq!(missing(), "connecting to p:1");
        first.waiting(&address, "connection refused");
        second.connecting(&address);
        assert_eq!(missing(), "connection refused");
        second.up(LiveTunnel {
            state: AgentTunnelState::default(),
            socket: ReadAhead::new(()).socket_state(),
            proxy: "instance".into(),
            address: address.clone(),
        });
        first.connecting(&address);
        assert_eq!(readiness.missing(), []);
        let views = tunnels.tunnels().into_iter();
        let states: Vec<_> = views
            .map(|view| (view.tunnel, view.state, view.proxy, view.proxy_instance))
            .collect();
        let number = |number: u16| number.to_string();
        let proxy = || Some("p:1".to_owned());
        assert_eq!(
            states,
            [
                (number(0), "connecting", proxy(), None),
                (number(1), "up", proxy(), Some("instance".to_owned())),
                (number(2), "spare", None, None),
            ]
        );
        second.waiting(&address, "the tunnel ended");
        assert_eq!(missing(), "the tunnel ended");
    }
}
