//! What has changed since the last times: round trips of nodes, and rates. Pure.

use std::collections::HashMap;
use std::time::Instant;

use crate::cloud_host::Traffic;
use crate::samples::Samples;
use crate::site::Site;

/// A connection: the proxy, and its number there.
type StreamKey = (String, u64);

/// What was seen the last times.
#[derive(Debug, Default)]
pub struct History {
    at: Option<Instant>,
    round_trips: HashMap<String, Samples>,
    streams: HashMap<StreamKey, StreamCounts>,
    proxies: HashMap<String, ProxyHistory>,
    /// Connections under way, at all proxies.
    pub running: Samples,
    /// Nodes that a proxy reaches.
    pub online: Samples,
    /// Payload in both directions, in bytes a second.
    pub bytes: Samples,
    /// Connections that ended, in a second.
    pub ended: Samples,
}

#[derive(Clone, Copy, Debug)]
struct StreamCounts {
    /// To the backend and to the client.
    bytes: [u64; 2],
    rate: Rate,
}

/// What one proxy relayed.
#[derive(Debug, Default)]
struct ProxyHistory {
    traffic: Traffic,
    rate: Rate,
    bytes: Samples,
}

/// Payload in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Bytes from clients.
    pub to_backend: f64,
    /// Bytes to clients.
    pub to_client: f64,
    /// Connections that ended. Of one connection: 0.
    pub ended: f64,
}

impl Rate {
    /// In both directions.
    pub fn bytes(self) -> f64 {
        self.to_backend + self.to_client
    }
}

impl History {
    /// Adds what is known at a moment.
    pub fn record(&mut self, site: &Site, at: Instant) {
        let seconds = self.at.map_or(0.0, |last| (at - last).as_secs_f64());
        self.at = Some(at);
        self.record_round_trips(site);
        self.record_streams(site, seconds);
        let total = self.record_proxies(site, seconds);
        self.running
            .push(Some(f64::from(site.status.streams.running)));
        self.online.push(Some(site.status.nodes.online as f64));
        // Rates need two moments.
        let is_known = seconds > 0.0;
        self.bytes.push(is_known.then_some(total.bytes()));
        self.ended.push(is_known.then_some(total.ended));
    }

    /// Round trips of the node's nearest tunnel; absent for a node that is not known.
    pub fn round_trips(&self, node: &str) -> Option<&Samples> {
        self.round_trips.get(node)
    }

    /// The rate of one connection.
    pub fn stream_rate(&self, proxy: &str, stream: u64) -> Rate {
        let counts = self.streams.get(&(proxy.to_owned(), stream));
        match counts {
            Some(counts) => counts.rate,
            None => Rate::default(),
        }
    }

    /// The rate of one proxy, and its payload at the last times.
    pub fn proxy(&self, host: &str) -> Option<(Rate, &Samples)> {
        let history = self.proxies.get(host)?;
        Some((history.rate, &history.bytes))
    }

    fn record_round_trips(&mut self, site: &Site) {
        let mut round_trips = HashMap::new();
        for node in &site.nodes {
            let mut samples = self.round_trips.remove(&node.node).unwrap_or_default();
            samples.push(node.round_trip_ms);
            round_trips.insert(node.node.clone(), samples);
        }
        self.round_trips = round_trips;
    }

    fn record_streams(&mut self, site: &Site, seconds: f64) {
        let mut streams = HashMap::new();
        for stream in &site.streams {
            let key = (stream.proxy.clone(), stream.stream);
            let bytes = [stream.bytes_to_backend, stream.bytes_to_client];
            let rate = match self.streams.get(&key) {
                Some(last) => Rate {
                    to_backend: per_second(bytes[0], last.bytes[0], seconds),
                    to_client: per_second(bytes[1], last.bytes[1], seconds),
                    ended: 0.0,
                },
                None => Rate::default(),
            };
            streams.insert(key, StreamCounts { bytes, rate });
        }
        self.streams = streams;
    }

    /// Returns the rate of all.
    fn record_proxies(&mut self, site: &Site, seconds: f64) -> Rate {
        let mut proxies = HashMap::new();
        let mut total = Rate::default();
        for (host, traffic) in &site.traffic {
            let known = self.proxies.remove(host);
            let is_new = known.is_none();
            let mut history = known.unwrap_or_default();
            let last = history.traffic;
            history.traffic = *traffic;
            if !is_new {
                history.rate = Rate {
                    to_backend: per_second(traffic.to_backend, last.to_backend, seconds),
                    to_client: per_second(traffic.to_client, last.to_client, seconds),
                    ended: per_second(traffic.ended, last.ended, seconds),
                };
                history.bytes.push(Some(history.rate.bytes()));
            }
            total.to_backend += history.rate.to_backend;
            total.to_client += history.rate.to_client;
            total.ended += history.rate.ended;
            proxies.insert(host.clone(), history);
        }
        self.proxies = proxies;
        total
    }
}

/// A counter that is smaller than before belongs to a program that was started again.
fn per_second(now: u64, before: u64, seconds: f64) -> f64 {
    if seconds <= 0.0 {
        return 0.0;
    }
    now.saturating_sub(before) as f64 / seconds
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::site;

    #[test]
    fn rates_are_what_was_added_in_the_time_between() {
        let mut history = History::default();
        let start = Instant::now();
        let mut site = site(3);
        history.record(&site, start);
        assert_eq!(history.bytes.newest(), None, "one moment has no rate");
        let proxy = site.streams[0].proxy.clone();
        let number = site.streams[0].stream;
        site.streams[0].bytes_to_client += 4_000;
        if let Some(traffic) = site.traffic.get_mut(&proxy) {
            traffic.to_client += 4_000;
            traffic.ended += 6;
        }
        history.record(&site, start + Duration::from_secs(2));
        assert_eq!(history.stream_rate(&proxy, number).to_client, 2_000.0);
        assert_eq!(history.stream_rate(&proxy, number).to_backend, 0.0);
        assert_eq!(history.bytes.newest(), Some(2_000.0));
        let rate = history.proxy(&proxy).map(|(rate, _)| rate.ended);
        assert_eq!(rate, Some(3.0));
    }

    #[test]
    fn a_proxy_that_began_anew_has_no_negative_rate() {
        let mut history = History::default();
        let start = Instant::now();
        let mut site = site(3);
        history.record(&site, start);
        for traffic in site.traffic.values_mut() {
            *traffic = Traffic::default();
        }
        history.record(&site, start + Duration::from_secs(2));
        assert_eq!(history.bytes.newest(), Some(0.0));
    }

    #[test]
    fn a_node_that_is_gone_is_forgotten() {
        let mut history = History::default();
        let mut site = site(3);
        history.record(&site, Instant::now());
        let name = site.nodes[0].node.clone();
        assert!(history.round_trips(&name).is_some());
        site.nodes.clear();
        history.record(&site, Instant::now());
        assert!(history.round_trips(&name).is_none());
    }
}
