//! Programs and links that end, break or come back late, and everything else continues.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Options};
use culvert_lab::cut::Cut;
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client, Phase};
use culvert_lab::process::{KernelResources, Process};
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;
use nix::sys::signal::Signal;

use crate::world::{self, ECHO, FORBIDDEN, HASTY, SMALL_SOURCE, World};

const EDGE: &[Host] = &[Host::Edge1];

#[test]
fn a_killed_proxy_comes_back_with_the_same_nodes_and_agents_return() {
    world::with(EDGE, Options::default(), |world| {
        let vips = (
            world.vip(Host::Edge1, "vip4")?,
            world.vip(Host::Edge1, "vip6")?,
        );
        world.greeting("edge-1")?;
        let agent = world.culvert.agent(0).kernel_resources()?;
        let redirector = world.culvert.redirector.kernel_resources()?;
        world.culvert.proxy.kill()?;
        let refused = world.failing_client(&Client::talk(format!("edge-1:{ECHO}"), "x"))?;
        ensure!(
            refused.cause == Cause::Refused,
            "while the proxy is away: {refused}"
        );
        world.culvert.restart_proxy()?;
        world.wait_greeting("edge-1", PATIENCE)?;
        world.wait_greeting("10.0.3.7", PATIENCE)?;
        let now = (
            world.vip(Host::Edge1, "vip4")?,
            world.vip(Host::Edge1, "vip6")?,
        );
        ensure!(now == vips, "VIPs: {now:?}, before {vips:?}");
        wait_within("the agent", world.culvert.agent(0), agent)?;
        wait_within("the redirector", &world.culvert.redirector, redirector)
    });
}

#[test]
fn every_program_reports_to_systemd_that_it_is_ready() {
    let cloud = Systemd::listen("cloud").expect("a socket");
    let edge = Systemd::listen("edge").expect("a socket");
    let options = Options {
        cloud_env: cloud.environment(),
        agent_env: edge.environment(),
        ..Options::default()
    };
    world::with(EDGE, options, |_world| {
        // Proxy and redirector share a socket here.
        cloud.hear("READY=1")?;
        cloud.hear("READY=1")?;
        cloud.hear("WATCHDOG=1")?;
        edge.hear("READY=1")?;
        edge.hear("STATUS=ready")?;
        edge.hear("WATCHDOG=1")
    });
}

/// systemd's end of `NOTIFY_SOCKET`.
struct Systemd {
    socket: UnixDatagram,
    name: String,
}

impl Systemd {
    fn listen(who: &str) -> Result<Self> {
        let path =
            std::env::temp_dir().join(format!("culvert-notify-{who}-{}", std::process::id()));
        let socket = UnixDatagram::bind(&path).context("bind")?;
        socket
            .set_read_timeout(Some(PATIENCE))
            .context("set the time-out")?;
        Ok(Self {
            socket,
            name: path.display().to_string(),
        })
    }

    fn environment(&self) -> Vec<(String, String)> {
        vec![
            ("NOTIFY_SOCKET".into(), self.name.clone()),
            ("WATCHDOG_USEC".into(), "60000000".into()),
        ]
    }

    /// Waits for a report, and skips others.
    fn hear(&self, wanted: &str) -> Result<()> {
        let mut message = [0; 1024];
        loop {
            let length = self
                .socket
                .recv(&mut message)
                .with_context(|| format!("wait for {wanted}"))?;
            if &message[..length] == wanted.as_bytes() {
                return Ok(());
            }
        }
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // A leftover file does not affect the result.
        let _gone = std::fs::remove_file(&self.name);
    }
}

#[test]
fn a_killed_agent_comes_back_and_the_proxy_leaks_nothing() {
    world::with(EDGE, Options::default(), |world| {
        let held = world.hold(format!("edge-1:{ECHO}"), 20)?;
        drop(held);
        world.wait_for_no_streams()?;
        let proxy = world.culvert.proxy.kernel_resources()?;
        let _held = world.hold(format!("edge-1:{ECHO}"), 20)?;
        world.culvert.agent(0).kill()?;
        world.culvert.wait_offline(Host::Edge1, PATIENCE)?;
        world.culvert.start_agent(Host::Edge1)?;
        world.culvert.wait_online(Host::Edge1)?;
        world.wait_greeting("edge-1", PATIENCE)?;
        world.wait_for_no_streams()?;
        wait_within("the proxy", &world.culvert.proxy, proxy)
    });
}

/// Waits until a program holds no more than before.
pub(crate) fn wait_within(who: &str, process: &Process, before: KernelResources) -> Result<()> {
    wait::until(
        &format!("{who} holds no more than before"),
        PATIENCE,
        || {
            let now = process.kernel_resources()?;
            ensure!(now.is_within(before), "{now:?}, before {before:?}");
            Ok(())
        },
    )
}

#[test]
fn traffic_goes_on_while_the_redirector_is_dead_and_the_next_one_takes_over_the_pins() {
    world::with(EDGE, Options::default(), |world| {
        world.greeting("10.0.3.7")?;
        let before = pins(world)?;
        let proxy = world.culvert.proxy.kernel_resources()?;
        world.culvert.redirector.kill()?;
        // Names need the redirector's DNS server; addresses need only the kernel.
        world.check_greeting("10.0.3.7", "edge-1")?;
        world.culvert.restart_redirector()?;
        world.culvert.wait_for_redirector()?;
        ensure!(pins(world)? == before, "pins differ after the restart");
        world.check_greeting("edge-1", "edge-1")?;
        wait_within("the proxy", &world.culvert.proxy, proxy)
    });
}

#[test]
fn after_a_reboot_the_last_directory_steers_before_the_proxy_is_there() {
    world::with(EDGE, Options::default(), |world| {
        world.culvert.proxy.kill()?;
        world.culvert.redirector.kill()?;
        // Removes what a reboot removes; the state directory stays.
        let cloud = world.lab.site(Host::Cloud);
        cloud.output("rm", ["-r", "/sys/fs/bpf/culvert"])?;
        cloud.output("nft", ["delete", "table", "inet", "culvert"])?;
        world.culvert.restart_redirector()?;
        wait::until("the kernel steers again", PATIENCE, || {
            cloud
                .output("test", ["-e", "/sys/fs/bpf/culvert/v1/links/cv_connect4"])
                .map(drop)
        })?;
        for host in ["10.0.3.7", "edge-1"] {
            // Names work a moment later.
            wait::until("the proxy's port refuses", PATIENCE, || {
                let refused = world.failing_client(&Client::talk(format!("{host}:{ECHO}"), "x"))?;
                ensure!(
                    refused.is(Phase::Connect, Cause::Refused),
                    "{host}: {refused}"
                );
                Ok(())
            })?;
        }
        world.culvert.restart_proxy()?;
        world.wait_greeting("edge-1", PATIENCE)
    });
}

fn pins(world: &World<'_>) -> Result<String> {
    let found = world
        .lab
        .site(Host::Cloud)
        .output("find", ["/sys/fs/bpf/culvert", "-type", "f"])?;
    let mut pins: Vec<&str> = found.lines().collect();
    pins.sort_unstable();
    Ok(pins.join("\n"))
}

#[test]
fn ended_connections_leave_no_file_thread_or_stream_behind() {
    world::with(EDGE, Options::default(), |world| {
        // One run before the measurement fills pools and caches.
        every_kind_of_end(world)?;
        world.wait_for_no_streams()?;
        let proxy = world.culvert.proxy.kernel_resources()?;
        let agent = world.culvert.agent(0).kernel_resources()?;
        every_kind_of_end(world)?;
        world.wait_for_no_streams()?;
        wait_within("the proxy", &world.culvert.proxy, proxy)?;
        wait_within("the agent", world.culvert.agent(0), agent)
    });
}

/// A hundred connections that are used and dropped, and some that are answered early, refused,
/// forbidden, or cancelled.
fn every_kind_of_end(world: &mut World<'_>) -> Result<()> {
    let before = (
        world.culvert.proxy.kernel_resources()?,
        world.culvert.agent(0).kernel_resources()?,
    );
    let mut held = world.hold(format!("edge-1:{ECHO}"), 100)?;
    held.check()?;
    let now = (
        world.culvert.proxy.kernel_resources()?,
        world.culvert.agent(0).kernel_resources()?,
    );
    let proxy = now.0.files - before.0.files;
    let agent = now.1.files - before.1.files;
    ensure!(
        proxy >= 90 && agent >= 90,
        "a hundred connections are {proxy} and {agent} files"
    );
    drop(held);
    for port in [10255, FORBIDDEN] {
        let answered =
            world.count_answered(&format!("edge-1:{port}"), 50, Duration::from_millis(1_000))?;
        ensure!(answered == 0, "{port}: {answered}");
    }
    world.count_answered(
        &format!("edge-1:{SMALL_SOURCE}"),
        50,
        Duration::from_millis(1_000),
    )?;
    world.client(&Client::Overrun {
        target: format!("edge-1:{HASTY}"),
        bytes: 8_388_608,
    })?;
    Ok(())
}

#[test]
fn a_cut_of_five_seconds_is_survived_by_the_same_tunnels() {
    world::with(EDGE, Options::default(), |world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 1)?;
        let cut = Cut::of(world.lab, Host::Edge1)?;
        wait::throughout("the cut lasts", Duration::from_secs(5), || Ok(()))?;
        drop(cut);
        held.check()
    });
}

#[test]
fn a_cut_of_thirty_seconds_is_noticed_and_recovered_from() {
    world::with(EDGE, Options::default(), |world| {
        let cut = Cut::of(world.lab, Host::Edge1)?;
        world.culvert.wait_offline(Host::Edge1, PATIENCE)?;
        // The agent's packets were lost from the same moment.
        world.wait_missing(Host::Edge1, AGENT_ADMIN, "tunnel: ")?;
        wait::throughout("the cut lasts", Duration::from_secs(10), || Ok(()))?;
        drop(cut);
        world.wait_greeting("edge-1", PATIENCE)
    });
}

#[test]
fn an_old_tunnel_that_ends_late_unregisters_nothing() {
    world::with(
        EDGE,
        Options {
            agent: world::one_tunnel(),
            ..Options::default()
        },
        |world| {
            // The first agent is stopped, and its connection stays up. A second agent of the same
            // node takes its place.
            world.culvert.agent(0).signal(Signal::SIGSTOP)?;
            let site = world.lab.site(Host::Edge1);
            let mut command = site.command(workspace::binary("culvert-agent"));
            command.arg("--state-dir").arg(site.file("agent")).args([
                "--admin-listen",
                "127.0.0.1:7430",
                "--tunnels",
                "1",
            ]);
            for port in [ECHO, world::GREET] {
                command.args(["--port", &port.to_string()]);
            }
            let _second = site.start_process("second-agent", &mut command)?;
            wait::until("the second agent is ready", PATIENCE, || {
                site.http_get(7430, "/readyz").map(drop)
            })?;
            world.wait_greeting("edge-1", PATIENCE)?;
            world.culvert.agent(0).kill()?;
            wait::throughout("the node stays online", Duration::from_secs(3), || {
                ensure!(world.culvert.tunnels("edge-1")? > 0, "it has no tunnel");
                world.greeting("edge-1").map(drop)
            })
        },
    );
}

#[test]
fn an_agent_told_to_end_lets_its_streams_end_first() {
    world::with(EDGE, Options::default(), |world| {
        world.wait_greeting("10.0.3.7", PATIENCE)?;
        let mut held = world.hold(format!("edge-1:{ECHO}"), 1)?;
        world.culvert.agent(0).signal(Signal::SIGTERM)?;
        wait::until("the agent takes no new streams", PATIENCE, || {
            world
                .failing_client(&Client::talk(format!("10.0.3.7:{ECHO}"), "x"))
                .map(drop)
        })?;
        held.check()?;
        drop(held);
        wait::until("the agent has ended", PATIENCE, || {
            match world.culvert.agent(0).check() {
                Ok(()) => anyhow::bail!("it runs on"),
                Err(_) => Ok(()),
            }
        })
    });
}
