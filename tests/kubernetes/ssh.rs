//! A stock ssh and scp of a user with a token alone, by the lines of `culvert ssh-config --view`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::ports::free_address;
use culvert_lab::process::{Process, bound};
use culvert_lab::sshd::Sshd;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::{skip, wait, workspace};

use crate::cluster::{DEADLINE, with_server};
use crate::connect::World;
use crate::view::site::{Account, Role, Running};

/// More than all buffers on the way have.
const FILE_BYTES: u32 = 20 << 20;
/// So slow that a copy lasts as long as the test, in kbit/s.
const SLOW: &str = "800";

#[test]
fn ssh_and_scp_come_to_a_node_by_the_view_and_an_interrupt_leaves_nothing() {
    if !workspace::is_root() || !Unpacked::SshServer.is_there() {
        skip::skip("an sshd needs root and `cargo xtask setup`");
        return;
    }
    with_server(|server| {
        let laptop = Laptop::start(server)?;
        wait::until("ssh logs in", DEADLINE, || {
            let mut ssh = laptop.client("ssh")?;
            let said = workspace::output(ssh.args(["edge-1", "echo", "in"]))?;
            ensure!(said.trim() == "in", "{said}");
            Ok(())
        })?;
        let mut ssh = laptop.client("ssh")?;
        let status = ssh.args(["edge-1", "exit 7"]).status()?;
        ensure!(status.code() == Some(7), "{status}");
        laptop.copy_there_and_back()?;
        let user = "user system:serviceaccount:culvert-system:ada";
        let ended = [("frontend", "view"), ("client.addr", user)];
        let proxy = &laptop.world.site.proxy.process;
        proxy.wait_logged("stream ended", &ended, DEADLINE)?;
        laptop.world.wait_for_no_stream()?;

        let mut ssh = laptop.client("ssh")?;
        laptop.interrupt(ssh.args(["edge-1", "cat"]))?;
        let mut scp = laptop.client("scp")?;
        scp.args(["-l", SLOW]).arg(laptop.file("sent"));
        laptop.interrupt(scp.arg(laptop.remote("never")))
    });
}

/// A user's computer, and an sshd on edge-1.
struct Laptop {
    world: World,
    folder: PathBuf,
    configuration: PathBuf,
    _server: Process,
}

impl Laptop {
    fn start(server: &ApiServer) -> Result<Self> {
        let folder = server.folder().join("laptop");
        fs::create_dir_all(&folder)?;
        let sshd = Sshd::make(&folder)?;
        let address = free_address()?;
        let mut unshare = bound(Path::new("unshare"));
        let listen = format!("ListenAddress {address}");
        let running = sshd.serve(&mut unshare, &listen)?;
        let running = Process::start("sshd", server.folder(), running)?;
        let world = World::start_with(server, address.port(), &[])?;
        let ada = world.site.account(server, "ada", Role::Connect)?;
        let configuration = write_configuration(&ada, &folder, &sshd, address.port())?;
        Ok(Self {
            world,
            folder,
            configuration,
            _server: running,
        })
    }

    /// A program of OpenSSH, which finds `culvert` in its PATH.
    fn client(&self, program: &str) -> Result<Command> {
        let culvert = workspace::binary("culvert");
        let mut command = Command::new(program);
        command
            .env("PATH", workspace::path_with_folder_of(&culvert)?)
            .arg("-F")
            .arg(&self.configuration);
        Ok(command)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn remote(&self, name: &str) -> String {
        format!("edge-1:{}", self.file(name).display())
    }

    fn copy_there_and_back(&self) -> Result<()> {
        let mut bytes = Vec::new();
        for number in 0..FILE_BYTES / 4 {
            bytes.extend(number.wrapping_mul(0x9e37_79b9).to_le_bytes());
        }
        fs::write(self.file("sent"), &bytes)?;
        let mut scp = self.client("scp")?;
        workspace::output(scp.arg(self.file("sent")).arg(self.remote("there")))?;
        ensure!(fs::read(self.file("there"))? == bytes, "other bytes there");
        let mut scp = self.client("scp")?;
        workspace::output(scp.arg(self.remote("there")).arg(self.file("back")))?;
        ensure!(fs::read(self.file("back"))? == bytes, "other bytes back");
        Ok(())
    }

    /// Starts a command as a terminal does, waits until it has a connection, and types ^C.
    fn interrupt(&self, command: &mut Command) -> Result<()> {
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut running = Running(command.process_group(0).spawn()?);
        wait::until("it has a connection with bytes", DEADLINE, || {
            ensure!(running.is_running(), "it has ended");
            let streams = self.world.streams()?;
            let [stream] = streams.as_slice() else {
                bail!("{streams:?}");
            };
            // After the keys of both.
            let bytes = stream["bytes_to_client"].as_u64();
            ensure!(bytes.is_some_and(|bytes| bytes > 2_000), "{stream}");
            Ok(())
        })?;
        let group = format!("-{}", running.0.id());
        workspace::output(Command::new("kill").args(["-INT", "--", &group]))?;
        wait::until("no process of it is left", DEADLINE, || {
            ensure!(!running.is_running(), "it runs");
            let mut probe = Command::new("kill");
            let is_left = probe.args(["-0", "--", &group]).output()?.status.success();
            ensure!(!is_left, "its children run");
            Ok(())
        })?;
        self.world.wait_for_no_stream()
    }
}

/// What `culvert ssh-config` prints, and below it the keys.
fn write_configuration(user: &Account, folder: &Path, sshd: &Sshd, port: u16) -> Result<PathBuf> {
    let words = ["ssh-config", "--view", "--timeout", "30s"];
    let mut lines = workspace::output(&mut user.command(&words))?;
    ensure!(lines.starts_with("Host edge-1 edge-2\n"), "{lines}");
    sshd.make_known(&format!("[edge-1]:{port}"))?;
    lines += &format!(
        "Host *\n  User root\n  Port {port}\n  BatchMode yes\n  IdentityFile {}\n  UserKnownHostsFile {}\n",
        sshd.user_key().display(),
        sshd.known_hosts().display()
    );
    let file = folder.join("ssh_config");
    fs::write(&file, lines).context("write ssh's configuration")?;
    Ok(file)
}
