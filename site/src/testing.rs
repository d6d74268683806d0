//! A site for tests and pictures: three proxies, and as many nodes as are wanted. Some are offline,
//! and one has an address that two nodes have.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use culvert_api::proto::control as proto;
use culvert_daemon::serve_http;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::answered::{Answered, NoAnswer};
use crate::board::Board;
use crate::cloud_host::{CloudHost, Ready, Redirector, Traffic, Tunnel};
use crate::event::Event;
use crate::history::History;
use crate::site::{Site, WatchedAnswer};

/// When it was all seen.
const SECONDS: u64 = 1_796_000_000;
const HOSTS: [&str; 3] = ["cloud-1", "cloud-2", "cloud-3"];
/// Every so manieth node is offline.
const OFFLINE: usize = 13;

/// The site.
pub fn site(nodes: usize) -> Site {
    at_time(nodes, 0)
}

/// The site, and what was seen before it.
pub fn watched_site(nodes: usize) -> (Site, History) {
    let mut history = History::default();
    let start = Instant::now();
    let mut site = at_time(nodes, 0);
    for time in 0..48 {
        site = at_time(nodes, time);
        history.record(&site, start + Duration::from_secs(5 * time));
    }
    (site, history)
}

/// Serves pages on a port of this host until the runtime ends.
///
/// # Errors
/// There is no port.
pub fn serve(runtime: &Runtime, pages: Router) -> io::Result<SocketAddr> {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        let accept = async || listener.accept().await.map(|(stream, _)| stream);
        serve_http(accept, pages).await;
    });
    Ok(address)
}

/// The board of such a site.
pub fn board(nodes: usize) -> Board {
    let (site, history) = watched_site(nodes);
    Board {
        site: Some(site),
        history,
    }
}

/// One of the nodes; the second one is offline.
pub fn node_name(index: usize) -> String {
    format!("edge-{}", index + 1)
}

fn at_time(nodes: usize, time: u64) -> Site {
    let mut answers = Vec::new();
    for (number, host) in HOSTS.iter().enumerate() {
        answers.push(Answered {
            host: (*host).to_owned(),
            answer: Ok(answer(number, nodes, time)),
        });
    }
    Site::of(answers, SECONDS + 5 * time)
}

/// The same site, of which one host does not answer.
pub fn site_with_a_dead_host(nodes: usize) -> Site {
    let mut answers = Vec::new();
    for (number, host) in HOSTS.iter().enumerate() {
        let answer = match number {
            2 => Err(NoAnswer::late(Duration::from_secs(10))),
            _ => Ok(answer(number, nodes, 0)),
        };
        answers.push(Answered {
            host: (*host).to_owned(),
            answer,
        });
    }
    Site::of(answers, SECONDS)
}

/// A number that looks like any other.
fn scattered(seed: u64) -> u64 {
    let mixed = seed
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(31)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

fn is_offline(index: usize) -> bool {
    index % OFFLINE == 1
}

/// The two proxies of a node.
fn homes(index: usize) -> [usize; 2] {
    let first = index % HOSTS.len();
    [first, (first + 1 + index % 2) % HOSTS.len()]
}

fn answer(number: usize, nodes: usize, time: u64) -> WatchedAnswer {
    let tunnels = tunnels(number, nodes, time);
    let streams = streams(number, nodes, time);
    let proxies = proxies(number, tunnels.len(), streams.len());
    let host = CloudHost {
        proxies,
        nodes: (0..nodes).map(|index| status(number, index)).collect(),
        note: String::new(),
        streams,
        streams_left_out: 0,
        certificates: Vec::new(),
        tunnels,
        ready: Ready::default(),
        redirector: Redirector::Absent,
    };
    let mut failures = Vec::new();
    if number == 0 && nodes > 0 {
        failures = self::failures(nodes);
    }
    WatchedAnswer {
        host,
        failures,
        traffic: traffic(time),
    }
}

fn traffic(time: u64) -> Traffic {
    let bytes = (0..=time).map(|time| 400_000 + scattered(time / 3) % 1_400_000);
    let bytes: u64 = bytes.sum();
    Traffic {
        to_backend: bytes / 20,
        to_client: bytes,
        ended: 60 * time + scattered(time) % 40,
    }
}

fn proxies(number: usize, tunnels: usize, streams: usize) -> Vec<proto::ProxyStatus> {
    let mut proxies = Vec::new();
    for offset in 0..HOSTS.len() {
        let other = (number + offset) % HOSTS.len();
        proxies.push(proto::ProxyStatus {
            host: HOSTS[other].to_owned(),
            instance: format!("{other:032x}"),
            version: "0.1.0".to_owned(),
            tunnels: tunnels as u32,
            nodes: tunnels as u32,
            links: 2,
            streams: streams as u32,
            certificate_ends: SECONDS + 61 * 86_400,
            ..proto::ProxyStatus::default()
        });
    }
    proxies
}

fn status(number: usize, index: usize) -> proto::NodeStatus {
    let is_online = !is_offline(index);
    let mut elsewhere = Vec::new();
    let mut tunnels = 0;
    for home in homes(index) {
        match home == number {
            true if is_online => tunnels = 1,
            false if is_online => elsewhere.push(HOSTS[home].to_owned()),
            _ => {}
        }
    }
    let is_shared = index == 5;
    let reason = if is_shared { "edge-9 has it too" } else { "" };
    proto::NodeStatus {
        name: node_name(index),
        addresses: vec![format!("10.8.{}.{}", index / 250, index % 250 + 1)],
        reasons: vec![reason.to_owned()],
        vip4: format!("198.18.{}.{}", index / 250, index % 250 + 2),
        vip6: format!("fd7a:5c1f::{index:x}"),
        ports: vec![9100, 10250],
        tunnels,
        elsewhere,
        ..proto::NodeStatus::default()
    }
}

fn tunnels(number: usize, nodes: usize, time: u64) -> Vec<Tunnel> {
    let mut tunnels = Vec::new();
    for index in 0..nodes {
        if is_offline(index) || !homes(index).contains(&number) {
            continue;
        }
        let base = 6.0 + (scattered(index as u64) % 60) as f64;
        let noise = scattered(index as u64 * 977 + time) % 100;
        tunnels.push(Tunnel {
            tunnel: index as u64 + 1,
            node: node_name(index),
            agent: format!("203.0.113.{}:{}", index % 250, 40_000 + index % 20_000),
            agent_version: "0.1.0".to_owned(),
            age_seconds: 86_400.0 + time as f64,
            streams: u32::from(index % 3 == 0),
            round_trip_seconds: Some(base * (1.0 + noise as f64 / 160.0) / 1e3),
        });
    }
    tunnels
}

fn streams(number: usize, nodes: usize, time: u64) -> Vec<proto::StreamStatus> {
    let mut streams = Vec::new();
    for index in (number..nodes.min(24)).step_by(HOSTS.len()) {
        if is_offline(index) {
            continue;
        }
        let port = [9100, 10250, 22][index % 3];
        let rate = scattered(index as u64) % 300_000;
        streams.push(proto::StreamStatus {
            stream: 7_000 + index as u64,
            frontend: "ebpf".to_owned(),
            client: format!("10.0.{number}.7:{}", 41_000 + index),
            destination: format!("{}:{port}", node_name(index)),
            node: node_name(index),
            age_seconds: 30 + scattered(index as u64) % 4_000,
            idle_seconds: if index == 8 { 41 } else { index as u64 % 4 },
            bytes_to_backend: 600 + 11 * time,
            bytes_to_client: rate * time,
            waits: index == 8,
            tunnel: 100 + index as u64,
            ..proto::StreamStatus::default()
        });
    }
    streams
}

fn failures(nodes: usize) -> Vec<Event> {
    let texts = [
        ("offline", "edge-2 has no tunnel"),
        (
            "refused",
            "the backend refused: nothing listens on port 9101",
        ),
        (
            "forbidden",
            "the agent's allow-list does not have port 5432",
        ),
        ("timed_out", "the backend did not answer within 5 s"),
    ];
    let mut failures = Vec::new();
    for (index, (outcome, reason)) in texts.into_iter().enumerate() {
        let node = node_name((index + 1) % nodes);
        let event = proto::StreamEvent {
            unix_millis: (SECONDS - 40 * index as u64) * 1_000,
            stream: 6_900 - index as u64,
            frontend: "ebpf".to_owned(),
            client: format!("10.0.0.7:{}", 52_000 + index),
            destination: format!("{node}:{}", [10250, 9101, 5432, 9100][index]),
            node,
            outcome: outcome.to_owned(),
            reason: reason.to_owned(),
            ..proto::StreamEvent::default()
        };
        failures.push(Event::of(HOSTS[0], event));
    }
    failures
}
