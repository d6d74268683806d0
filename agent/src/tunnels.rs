//! The agent's tunnels as they are now: for `/debug`, and for readiness.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use culvert_daemon::Gate;
use culvert_tunnel::AgentTunnelState;
use serde::Serialize;

use crate::proxy_address::ProxyAddress;

/// Which of the agent's tunnels. The proxy sees it as `Describe`'s slot: a later tunnel supersedes an earlier one of the same slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotName {
    pub(crate) proxy: ProxyAddress,
    pub(crate) number: u8,
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.proxy, self.number)
    }
}

/// All tunnels. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Tunnels {
    entries: Arc<Mutex<BTreeMap<SlotName, Entry>>>,
    gate: Gate,
}

/// A slot's own entry.
#[derive(Debug)]
pub(crate) struct Place {
    name: SlotName,
    tunnels: Tunnels,
}

#[derive(Debug)]
struct Entry {
    now: Now,
    since: Instant,
    last_error: Option<String>,
}

#[derive(Debug)]
enum Now {
    Connecting,
    Up(AgentTunnelState),
    Waiting,
}

/// A tunnel in `/debug/tunnels`.
#[derive(Debug, Serialize)]
pub(crate) struct TunnelView {
    tunnel: String,
    state: &'static str,
    since_seconds: f64,
    round_trip_ms: Option<f64>,
    streams: usize,
    last_error: Option<String>,
}

/// A stream in `/debug/streams`.
#[derive(Debug, Serialize)]
pub(crate) struct StreamView {
    tunnel: String,
    stream: u64,
    original_dst: String,
    address: String,
    port: u32,
    age_seconds: f64,
    bytes_into_tunnel: u64,
    bytes_out_of_tunnel: u64,
}

impl Tunnels {
    /// `gate` is open while a tunnel is up.
    pub(crate) fn new(gate: Gate) -> Self {
        Self { entries: Arc::default(), gate }
    }

    /// Adds a slot.
    pub(crate) fn place(&self, name: SlotName) -> Place {
        let place = Place { name, tunnels: self.clone() };
        place.connecting();
        place
    }

    pub(crate) fn tunnels(&self) -> Vec<TunnelView> {
        self.lock().iter().map(|(name, entry)| entry.view(name)).collect()
    }

    pub(crate) fn streams(&self) -> Vec<StreamView> {
        self.lock().iter().flat_map(|(name, entry)| entry.streams(name)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SlotName, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(crate) fn connecting(&self) {
        self.set(Now::Connecting, |_| {});
    }

    pub(crate) fn up(&self, state: AgentTunnelState) {
        self.set(Now::Up(state), |entry| entry.last_error = None);
    }

    /// The next attempt waits because of `error`. True if that is news.
    pub(crate) fn waiting(&self, error: &str) -> bool {
        let mut news = true;
        self.set(Now::Waiting, |entry| {
            news = entry.last_error.as_deref() != Some(error);
            entry.last_error = Some(error.to_owned());
        });
        news
    }

    fn set(&self, now: Now, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.tunnels.lock();
        let fresh = || Entry { now: Now::Connecting, since: Instant::now(), last_error: None };
        let entry = entries.entry(self.name.clone()).or_insert_with(fresh);
        entry.now = now;
        entry.since = Instant::now();
        change(entry);
        let error = entry.last_error.clone();
        if entries.values().any(|entry| matches!(entry.now, Now::Up(_))) {
            self.tunnels.gate.open();
        } else {
            self.tunnels.gate.close(error.unwrap_or_else(|| format!("connecting to {}", self.name.proxy)));
        }
    }
}

impl Entry {
    fn view(&self, name: &SlotName) -> TunnelView {
        let (state, live) = match &self.now {
            Now::Connecting => ("connecting", None),
            Now::Up(live) => ("up", Some(live)),
            Now::Waiting => ("waiting", None),
        };
        TunnelView {
            tunnel: name.to_string(),
            state,
            since_seconds: self.since.elapsed().as_secs_f64(),
            round_trip_ms: live.and_then(AgentTunnelState::round_trip).map(|round_trip| round_trip.as_secs_f64() * 1e3),
            streams: live.map_or(0, |live| live.streams().len()),
            last_error: self.last_error.clone(),
        }
    }

    fn streams(&self, name: &SlotName) -> Vec<StreamView> {
        let Now::Up(live) = &self.now else { return Vec::new() };
        let view = |stream: culvert_tunnel::LiveStream| StreamView {
            tunnel: name.to_string(),
            stream: stream.open.stream,
            age_seconds: stream.since.elapsed().as_secs_f64(),
            bytes_into_tunnel: stream.transferred.into_tunnel.load(Ordering::Relaxed),
            bytes_out_of_tunnel: stream.transferred.out_of_tunnel.load(Ordering::Relaxed),
            original_dst: stream.open.original_dst,
            address: stream.open.address,
            port: stream.open.port,
        };
        live.streams().into_iter().map(view).collect()
    }
}

#[cfg(test)]
mod tests {
    use culvert_daemon::Readiness;

    use super::*;

    #[test]
    fn one_tunnel_that_is_up_makes_the_agent_ready_and_the_last_error_tells_why_not() {
        let readiness = Readiness::default();
        let tunnels = Tunnels::new(readiness.gate("tunnel"));
        let place = |number| tunnels.place(SlotName { proxy: "p:1".parse().unwrap(), number });
        let (first, second) = (place(0), place(1));
        assert!(first.waiting("connection refused"), "news");
        assert!(!first.waiting("connection refused"), "no news");
        assert_eq!(readiness.missing(), [("tunnel", "connection refused".to_owned())]);
        second.up(AgentTunnelState::default());
        first.connecting();
        assert_eq!(readiness.missing(), []);
        let states: Vec<_> = tunnels.tunnels().into_iter().map(|view| (view.tunnel, view.state)).collect();
        assert_eq!(states, [("p:1/0".to_owned(), "connecting"), ("p:1/1".to_owned(), "up")]);
        assert!(second.waiting("the tunnel ended"));
        assert_eq!(readiness.missing().len(), 1);
    }
}
