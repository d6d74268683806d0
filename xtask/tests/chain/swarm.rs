//! Clients in great number: each a process of the cloud, steered by the connect hooks or, outside
//! of the hooked cgroup, by nftables alone; and CONNECT clients among them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use culvert_lab::place::Place;
use culvert_lab::probe::{self, Client};
use culvert_lab::random::Random;
use culvert_lab::{progress, workspace};
use serde_json::Value;

use crate::world::{ECHO, GREET, HeldClient, World, XTASK};

/// A report is a look at counters; requests that are under way are not waited for.
const REPORT_TIME: Duration = Duration::from_secs(10);

/// What steers a process' connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steered {
    /// Connect hooks.
    ByHooks,
    /// nftables alone.
    ByPackets,
}

impl Steered {
    /// A program in the cloud whose connections are steered so.
    fn command(self, world: &World<'_>, program: impl AsRef<OsStr>) -> Command {
        let cloud = world.lab.site(Place::Cloud);
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

/// Whether `cargo xtask test --long` runs this.
pub(crate) fn is_long() -> bool {
    std::env::var_os(xtask::test::LONG).is_some()
}

/// Chance that can be had again: says its seed, or takes the one that is given in
/// `CULVERT_TEST_SEED`.
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

/// By a node's VIPs, and by its address where it is its alone.
pub(crate) fn by_address(world: &World<'_>, edges: &[Place]) -> Result<Vec<String>> {
    let mut ways = Vec::new();
    for place in edges {
        let node = place.name();
        ways.push(format!("{}={node}", world.vip(*place, "vip4")?));
        ways.push(format!("[{}]={node}", world.vip(*place, "vip6")?));
        if *place == Place::Edge1 {
            ways.push(format!("{}={node}", place.address()));
        }
    }
    Ok(ways)
}

/// By HTTP CONNECT.
pub(crate) fn by_connect(socket: &Path, edges: &[Place]) -> Vec<String> {
    edges
        .iter()
        .map(|place| format!("{},{1}={1}", socket.display(), place.name()))
        .collect()
}

/// Twenty connections to a node that are tried when asked.
pub(crate) fn held(world: &World<'_>, steered: Steered, node: Place) -> Result<HeldClient> {
    let mut command = steered.command(world, XTASK);
    let hold = Client::hold(format!("{}:{ECHO}", node.name()), 20);
    let held = HeldClient::spawn(hold.complete(&mut command)?)?;
    held.expect(&probe::Report::Held)?;
    Ok(held)
}

/// The same for clients of each kind.
pub(crate) fn held_by_both(world: &World<'_>, node: Place) -> Result<[HeldClient; 2]> {
    Ok([
        held(world, Steered::ByHooks, node)?,
        held(world, Steered::ByPackets, node)?,
    ])
}

/// A load that goes on until it is dropped.
pub(crate) struct Load {
    client: HeldClient,
    ways: Vec<String>,
}

/// What came of a load's requests since the last report.
#[derive(Debug)]
pub(crate) struct Report(Value);

impl Load {
    /// Starts one thread of requests for each of the ways, which have the form that `clients
    /// steady` takes.
    pub(crate) fn start(
        world: &World<'_>,
        steered: Steered,
        seed: u64,
        ways: Vec<String>,
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
            client: HeldClient::spawn(command.args(&ways))?,
            ways,
        };
        load.report()?;
        Ok(load)
    }

    /// The same load by clients of each kind.
    pub(crate) fn by_both(world: &World<'_>, seed: u64, ways: Vec<String>) -> Result<[Self; 2]> {
        Ok([
            Self::start(world, Steered::ByHooks, seed, ways.clone())?,
            Self::start(world, Steered::ByPackets, seed, ways)?,
        ])
    }

    /// What came since the last report. Whatever else, no request has been answered by another node
    /// or hung.
    pub(crate) fn report(&mut self) -> Result<Report> {
        self.client.ask()?;
        let report: Value = serde_json::from_str(&self.client.line(REPORT_TIME)?)?;
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

    /// The same, for a time in which every request must have been answered, on every way.
    pub(crate) fn report_all_answered(&mut self) -> Result<Report> {
        let report = self.report()?;
        ensure!(report.failed() == 0, "not all answered: {}", report.0);
        let silent: Vec<_> = self
            .ways
            .iter()
            .filter(|way| !way.ends_with("=nobody") && report.0["ways"][way] == Value::Null)
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

    /// How long after the report before this one the last request that failed was begun.
    pub(crate) fn last_failure(&self) -> Option<Duration> {
        self.0["last_failure_ms"]
            .as_u64()
            .map(Duration::from_millis)
    }

    /// What failed, for people.
    pub(crate) fn errors(&self) -> String {
        format!("{}, the last {}", self.0["errors"], self.0["last_error"])
    }
}
