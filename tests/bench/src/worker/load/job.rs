//! The load's jobs. Each is one line of input.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};

use super::backend::Backend;
use super::endpoint::Endpoint;
use super::scrape::Reuse;
use super::{
    Direction, Figures, Sent, bulk, connects, copies, dns, fairness, memory, ping, scrape,
};

/// A line of input.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    job: Job,
}

/// A job. Each `pid` is a program on the path whose processor time or memory is measured.
#[derive(Subcommand)]
pub(super) enum Job {
    /// Streams that send all they can one way
    Bulk {
        endpoint: Endpoint,
        direction: Direction,
        streams: usize,
        seconds: f64,
        /// Seconds from the first bytes of all streams until they are measured
        #[arg(long, default_value_t = 0.5)]
        warm_up: f64,
        #[arg(long)]
        pid: Vec<u32>,
    },
    /// One copy from the edge, and one from another endpoint that shares the link with it
    Fairness {
        endpoint: Endpoint,
        beside: Endpoint,
        seconds: f64,
    },
    /// Streams that copy so many MiB in all, until the last one has ended
    Copies {
        endpoint: Endpoint,
        direction: Direction,
        streams: usize,
        mebibytes: usize,
        #[arg(long)]
        pid: Vec<u32>,
    },
    /// Connections with 100 bytes there and back, beside as many bulk streams, every other one up
    Ping {
        endpoint: Endpoint,
        connections: usize,
        bulk: usize,
        seconds: f64,
        /// All bulk goes that way
        #[arg(long)]
        direction: Option<Direction>,
        /// Seconds between the pings of a connection
        #[arg(long, default_value_t = 0.0)]
        pause: f64,
        /// Seconds until threads run and bulk has filled its buffers
        #[arg(long, default_value_t = 0.5)]
        warm_up: f64,
        /// Connect only after that
        #[arg(long)]
        late: bool,
    },
    /// Answers of that many bytes, one after another on each connection
    Scrapes {
        endpoint: Endpoint,
        connections: usize,
        bytes: usize,
        seconds: f64,
    },
    /// Answers of that many bytes from all endpoints at once, each time after a pause in seconds
    Scrape {
        bytes: usize,
        count: usize,
        pause: f64,
        reuse: Reuse,
        #[arg(required = true)]
        endpoints: Vec<Endpoint>,
    },
    /// Connects, pings once and closes, over and over
    Connects {
        endpoint: Endpoint,
        at_once: usize,
        seconds: f64,
    },
    /// One bulk stream down, alone and then beside connections with data that is not read
    Neighbour {
        endpoint: Endpoint,
        stalled: usize,
        seconds: f64,
    },
    /// Connections with data that is not read
    Stalled {
        endpoint: Endpoint,
        sent: Sent,
        count: usize,
        #[arg(long)]
        pid: Vec<u32>,
    },
    /// Streams that do nothing
    Idle {
        endpoint: Endpoint,
        streams: usize,
        #[arg(long)]
        pid: Vec<u32>,
    },
    /// Bare `connect()` calls
    ConnectCost { to: SocketAddr, count: usize },
    /// Queries for one name
    Dns {
        server: SocketAddr,
        name: String,
        at_once: usize,
        seconds: f64,
    },
}

impl Job {
    pub(super) fn parse(line: &str) -> Result<Self> {
        Ok(Line::try_parse_from(line.split_whitespace())?.job)
    }

    pub(super) fn run(self, backend: &Backend) -> Result<Figures> {
        match self {
            Self::Bulk {
                endpoint,
                direction,
                streams,
                seconds,
                warm_up,
                pid,
            } => {
                let timing = bulk::Timing::of_seconds(warm_up, seconds);
                bulk::run(&endpoint, direction, streams, timing, &pid, backend)
            }
            Self::Fairness {
                endpoint,
                beside,
                seconds,
            } => fairness::run(&endpoint, &beside, seconds),
            Self::Copies {
                endpoint,
                direction,
                streams,
                mebibytes,
                pid,
            } => copies::run(&endpoint, direction, streams, mebibytes << 20, &pid),
            Self::Ping {
                endpoint,
                connections,
                bulk,
                seconds,
                direction,
                pause,
                warm_up,
                late,
            } => {
                let directions = alternating(direction).cycle().take(bulk);
                let mut times = ping::Times::of_seconds(pause, warm_up, seconds);
                times.late = late;
                ping::run(&endpoint, connections, directions, &times)
            }
            Self::Scrapes {
                endpoint,
                connections,
                bytes,
                seconds,
            } => {
                let time = Duration::from_secs_f64(seconds);
                scrape::at_once(&endpoint, connections, bytes, time)
            }
            Self::Scrape {
                bytes,
                count,
                pause,
                reuse,
                endpoints,
            } => {
                let pause = Duration::from_secs_f64(pause);
                scrape::run(&endpoints, bytes, count, pause, reuse)
            }
            Self::Connects {
                endpoint,
                at_once,
                seconds,
            } => connects::run(&endpoint, at_once, seconds),
            Self::Neighbour {
                endpoint,
                stalled,
                seconds,
            } => bulk::neighbour(&endpoint, stalled, seconds, backend),
            Self::Stalled {
                endpoint,
                sent,
                count,
                pid,
            } => bulk::stalled(&endpoint, sent, count, &pid),
            Self::Idle {
                endpoint,
                streams,
                pid,
            } => memory::idle(&endpoint, streams, &pid),
            Self::ConnectCost { to, count } => connects::cost(to, count),
            Self::Dns {
                server,
                name,
                at_once,
                seconds,
            } => dns::run(server, &name, at_once, seconds),
        }
    }
}

/// The direction alone, or both.
fn alternating(direction: Option<Direction>) -> std::vec::IntoIter<Direction> {
    match direction {
        Some(direction) => vec![direction].into_iter(),
        None => vec![Direction::Up, Direction::Down].into_iter(),
    }
}
