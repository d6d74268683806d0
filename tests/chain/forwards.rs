//! Forwarded ports without a cluster: a stock ssh, clients that may not connect, and two proxies
//! after each other. Those of a cluster are tests of `kubernetes`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::world::{self, ECHO, GREET, World};

const EDGE: &[Host] = &[Host::Edge1];
pub(crate) const SSH: u16 = 22;
/// The ports of the proxy.
const OWN_SSH: u16 = 2222;
const OWN_ECHO: u16 = 2223;
const OWN_GREET: u16 = 2224;

/// Starts sshd as root: `$1` its program, `$2` its configuration, `$3` a file for the users. The
/// machine need not have the user and the folder of sshd's unprivileged child.
const START_SSHD: &str = r#"
  mkdir -p -m 755 /run/sshd
  echo 'sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin' | cat /etc/passwd - > "$3"
  mount --bind "$3" /etc/passwd
  exec "$1" -D -e -f "$2"
"#;

#[test]
fn ssh_logs_in_to_a_node_through_a_forwarded_port() {
    let mut options = forwarding("127.0.0.0/8");
    options.ports.push(SSH);
    world::with(EDGE, options, |world| {
        let edge = world.lab.site(Host::Edge1);
        let keys = Keys::make(edge)?;
        let _sshd = keys.start_sshd(edge)?;
        wait::until("ssh logs in", PATIENCE, || {
            let mut command = world.lab.site(Host::Cloud).command("ssh");
            let said = workspace::output(keys.log_in(&mut command).arg("hostname"))?;
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

/// The key of a user and that of a server.
pub(crate) struct Keys {
    pub(crate) user: PathBuf,
    server: PathBuf,
}

impl Keys {
    pub(crate) fn make(edge: &Site) -> Result<Self> {
        let [user, server] = ["user", "server"].map(|name| edge.file(name));
        for key in [&user, &server] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            workspace::output(command.arg(key))?;
        }
        Ok(Self { user, server })
    }

    pub(crate) fn start_sshd(&self, edge: &Site) -> Result<Process> {
        let configuration = edge.file("sshd_config");
        std::fs::write(
            &configuration,
            format!(
                "Port {SSH}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
                 PidFile none\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n",
                self.server.display(),
                public(&self.user).display()
            ),
        )?;
        let mut command = edge.command("unshare");
        command
            .args(["--mount", "sh", "-ec", START_SSHD, "sh"])
            .arg(Unpacked::SshServer.program())
            .arg(configuration)
            .arg(edge.file("passwd"))
            .env("LD_LIBRARY_PATH", Unpacked::SshServer.libraries());
        edge.start_process("sshd", &mut command)
    }

    /// The server's key, as a line about known hosts ends.
    pub(crate) fn server_line(&self) -> Result<String> {
        std::fs::read_to_string(public(&self.server)).context("the server's key")
    }

    /// Logs in as root at the proxy's port. The server's key is the only one that is trusted.
    fn log_in<'a>(&self, ssh: &'a mut Command) -> &'a mut Command {
        let known = self.server.with_extension("known");
        let line = self
            .server_line()
            .map(|key| format!("[127.0.0.1]:{OWN_SSH} {key}"));
        std::fs::write(&known, line.unwrap_or_default()).expect("the lab's folder can be written");
        ssh.args(["-F", "none", "-p", &OWN_SSH.to_string(), "-i"])
            .arg(&self.user)
            .args(["-o", "BatchMode=yes", "-o"])
            .arg(format!("UserKnownHostsFile={}", known.display()))
            .args(["-o", "ConnectTimeout=5", "root@127.0.0.1"])
    }
}

fn public(key: &Path) -> PathBuf {
    key.with_extension("pub")
}
