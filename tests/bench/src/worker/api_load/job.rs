//! The jobs. Each is one line of input.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

use super::connection::Target;
use super::watches::OpenWatches;
use super::{Figures, cut, objects, requests, updates};

/// A line of input.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    job: Job,
}

/// A job. A target is a file that [`Target::read`] understands, a path the one of a list.
#[derive(Subcommand)]
pub(super) enum Job {
    /// Makes that many objects, named after their kind and a number
    Create {
        target: PathBuf,
        path: String,
        count: usize,
    },
    /// Asks until the answer is 200
    UntilAnswered { target: PathBuf, path: String },
    /// Asks for one path all the time
    Requests {
        target: PathBuf,
        path: String,
        connections: usize,
        seconds: f64,
        #[arg(long)]
        pid: Vec<u32>,
    },
    /// Changes objects by the writer, and watches them by the target
    Updates {
        target: PathBuf,
        writer: PathBuf,
        path: String,
        count: u32,
        per_second: u32,
        #[arg(long)]
        pid: Vec<u32>,
    },
    /// Lists, and keeps watches open from there
    Hold {
        target: PathBuf,
        path: String,
        watches: usize,
    },
    /// Ends all watches
    Release,
    /// Drops all packets from and to an address, and asks until there are answers again
    Cut {
        target: PathBuf,
        path: String,
        address: SocketAddr,
    },
    /// Only drops the packets
    Sever { address: SocketAddr },
    /// Lets packets through again, and waits until all watches have seen a change by the writer
    Return { writer: PathBuf },
    /// Only lets packets through again
    Heal,
}

impl Job {
    pub(super) fn parse(line: &str) -> Result<Self> {
        Ok(Line::try_parse_from(line.split_whitespace())?.job)
    }

    pub(super) async fn run(self, open_watches: &mut OpenWatches) -> Result<Figures> {
        match self {
            Self::Create {
                target,
                path,
                count,
            } => objects::create(&Target::read(&target)?, &path, count).await,
            Self::UntilAnswered { target, path } => {
                requests::until_answered(&Target::read(&target)?, &path).await
            }
            Self::Requests {
                target,
                path,
                connections,
                seconds,
                pid,
            } => requests::run(&Target::read(&target)?, &path, connections, seconds, &pid).await,
            Self::Updates {
                target,
                writer,
                path,
                count,
                per_second,
                pid,
            } => {
                let target = Target::read(&target)?;
                let writer = Target::read(&writer)?;
                updates::run(&target, &writer, &path, count, per_second, &pid).await
            }
            Self::Hold {
                target,
                path,
                watches,
            } => {
                open_watches
                    .open(&Target::read(&target)?, &path, watches)
                    .await
            }
            Self::Release => Ok(open_watches.release()),
            Self::Cut {
                target,
                path,
                address,
            } => cut::run(&Target::read(&target)?, &path, address).await,
            Self::Sever { address } => cut::sever(address).map(|()| Vec::new()),
            Self::Return { writer } => {
                cut::heal()?;
                open_watches.await_change(&Target::read(&writer)?).await
            }
            Self::Heal => cut::heal().map(|()| Vec::new()),
        }
    }
}
