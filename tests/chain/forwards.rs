//! Forwarded ports without a cluster: a stock ssh, clients that may not connect, and two proxies
//! after each other. Those of a cluster are tests of `kubernetes`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::sshd::Sshd;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::world::{self, ECHO, GREET, World};

const EDGE: &[Host] = &[Host::Edge1];
pub(crate) const SSH: u16 = 22;
/// The ports of the proxy.
const OWN_SSH: u16 = 2222;
const OWN_ECHO: u16 = 2223;
const OWN_GREET: u16 = 2224;

#[test]
fn ssh_logs_in_to_a_node_through_a_forwarded_port() {
    let mut options = forwarding("127.0.0.0/8");
    options.ports.push(SSH);
    world::with(EDGE, options, |world| {
        let edge = world.lab.site(Host::Edge1);
        let sshd = Sshd::make(edge.folder())?;
        sshd.make_known(&format!("[127.0.0.1]:{OWN_SSH}"))?;
        let _server = start_sshd(&sshd, edge)?;
        wait::until("ssh logs in", PATIENCE, || {
            let mut command = world.lab.site(Host::Cloud).command("ssh");
            let said = workspace::output(log_in(&sshd, &mut command).arg("hostname"))?;
            ensure!(said.trim() == "edge-1", "{said}");
            Ok(())
        })?;
        world.wait_proxy_log(
            "stream ended",
            &[("frontend", "forward"), ("original_dst", "edge-1:22")],
        )
    });
}

#[test]
fn a_client_of_another_range_is_reset() {
    world::with(EDGE, forwarding("192.0.2.0/24"), |world| {
        let error = world.talk(&own(OWN_ECHO), "hello");
        let error = error.err().context("it was let in")?.to_string();
        ensure!(error.contains("reset"), "{error}");
        world.wait_proxy_log(
            "connection to a forwarded port refused",
            &[("reason", "in no range of --forward-client")],
        )?;
        let name = "culvert_proxy_refused_clients_total{port=\"forward\"}";
        let refused = world.lab.site(Host::Cloud).metric(PROXY_ADMIN, name)?;
        ensure!(refused > 0.0, "{name} is {refused}");
        Ok(())
    });
}

#[test]
fn a_proxy_that_takes_the_place_of_another_goes_on_with_its_forwarded_ports() {
    world::with(EDGE, forwarding("127.0.0.0/8"), |world| {
        let mut held = world.hold(own(OWN_ECHO), 5)?;
        let mut old = world.culvert.succeed_proxy()?;
        wait::throughout("both run, or the new one", Duration::from_secs(4), || {
            world.culvert.proxy.check()?;
            check_greeting(world)
        })?;
        old.check().context("the old proxy has streams")?;
        held.check()?;
        drop(held);
        wait::until("the old proxy has ended", PATIENCE, || {
            ensure!(old.check().is_err(), "it runs");
            Ok(())
        })?;
        world.culvert.wait_for_proxy()?;
        check_greeting(world)
    });
}

fn check_greeting(world: &World<'_>) -> Result<()> {
    let said = world.talk(&own(OWN_GREET), "")?;
    ensure!(said == "hello from edge-1", "{said}");
    Ok(())
}

/// A port of the proxy, for clients on its host.
fn own(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Ports of edge-1 for clients of this range.
fn forwarding(clients: &str) -> Options {
    let mut args = vec!["--forward-client".to_owned(), clients.to_owned()];
    for (own, port) in [(OWN_SSH, SSH), (OWN_ECHO, ECHO), (OWN_GREET, GREET)] {
        args.extend(["--forward".to_owned(), format!("{own}=edge-1:{port}")]);
    }
    world::proxy_options(args)
}

/// Logs in as root at the proxy's port. The server's key is the only one that is trusted.
fn log_in<'a>(sshd: &Sshd, ssh: &'a mut Command) -> &'a mut Command {
    ssh.args(["-F", "none", "-p", &OWN_SSH.to_string(), "-i"])
        .arg(sshd.user_key())
        .args(["-o", "BatchMode=yes", "-o"])
        .arg(format!(
            "UserKnownHostsFile={}",
            sshd.known_hosts().display()
        ))
        .args(["-o", "ConnectTimeout=5", "root@127.0.0.1"])
}

/// Starts it on an edge node.
pub(crate) fn start_sshd(sshd: &Sshd, edge: &Site) -> Result<Process> {
    let mut unshare = edge.command("unshare");
    let server = sshd.serve(&mut unshare, &format!("Port {SSH}"))?;
    edge.start_process("sshd", server)
}
