//! A network namespace of its own: its ports are free, its loopback carries nothing else, and it is
//! gone with its processes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::{inside, workspace};
use nix::sched::{CloneFlags, unshare};

/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";
/// The kernel counts an Ethernet header for each packet, though loopback has none.
const ETHERNET: u64 = 14;

/// Moves the calling thread into a new namespace.
pub(crate) fn enter() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace")?;
    workspace::output(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    Ok(())
}

/// Bytes and packets that the loopback carried, with IP and TCP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wire {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
}

impl Wire {
    /// What it carried so far.
    pub(crate) fn now() -> Result<Self> {
        let path = "/proc/thread-self/net/dev";
        let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("lo:"))
            .context("no loopback")?;
        let fields: Vec<u64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let [bytes, packets, ..] = fields.as_slice() else {
            anyhow::bail!("{line:?} is not what was expected of {path}")
        };
        Ok(Self {
            bytes: bytes.saturating_sub(packets * ETHERNET),
            packets: *packets,
        })
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            packets: self.packets.saturating_sub(earlier.packets),
        }
    }
}

/// An admin page.
pub(crate) fn get(port: u16, page: &str) -> Result<String> {
    inside::http(Path::new(OWN), port, &format!("GET {page}"), "")
}
