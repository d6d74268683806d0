//! What is measured, out of the flags.

use std::time::Duration;

use crate::Args;

/// Agents in a process, each with two tunnels: their sockets stay far below 20,000 files.
const IN_A_PROCESS: u32 = 2500;

/// How many of what.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) agents: u32,
    pub(crate) proxies: u32,
    /// Tunnels of each agent.
    pub(crate) tunnels: u32,
    /// Processes that the agents are in.
    pub(crate) processes: u32,
    /// Agents that dial from one address.
    pub(crate) site: u32,
    /// A time in which only pings happen.
    pub(crate) steady: Duration,
}

impl Config {
    /// The tunnels of all agents.
    pub(crate) fn all_tunnels(&self) -> u32 {
        self.agents * self.tunnels
    }
}

impl From<&Args> for Config {
    fn from(args: &Args) -> Self {
        let processes = args.processes.unwrap_or(args.agents.div_ceil(IN_A_PROCESS));
        Self {
            agents: args.agents,
            proxies: args.proxies,
            tunnels: args.tunnels,
            processes: processes.min(args.agents),
            site: args.site,
            steady: Duration::from_secs(args.steady.into()),
        }
    }
}
