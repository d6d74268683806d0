//! Rootless containers on a cloud host, by the two programs that Podman and Docker connect them with.
//! What the container dials, that program dials again as a process of the host.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client, Failure, Report};
use culvert_lab::process::Process;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};

use crate::world::{self, GREET, World, xtask};

const EDGE: &[Host] = &[Host::Edge1];

/// A container's network, and what connects it.
struct Container {
    holder: Process,
    _network: Process,
}

impl Container {
    fn start(world: &World<'_>, network: Unpacked) -> Result<Self> {
        let cloud = world.lab.site(Host::Cloud);
        let mut command = cloud.command("unshare");
        command.args(["--user", "--map-root-user", "--net", "sleep", "infinity"]);
        let holder = cloud.start_process("container", &mut command)?;
        let pid = holder.pid().to_string();
        wait::until("the container has a network of its own", PATIENCE, || {
            let program = std::fs::read_to_string(format!("/proc/{pid}/comm"))?;
            ensure!(program.trim() == "sleep", "{program}");
            Ok(())
        })?;
        let mut command = cloud.command(network.program());
        command.env("LD_LIBRARY_PATH", network.libraries());
        if matches!(network, Unpacked::Passt) {
            // As root it would become `nobody`, who may not join the container.
            command.args(["--config-net", "--foreground", "--runas", "0:0", &pid]);
        } else {
            command.args(["--configure", "--mtu=65520", &pid, "tap0"]);
        }
        let network = cloud.start_process("container-network", &mut command)?;
        let container = Self {
            holder,
            _network: network,
        };
        wait::until("the container has a way out", PATIENCE, || {
            let routes = container.command(world, "ip").arg("route").output()?;
            let routes = String::from_utf8(routes.stdout)?;
            ensure!(routes.contains("default"), "{routes}");
            Ok(())
        })?;
        Ok(container)
    }

    fn command(&self, world: &World<'_>, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let pid = self.holder.pid().to_string();
        let mut command = world.lab.site(Host::Cloud).command("nsenter");
        command.args(["--target", &pid, "--user", "--net"]);
        command.arg(program);
        command
    }

    fn greeting(&self, world: &World<'_>, host: &str) -> Result<Report> {
        let mut command = self.command(world, "timeout");
        command.arg("20").arg(xtask());
        let greet = Client::listen(format!("{host}:{GREET}"));
        world::report(greet.complete(&mut command)?)
    }
}

#[test]
fn rootless_containers_reach_edge_nodes_by_address_and_vip() {
    world::with(EDGE, Options::default(), |world| {
        let vip = world.vip(Host::Edge1, "vip4")?.to_string();
        for network in [Unpacked::Slirp4netns, Unpacked::Passt] {
            let container = Container::start(world, network)?;
            for host in ["10.0.3.7", &vip] {
                let greeting = container.greeting(world, host);
                let greeting = greeting.with_context(|| format!("{network:?}, {host}"))?;
                ensure!(
                    greeting == Report::Answer("hello from edge-1".to_owned()),
                    "{network:?}, {host}: {greeting:?}"
                );
            }
        }
        Ok(())
    });
}

/// The hook acts in the container, where the address that it steers to means something else.
#[test]
fn with_hooks_for_all_rootless_containers_are_refused_at_once_and_the_log_names_the_flag() {
    let options = Options {
        redirector: ["--hooks", "all"].map(str::to_owned).into(),
        ..Options::default()
    };
    world::with(EDGE, options, |world| {
        for network in [Unpacked::Slirp4netns, Unpacked::Passt] {
            let container = Container::start(world, network)?;
            let refused = container.greeting(world, "10.0.3.7");
            let refused = refused.err().context("it went through")?;
            let refused: Failure = refused.downcast()?;
            ensure!(
                [Cause::Refused, Cause::Reset].contains(&refused.cause),
                "{network:?}: {refused}"
            );
        }
        let log = world.culvert.proxy.log();
        ensure!(log.contains("--hooks host on the redirector"), "{log}");
        Ok(())
    });
}
