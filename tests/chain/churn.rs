//! Churn: tens of thousands of connections come and go, half of them aborted, and leave nothing
//! behind.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::process::{KernelResources, Process};
use culvert_lab::random::Random;
use culvert_lab::site::Site;
use culvert_lab::{progress, wait};
use serde_json::Value;

use crate::swarm::{self, Steered};
use crate::world::{self, GREET, HeldClient, World, xtask};

const EDGE: &[Host] = &[Host::Edge1];

/// Connections after which pools, caches and allocators have reached their size.
const WARM_UP: u64 = 20_000;
/// The connections of the smallest cloud node in an hour.
const COUNT: u64 = 60_000;
/// The number in the long form.
const LONG_COUNT: u64 = 1_000_000;

/// Bytes that a connection may leave in memory on average: less than the smallest part of a stream.
const LEFT_PER_CONNECTION: u64 = 64;
/// Variation of an allocator's reserve, whatever the number of connections.
const ALLOWANCE: u64 = 4 << 20;

/// The port of a backend for clients that leave in the middle of its answer.
const SOURCE: u16 = 9007;
const SOURCE_BYTES: u64 = 128 << 10;

/// Two idle cores make several thousand per second.
const SLOWEST_RATE: u64 = 200;

const RECOVERY: Duration = Duration::from_secs(30);

#[test]
fn sixty_thousand_connections_half_of_them_aborted_leave_nothing_behind() {
    // A log line for each connection would make the test measure the disk.
    let quiet = vec!["--log".to_owned(), "warn".to_owned()];
    let options = Options {
        ports: vec![SOURCE],
        proxy: quiet.clone(),
        agent: quiet,
        ..Options::default()
    };
    world::with(EDGE, options, |world| {
        let _source = source(world)?;
        let targets = Targets::of(world)?;
        let mut random = swarm::chance()?;
        churn(world, &targets, &mut random, WARM_UP)?;
        world.wait_for_no_streams()?;
        let before = Leftovers::now(world)?;
        let count = if swarm::is_long() { LONG_COUNT } else { COUNT } - WARM_UP;
        churn(world, &targets, &mut random, count / 2)?;
        world.wait_for_no_streams()?;
        let middle = Leftovers::now(world)?;
        churn(world, &targets, &mut random, count / 2)?;
        world.wait_for_no_streams()?;
        check_front_ends(world, count)?;
        // A leak grows in each half; an allocator's reserve from a busy moment does not.
        let allowed = ALLOWANCE + count / 2 * LEFT_PER_CONNECTION;
        wait::until("nothing more is left than before", RECOVERY, || {
            let now = Leftovers::now(world)?;
            before.check(&now, u64::MAX)?;
            before
                .check(&now, allowed)
                .or_else(|_| middle.check(&now, allowed))
        })?;
        progress::say(&format!(
            "    before {before:?}\n    after  {:?}",
            Leftovers::now(world)?
        ));
        ensure!(
            world.culvert.tunnels("edge-1")? == 2,
            "the tunnels are others"
        );
        world.check_greeting("edge-1", "edge-1")
    });
}

fn source(world: &World<'_>) -> Result<Process> {
    let site = world.lab.site(Host::Edge1);
    let mut command = site.command(xtask());
    let source = site.start_process(
        "source",
        command
            .args(["probe", "serve"])
            .arg(format!("{SOURCE}=source:{SOURCE_BYTES}")),
    )?;
    wait::until("the source listens", RECOVERY, || {
        source
            .log()
            .contains("ready")
            .then_some(())
            .context("not yet")
    })?;
    Ok(source)
}

/// How each kind of client reaches the node.
struct Targets {
    by_hooks: Vec<String>,
    by_packets: Vec<String>,
}

impl Targets {
    /// Hooks and CONNECT, equally often; and packets.
    fn of(world: &World<'_>) -> Result<Self> {
        let by_packets = swarm::by_address(world, EDGE)?;
        let connect = swarm::by_connect(&world.culvert.socket("connect.sock"), EDGE);
        let by_hooks = by_packets
            .iter()
            .cloned()
            .chain(std::iter::repeat_n(connect, by_packets.len()).flatten());
        Ok(Self {
            by_hooks: by_hooks.collect(),
            by_packets,
        })
    }
}

/// Makes that many connections, a third of them through each front end.
fn churn(world: &World<'_>, targets: &Targets, random: &mut Random, count: u64) -> Result<()> {
    let swarms = [
        (
            "hooks and CONNECT",
            Steered::ByHooks,
            &targets.by_hooks,
            count - count / 3,
        ),
        (
            "packets",
            Steered::ByPackets,
            &targets.by_packets,
            count / 3,
        ),
    ];
    let started = swarms.into_iter().map(|(name, steered, targets, count)| {
        let mut command = swarm::clients(world, steered);
        command.args([
            "churn",
            "--threads",
            "16",
            "--name",
            name,
            "--greet",
            &format!("{GREET},9100"),
        ]);
        command.args([
            "--source",
            &SOURCE.to_string(),
            "--source-bytes",
            &SOURCE_BYTES.to_string(),
        ]);
        command.args([
            "--seed",
            &random.number().to_string(),
            "--count",
            &count.to_string(),
        ]);
        Ok((HeldClient::spawn(command.args(targets))?, count))
    });
    for (client, count) in started.collect::<Result<Vec<_>>>()? {
        let said = client.line(Duration::from_secs(60 + count / SLOWEST_RATE))?;
        let found: Value = serde_json::from_str(&said)?;
        ensure!(
            found["failed"] == 0,
            "connections that were not to be aborted failed: {found}"
        );
        ensure!(
            found["whole"] == count.div_ceil(2),
            "{count} connections: {found}"
        );
        progress::say(&format!("    {found}"));
    }
    Ok(())
}

/// Fails unless each front end has finished its share.
fn check_front_ends(world: &World<'_>, count: u64) -> Result<()> {
    for frontend in ["ebpf", "nftables", "connect_socket"] {
        let name =
            format!("culvert_proxy_streams_total{{frontend=\"{frontend}\",outcome=\"finished\"}}");
        let finished = world.lab.site(Host::Cloud).metric(PROXY_ADMIN, &name)?;
        // Half of each third is aborted, and hooks and CONNECT are chosen at random.
        let enough = f64::from(u32::try_from(count / 8)?);
        ensure!(
            finished >= enough,
            "{frontend}: only {finished} of {count} finished"
        );
    }
    Ok(())
}

/// Everything that connections could leave behind.
#[derive(Debug)]
struct Leftovers {
    programs: [(&'static str, KernelResources, u64); 3],
    /// Destinations of handshakes that never ended.
    tuples: usize,
    /// Sockets of the cloud host. The kernel frees the entries of `cv_sockets` with their sockets,
    /// but cannot list them.
    cloud_sockets: u64,
    edge_sockets: u64,
    /// The counts of the proxy and the agent themselves.
    counted: [Counted; 2],
}

#[derive(Debug)]
struct Counted {
    streams: f64,
    tasks: f64,
}

impl Counted {
    fn now(site: &Site, port: u16, program: &str) -> Result<Self> {
        let metric = |name: &str| site.metric(port, &format!("culvert_{program}_{name}"));
        Ok(Self {
            streams: metric("active_streams")?,
            tasks: metric("tasks")?,
        })
    }
}

impl Leftovers {
    fn now(world: &mut World<'_>) -> Result<Self> {
        let look = |name, process: &Process| {
            anyhow::Ok((name, process.kernel_resources()?, process.resident()?))
        };
        let programs = [
            look("the proxy", &world.culvert.proxy)?,
            look("the redirector", &world.culvert.redirector)?,
            look("the agent", world.culvert.agent(0))?,
        ];
        let cloud = world.lab.site(Host::Cloud);
        let edge = world.lab.site(Host::Edge1);
        let dumped = cloud.output(
            "bpftool",
            [
                "-j",
                "map",
                "dump",
                "pinned",
                "/sys/fs/bpf/culvert/v1/maps/cv_tuples",
            ],
        )?;
        let dumped: Value = serde_json::from_str(&dumped).context("read cv_tuples")?;
        Ok(Self {
            programs,
            tuples: dumped.as_array().context("cv_tuples is not a list")?.len(),
            cloud_sockets: sockets(
                &cloud.output("cat", ["/proc/net/sockstat", "/proc/net/sockstat6"])?,
            )?,
            edge_sockets: sockets(
                &edge.output("cat", ["/proc/net/sockstat", "/proc/net/sockstat6"])?,
            )?,
            counted: [
                Counted::now(cloud, PROXY_ADMIN, "proxy")?,
                Counted::now(edge, AGENT_ADMIN, "agent")?,
            ],
        })
    }

    /// Fails if more is left now than before.
    fn check(&self, now: &Self, memory: u64) -> Result<()> {
        for ((name, resources, resident), (_, resources_now, resident_now)) in
            self.programs.iter().zip(&now.programs)
        {
            ensure!(
                resources_now.is_within(*resources),
                "{name} holds {resources_now:?}, before {resources:?}"
            );
            let grown = resident_now.saturating_sub(*resident);
            ensure!(
                grown <= memory,
                "{name} grew by {grown} bytes to {resident_now}, more than {memory}"
            );
        }
        ensure!(
            now.tuples <= self.tuples,
            "{} tuples, before {}",
            now.tuples,
            self.tuples
        );
        let sockets = (now.cloud_sockets, now.edge_sockets);
        ensure!(
            now.cloud_sockets <= self.cloud_sockets && now.edge_sockets <= self.edge_sockets,
            "sockets: {sockets:?}"
        );
        for (before, now) in self.counted.iter().zip(&now.counted) {
            ensure!(
                now.streams == 0.0 && now.tasks <= before.tasks,
                "{now:?}, before {before:?}"
            );
        }
        Ok(())
    }
}

/// TCP sockets in use, for both families, by `/proc/net/sockstat`.
fn sockets(sockstat: &str) -> Result<u64> {
    let lines = sockstat.lines().filter_map(|line| {
        line.strip_prefix("TCP: inuse ")
            .or(line.strip_prefix("TCP6: inuse "))
    });
    let counts = lines.map(|rest| rest.split(' ').next().unwrap_or_default().parse::<u64>());
    counts
        .sum::<Result<_, _>>()
        .with_context(|| sockstat.to_owned())
}
