//! Debian's firewalld on the cloud host, with a bus of its own.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::world::World;

/// All calls are allowed, because only root is there.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=SOCKET</listen>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
  </policy>
</busconfig>"#;

/// The Python of Debian, for which its modules are made.
const PYTHON: &str = "/usr/bin/python3";

/// While it exists, firewalld runs with Debian's settings.
pub(super) struct Firewalld<'lab> {
    site: &'lab Site,
    bus: PathBuf,
    _processes: [Process; 2],
}

impl<'lab> Firewalld<'lab> {
    /// Starts it, and waits for its table.
    pub(super) fn start(world: &World<'lab>) -> Result<Self> {
        let site = world.lab.site(Host::Cloud);
        let bus = site.file("bus");
        let config = site.file("bus.conf");
        std::fs::write(&config, BUS.replace("SOCKET", &bus.display().to_string()))?;
        let mut daemon = site.command("dbus-daemon");
        daemon
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--nopidfile"]);
        let daemon = site.start_process("bus", &mut daemon)?;
        wait::until("the bus", PATIENCE, || {
            ensure!(bus.exists(), "no socket yet");
            Ok(())
        })?;
        let settings = site.file("firewalld");
        let folder = Unpacked::Firewalld.folder();
        let mut copy = Command::new("cp");
        copy.arg("-a")
            .arg(folder.join("etc/firewalld"))
            .arg(&settings);
        workspace::output(&mut copy)?;
        let mut program = python(site, &bus, "usr/sbin/firewalld");
        program
            .args(["--nofork", "--nopid", "--system-config"])
            .arg(&settings)
            .arg("--default-config")
            .arg(folder.join("usr/lib/firewalld"));
        let program = site.start_process("firewalld", &mut program)?;
        let started = Self {
            site,
            bus,
            _processes: [daemon, program],
        };
        wait::until("firewalld runs", PATIENCE, || {
            started.command(&["--state"])?;
            site.output("nft", ["list", "table", "inet", "firewalld"])
                .map(drop)
        })?;
        Ok(started)
    }

    /// Runs `firewall-cmd`.
    pub(super) fn command(&self, arguments: &[&str]) -> Result<()> {
        let mut command = python(self.site, &self.bus, "usr/bin/firewall-cmd");
        workspace::output(command.args(arguments)).map(drop)
    }
}

/// A program of the package.
fn python(site: &Site, bus: &std::path::Path, program: &str) -> Command {
    let folder = Unpacked::Firewalld.folder();
    let libraries = Unpacked::Firewalld.libraries();
    let mut command = site.command(PYTHON);
    command
        .arg(folder.join(program))
        .env("PYTHONPATH", folder.join("usr/lib/python3/dist-packages"))
        .env("GI_TYPELIB_PATH", typelibs(&libraries))
        .env("LD_LIBRARY_PATH", libraries)
        .env(
            "DBUS_SYSTEM_BUS_ADDRESS",
            format!("unix:path={}", bus.display()),
        );
    command
}

fn typelibs(libraries: &str) -> String {
    let folders: Vec<String> = libraries
        .split(':')
        .map(|folder| format!("{folder}/girepository-1.0"))
        .collect();
    folders.join(":")
}
