//! Changes of the directory by operators: nodes made by `token create`, and the file.

use std::net::IpAddr;
use std::time::Duration;

use culvert_api::NodeName;
use culvert_daemon::{Drain, Gate, Problem, chain, host_addresses};
use tokio::time::{MissedTickBehavior, interval};

use super::Directory;
use super::error::DirectoryError;
use super::sources::{Refreshed, Removal, Sources};
use crate::state::StateError;

/// The interval of checking the file and the host's interfaces.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Writes operators' changes to the directory. Clones share it.
#[derive(Clone, Debug)]
pub struct Editor(Directory);

impl Editor {
    pub(crate) fn new(directory: Directory) -> Self {
        Self(directory)
    }

    /// Adds the node, or changes its given properties. Without addresses or ports it keeps those
    /// that it has. The change is on disk when this returns.
    pub fn put(
        &self,
        node: &NodeName,
        addresses: Vec<IpAddr>,
        ports: Vec<u16>,
    ) -> Result<(), DirectoryError> {
        self.change(|sources| sources.put(node, addresses, ports))
    }

    /// Removes the part of the node that `token create` made. The file can still describe the node.
    pub fn remove(&self, node: &NodeName) -> Result<Removal, DirectoryError> {
        self.change(|sources| sources.remove(node))
    }

    /// The reason why the file's present content is not in use.
    pub fn file_problem(&self) -> Option<String> {
        self.0.sources().file_problem()
    }

    /// Follows the file and the host's interfaces until the drain begins, and writes what the disk
    /// refused. Calls `removed` for every node that no source has any more: its tunnels must be
    /// closed.
    pub async fn maintain(
        self,
        gate: Gate,
        removed: impl Fn(&NodeName) + Send + 'static,
        drain: Drain,
    ) -> anyhow::Result<()> {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unwritten = Problem::default();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = drain.begun() => return Ok(()),
            }
            let editor = self.clone();
            let tended = tokio::task::spawn_blocking(move || {
                let gone = editor.refresh();
                (gone, editor.write_again())
            });
            let (gone, problem) = tended.await?;
            gone.iter().for_each(&removed);
            let remark = problem.clone();
            gate.remark(remark.map(|reason| format!("in force, but not on disk: {reason}")));
            if let Some(reason) = unwritten.record(problem) {
                tracing::error!(reason, "directory in force, but not on disk; trying again");
            }
            match self.file_problem() {
                Some(problem) if self.0.sources().lacks_file() => gate.close(problem),
                _ => gate.open(),
            }
        }
    }

    /// Writes what is in force and not on disk. Returns why it cannot be written.
    pub(super) fn write_again(&self) -> Option<String> {
        match self.0.sources().write_again() {
            // The proxy that takes this one's place has the same sources.
            Ok(()) | Err(StateError::Frozen { .. }) => None,
            Err(error) => Some(chain(&error)),
        }
    }

    /// Reads the file and the interfaces again. Returns the nodes that were removed. Failures are
    /// logged and change nothing.
    pub(super) fn refresh(&self) -> Vec<NodeName> {
        let host = match host_addresses() {
            Ok(host) => host,
            Err(error) => {
                tracing::warn!(reason = chain(&error), "the host's addresses are unknown");
                return Vec::new();
            }
        };
        let mut sources = self.0.sources();
        match sources.refresh(host) {
            Refreshed::Changed => self.0.publish(&sources),
            Refreshed::Unchanged => Vec::new(),
        }
    }

    fn change<T>(
        &self,
        edit: impl FnOnce(&mut Sources) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        let mut sources = self.0.sources();
        let answer = edit(&mut sources)?;
        self.0.publish(&sources);
        Ok(answer)
    }
}
