//! The load's jobs. Each is one line of input.

use std::net::SocketAddr;

use anyhow::Result;
use clap::{Parser, Subcommand};

use super::backend::Backend;
use super::endpoint::Endpoint;
use super::{Direction, Figures, Sent, bulk, connects, dns, memory, ping};

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
        #[arg(long)]
        pid: Vec<u32>,
    },
    /// Connections with 100 bytes there and back, beside as many bulk streams, every other one up
    Ping {
        endpoint: Endpoint,
        connections: usize,
        bulk: usize,
        seconds: f64,
    },
    /// Connects, pings once and closes, over and over
    Connects {
        endpoint: Endpoint,
        at_once: usize,
        seconds: f64,
    },
    /// One bulk stream down, alone and then beside connections with data that nobody reads
    Neighbour {
        endpoint: Endpoint,
        stalled: usize,
        seconds: f64,
    },
    /// Connections with data that nobody reads
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
                pid,
            } => bulk::run(&endpoint, direction, streams, seconds, &pid, backend),
            Self::Ping {
                endpoint,
                connections,
                bulk,
                seconds,
            } => ping::run(&endpoint, connections, bulk, seconds),
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
