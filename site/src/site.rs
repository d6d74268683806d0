//! All that the proxies say at one moment, put together. Pure.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::answered::{Answered, all_ok};
use crate::cloud_host::{CloudHost, Traffic};
use crate::event::Event;
use crate::node::{Node, nodes};
use crate::stream::Stream;
use crate::summary::Status;
use crate::tunnel_at::TunnelAt;

/// One moment.
#[derive(Debug)]
pub struct Site {
    /// Seconds since 1970, by the clock of this host.
    pub seconds: u64,
    /// What is wrong, and counts.
    pub status: Status,
    /// All nodes, in the order of their names.
    pub nodes: Vec<Node>,
    /// The tunnels of each node that has any.
    pub tunnels: HashMap<String, Vec<TunnelAt>>,
    /// Connections; those that wait for the longest come first.
    pub streams: Vec<Stream>,
    /// How many more there are.
    pub streams_left_out: u64,
    /// The last ones that failed, the newest first.
    pub failures: Vec<Event>,
    /// What each proxy that says so has relayed, by its host.
    pub traffic: HashMap<String, Traffic>,
}

/// What one host says when it is watched.
#[derive(Debug)]
pub struct WatchedAnswer {
    /// The programs of the host.
    pub host: CloudHost,
    /// Its last connections that failed.
    pub failures: Vec<Event>,
    /// What has come through its proxy.
    pub traffic: Traffic,
}

impl Site {
    /// Puts the answers together.
    pub fn of(answers: Vec<Answered<WatchedAnswer>>, seconds: u64) -> Self {
        let mut hosts = Vec::new();
        let mut failures = Vec::new();
        let mut traffic = HashMap::new();
        for Answered { host, answer } in answers {
            let answer = answer.map(|watched| {
                traffic.insert(watched.host.name().to_owned(), watched.traffic);
                failures.extend(watched.failures);
                watched.host
            });
            hosts.push(Answered { host, answer });
        }
        failures.sort_by_key(|event: &Event| Reverse(event.unix_millis));
        let mut site = Self {
            seconds,
            status: Status::of(&hosts, Vec::new(), seconds),
            nodes: nodes(all_ok(&hosts)),
            tunnels: HashMap::new(),
            streams: Vec::new(),
            streams_left_out: 0,
            failures,
            traffic,
        };
        for host in all_ok(&hosts) {
            site.add(host);
        }
        site.streams.sort_by_key(Stream::urgency);
        site
    }

    fn add(&mut self, host: &CloudHost) {
        self.streams_left_out += host.streams_left_out;
        for stream in &host.streams {
            self.streams.push(Stream::of(host.name(), stream));
        }
        for tunnel in &host.tunnels {
            let of_node = self.tunnels.entry(tunnel.node.clone()).or_default();
            of_node.push(TunnelAt::of(host.name(), tunnel));
        }
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        let index = self
            .nodes
            .binary_search_by(|node| node.node.as_str().cmp(name));
        index.ok().map(|index| &self.nodes[index])
    }

    /// Its tunnels at all proxies.
    pub fn tunnels_of(&self, node: &str) -> &[TunnelAt] {
        self.tunnels.get(node).map_or(&[], Vec::as_slice)
    }
}
