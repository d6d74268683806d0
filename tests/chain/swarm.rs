//! Many clients. Each is a process in the cloud that is steered by the connect hooks or, outside
//! the hooked cgroup, by nftables alone. Some use CONNECT.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use culvert_lab::host::Host;
use culvert_lab::probe::{self, Client};
use culvert_lab::random::Random;
use culvert_lab::wait::PATIENCE;
use culvert_lab::{progress, workspace};
use serde_json::Value;

use crate::world::{ECHO, GREET, HeldClient, World, xtask};

/// What steers a process's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steered {
    /// Connect hooks.
    ByHooks,
    /// nftables alone.
    ByPackets,
}

impl Steered {
    /// A program in the cloud whose connections are steered like this.
    fn command(self, world: &World<'_>, program: impl AsRef<OsStr>) -> Command {
        let cloud = world.lab.site(Host::Cloud);
        match self {
            Self::ByHooks => cloud.command(program),
            Self::ByPackets => cloud.unhooked_command(program),
        }
    }
}

/// A client program in the cloud.
pub(crate) fn clients(world: &World<'_>, steered: Steered) -> Command {
    steered.command(world, workspace::example("clients"))
}

/// Whether this is a run of `cargo xtask test --long`.
pub(crate) fn is_long() -> bool {
    std::env::var_os(xtask::test::LONG).is_some()
}

/// Random numbers that can be repeated: prints its seed, or takes the one in `CULVERT_TEST_SEED`.
pub(crate) fn chance() -> Result<Random> {
    let seed = match std::env::var("CULVERT_TEST_SEED") {
        Ok(given) => given.parse().context("CULVERT_TEST_SEED")?,
        Err(_) => u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()),
    };
    progress::say(&format!(
        "    CULVERT_TEST_SEED={seed} repeats this run's choices"
    ));
    Ok(Random::new(seed))
}

/// Targets: the nodes by VIP, and by address if only one node has it.
pub(crate) fn by_address(world: &World<'_>, edges: &[Host]) -> Result<Vec<String>> {
    let mut targets = Vec::new();
    for host in edges {
        let node = host.name();
        targets.push(format!("{}={node}", world.vip(*host, "vip4")?));
        targets.push(format!("[{}]={node}", world.vip(*host, "vip6")?));
        if *host == Host::Edge1 {
            targets.push(format!("{}={node}", host.address()));
        }
    }
    Ok(targets)
}

/// Targets: the nodes by HTTP CONNECT.
pub(crate) fn by_connect(socket: &Path, edges: &[Host]) -> Vec<String> {
    edges
        .iter()
        .map(|host| format!("{},{1}={1}", socket.display(), host.name()))
        .collect()
}

/// Twenty connections to a node, tested on request.
pub(crate) fn held(world: &World<'_>, steered: Steered, node: Host) -> Result<HeldClient> {
    let mut command = steered.command(world, xtask());
    let hold = Client::hold_open(format!("{}:{ECHO}", node.name()), 20);
    let held = HeldClient::spawn(hold.complete(&mut command)?)?;
    held.expect(&probe::Report::Held)?;
    Ok(held)
}

/// The same for each kind of client.
pub(crate) fn held_by_both(world: &World<'_>, node: Host) -> Result<[HeldClient; 2]> {
    Ok([
        held(world, Steered::ByHooks, node)?,
        held(world, Steered::ByPackets, node)?,
    ])
}

/// A load that runs until it is dropped.
pub(crate) struct Load {
    client: HeldClient,
    targets: Vec<String>,
}

/// The results of a load's requests since the last report.
#[derive(Debug)]
pub(crate) struct Report(Value);

impl Load {
    /// Starts one thread of requests for each of the targets, in the syntax of `clients steady`.
    pub(crate) fn start(
        world: &World<'_>,
        steered: Steered,
        seed: u64,
        targets: Vec<String>,
    ) -> Result<Self> {
        let mut command = clients(world, steered);
        command.args([
            "steady",
            "--threads",
            "1",
            "--port",
            &GREET.to_string(),
            "--seed",
            &seed.to_string(),
        ]);
        let mut load = Self {
            client: HeldClient::spawn(command.args(&targets))?,
            targets,
        };
        load.report()?;
        Ok(load)
    }

    /// The same load for each kind of client.
    pub(crate) fn by_both(world: &World<'_>, seed: u64, targets: Vec<String>) -> Result<[Self; 2]> {
        Ok([
            Self::start(world, Steered::ByHooks, seed, targets.clone())?,
            Self::start(world, Steered::ByPackets, seed, targets)?,
        ])
    }

    /// The results since the last report. Fails if a request was answered by a wrong node or hung.
    pub(crate) fn report(&mut self) -> Result<Report> {
        self.client.ask()?;
        let report: Value = serde_json::from_str(&self.client.line(PATIENCE)?)?;
        let nothing = |list: &Value| list.as_array().is_some_and(Vec::is_empty);
        ensure!(
            nothing(&report["wrong"]),
            "answered by somebody else: {report}"
        );
        ensure!(
            nothing(&report["hung"]),
            "neither answered nor failed in time: {report}"
        );
        Ok(Report(report))
    }

    /// The same for a time in which every request, on every target, must have been answered.
    pub(crate) fn report_all_answered(&mut self) -> Result<Report> {
        let report = self.report()?;
        ensure!(report.failed() == 0, "not all answered: {}", report.0);
        let silent: Vec<_> = self
            .targets
            .iter()
            .filter(|target| {
                !target.ends_with("=nobody") && report.0["targets"][target] == Value::Null
            })
            .collect();
        ensure!(silent.is_empty(), "no answer by {silent:?}: {}", report.0);
        Ok(report)
    }
}

impl Report {
    pub(crate) fn answered(&self) -> u64 {
        self.0["answered"].as_u64().unwrap_or_default()
    }

    pub(crate) fn failed(&self) -> u64 {
        self.0["failed"].as_u64().unwrap_or_default()
    }

    pub(crate) fn slowest_ms(&self) -> u64 {
        self.0["slowest_ms"].as_u64().unwrap_or_default()
    }

    /// When the last failed request began, counted from the previous report.
    pub(crate) fn last_failure(&self) -> Option<Duration> {
        self.0["last_failure_ms"]
            .as_u64()
            .map(Duration::from_millis)
    }

    /// The failures as text.
    pub(crate) fn errors(&self) -> String {
        format!("{}, the last {}", self.0["errors"], self.0["last_error"])
    }
}
