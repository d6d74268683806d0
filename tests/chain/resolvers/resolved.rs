//! Tests systemd-resolved on the cloud host. It has its own bus, and its own `/run` and `/etc` in a
//! mount namespace, so that nothing changes on the machine. There is no systemd: instead of
//! `systemctl restart`, the test restarts the program.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::REDIRECTOR_ADMIN;
use culvert_lab::dns::Resolver;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::{wait, workspace};

use super::{
    REDIRECTORS, Tally, UPSTREAM, check_foreign_names, check_vips, documented, with_upstream,
};
use crate::world::World;

/// Time for the program to start, on two busy cores.
const START_TIME: Duration = Duration::from_secs(60);

/// The stub resolver that programs use, through `/etc/resolv.conf` or directly.
const STUB: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);

/// Creates the folders and holds them. As on a host with systemd-resolved, `/etc/resolv.conf` is a
/// link to its file.
const HOLD: &str = r#"
mount -t tmpfs tmpfs /run
install -d /run/dbus /run/systemd /run/etc
cp -a /etc/. /run/etc
mount --bind /run/etc /etc
rm -rf /etc/systemd/resolved.conf /etc/systemd/resolved.conf.d
ln -sf /run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
echo systemd-resolve:x:990:990::/:/usr/sbin/nologin >> /etc/passwd
echo systemd-resolve:x:990: >> /etc/group
echo "$0" > /run/bus.conf
echo ready
exec sleep infinity
"#;

/// All calls are allowed, because only root is there.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
  </policy>
</busconfig>"#;

#[test]
fn systemd_resolved_asks_the_redirector_for_the_zone_and_believes_the_link_s_server_otherwise() {
    with_upstream(&[], |world, upstream| {
        let mut host = ResolvedHost::start(world)?;
        let said = host.follow(&documented("resolved.conf.d")?)?;
        for family in ["vip4", "vip6"] {
            let vip = world.vip(Host::Edge1, family)?.to_string();
            ensure!(said.contains(&vip), "resolvectl found no {vip}: {said}");
        }
        host.run(&format!("resolvectl dns wan {UPSTREAM}"))?;
        check_vips(world, &host.stub, &["edge-1.edge.internal"])?;
        let refused_before = refused(world)?;
        check_foreign_names(&host.stub)?;
        let refused = refused(world)? - refused_before;
        ensure!(
            refused >= 1000.0,
            "the redirector was asked for {refused} of 1000 foreign names"
        );
        let leaked = upstream.asked("edge.internal");
        ensure!(
            leaked.is_empty(),
            "the link's server was asked for names of the zone: {leaked:?}"
        );
        Ok(())
    });
}

#[test]
fn systemd_resolved_finds_bare_names_only_where_the_zone_is_a_search_domain() {
    with_upstream(&[], |world, _upstream| {
        let vip = world.vip(Host::Edge1, "vip4")?.to_string();
        let bare = "getent ahostsv4 edge-1";
        let block = documented("resolved.conf.d")?;
        let mut host = ResolvedHost::start(world)?;
        for (block, found) in [
            (block.clone(), false),
            (block.replace("Domains=~", "Domains="), true),
        ] {
            host.follow(&block)?;
            let whole = host.run("getent ahostsv4 edge-1.edge.internal")?;
            ensure!(
                whole.contains(&vip),
                "the C library found no {vip}: {whole}"
            );
            let said = host.run(bare).unwrap_or_default();
            ensure!(
                said.contains(&vip) == found,
                "{bare}: {said:?} with\n{block}"
            );
        }
        Ok(())
    });
}

#[test]
fn systemd_resolved_refuses_other_names_where_no_link_has_a_server_and_lists_the_redirector_for_pods()
 {
    with_upstream(&[], |world, _upstream| {
        let mut host = ResolvedHost::start(world)?;
        host.follow(&documented("resolved.conf.d")?)?;
        let tally = Tally::of(&host.stub)?;
        ensure!(
            tally == Tally::ALL_REFUSED,
            "of 1000 foreign names: {tally:?}"
        );
        let for_pods = host.run("cat /run/systemd/resolve/resolv.conf")?;
        ensure!(
            for_pods.contains(&format!("nameserver {}\n", REDIRECTORS[0])),
            "{for_pods}"
        );
        Ok(())
    });
}

fn refused(world: &World<'_>) -> Result<f64> {
    let answers = "culvert_redirector_dns_answers_total{code=\"refused\"}";
    world
        .lab
        .site(Host::Cloud)
        .metric(REDIRECTOR_ADMIN, answers)
}

/// The cloud host, as if systemd-resolved were installed. Dropping it ends everything that it
/// started.
struct ResolvedHost<'lab> {
    site: &'lab Site,
    stub: Resolver,
    resolved: Option<Process>,
    _bus: Process,
    /// The process that holds the folders.
    holder: Process,
}

impl<'lab> ResolvedHost<'lab> {
    fn start(world: &World<'lab>) -> Result<Self> {
        let site = world.lab.site(Host::Cloud);
        let mut holder = site.start_process(
            "folders",
            site.command("unshare")
                .args(["--mount", "sh", "-ec", HOLD, BUS]),
        )?;
        wait::until(
            "folders of a host with systemd-resolved",
            START_TIME,
            || {
                holder.check()?;
                holder
                    .log()
                    .contains("ready")
                    .then_some(())
                    .context("not yet")
            },
        )?;
        let mut command = inside(site, &holder, "dbus-daemon");
        let mut bus = site.start_process(
            "bus",
            command.args(["--config-file=/run/bus.conf", "--nofork"]),
        )?;
        wait::until("the bus", START_TIME, || {
            bus.check()?;
            workspace::output(
                inside(site, &holder, "test").args(["-S", "/run/dbus/system_bus_socket"]),
            )
            .map(drop)
        })?;
        let stub = Resolver::seen_from(site.netns(), STUB.into());
        Ok(Self {
            site,
            stub,
            resolved: None,
            _bus: bus,
            holder,
        })
    }

    /// Runs the commands that a document gives to root; returns the output of the last one.
    fn follow(&mut self, block: &str) -> Result<String> {
        let mut said = String::new();
        for line in block.lines().filter(|line| !line.is_empty()) {
            said = match line.strip_prefix("# ") {
                Some("systemctl restart systemd-resolved") => self.restart()?,
                Some(command) => self.run(command)?,
                None => bail!("no command of root's: {line}"),
            };
        }
        Ok(said)
    }

    fn restart(&mut self) -> Result<String> {
        drop(self.resolved.take());
        let mut command = inside(self.site, &self.holder, Unpacked::SystemdResolved.program());
        let mut resolved = self.site.start_process("systemd-resolved", &mut command)?;
        wait::until("systemd-resolved is on the bus", START_TIME, || {
            resolved.check()?;
            self.run("resolvectl status")
        })
        .inspect(|_status| self.resolved = Some(resolved))
    }

    /// The output of a shell command that runs as root.
    fn run(&self, line: &str) -> Result<String> {
        workspace::output(inside(self.site, &self.holder, "sh").args(["-c", line]))
    }
}

/// A command that sees the host's folders, with the programs of the package.
fn inside(site: &Site, holder: &Process, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let package = Unpacked::SystemdResolved;
    let mut command = site.command("nsenter");
    command.args(["-t", &holder.pid().to_string(), "--mount", "--", "env"]);
    let path = std::env::var("PATH").unwrap_or_default();
    command.arg(format!(
        "PATH={}:{path}",
        package.folder().join("usr/bin").display()
    ));
    command.arg(format!("LD_LIBRARY_PATH={}", package.libraries()));
    command.arg(program);
    command
}
