//! Runs the real binary.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::world::{NODE4, NODE6, World, eventually};

/// Flags of a redirector with one mechanism, or both, and without DNS.
pub(crate) const EBPF: [&str; 4] = ["--mechanism", "ebpf", "--dns-listen", "none"];
pub(crate) const NFTABLES: [&str; 4] = ["--mechanism", "nftables", "--dns-listen", "none"];
pub(crate) const BOTH: [&str; 4] = ["--mechanism", "both", "--dns-listen", "none"];

const ADMIN: &str = "127.0.0.1:7419";

/// A running redirector. Dropping it kills it, which leaves what it installed.
pub(crate) struct Redirector {
    child: Child,
}

impl Redirector {
    /// Starts it and waits until it is ready and has saved its directory, which takes a moment
    /// longer.
    pub(crate) fn start(world: &World, flags: &[&str]) -> Self {
        let redirector = Self::start_unready(world, flags);
        redirector.until_ready();
        eventually("the directory is saved", || {
            saved_directory(world).exists().then_some(())
        });
        redirector
    }

    /// Starts it and waits only for its admin server.
    pub(crate) fn start_unready(world: &World, flags: &[&str]) -> Self {
        Self::spawn(&mut daemon(world, flags))
    }

    /// Starts a command line of [`daemon`].
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let child = command.spawn().unwrap();
        let redirector = Self { child };
        eventually("the redirector listens", || get("/livez"));
        redirector
    }

    /// Waits until it is ready.
    pub(crate) fn until_ready(&self) {
        eventually("the redirector is ready", || {
            get("/readyz").filter(|answer| answer.contains("\r\n\r\nok\n"))
        });
    }

    /// Whether it has hooks attached: a link that it pins or holds open. Asking the root cgroup
    /// would find those of other redirectors of this machine too.
    pub(crate) fn has_hooks(&self, world: &World) -> bool {
        let pins = world.bpffs().join("culvert/v1/links");
        if pins.exists() && pins.read_dir().unwrap().next().is_some() {
            return true;
        }
        let files = PathBuf::from(format!("/proc/{}/fd", self.child.id()));
        for file in files.read_dir().unwrap() {
            // A file that has been closed since names nothing.
            if let Ok(name) = file.unwrap().path().read_link()
                && name == Path::new("anon_inode:bpf_link")
            {
                return true;
            }
        }
        false
    }

    /// Ends it with SIGTERM; returns its exit status.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    /// Waits until it fails by itself. Returns its standard error if that is a pipe.
    pub(crate) fn until_the_end(mut self) -> String {
        let status = eventually("the redirector ends", || self.child.try_wait().unwrap());
        assert!(!status.success());
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        said
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Redirector {
    fn drop(&mut self) {
        // It may have been killed already.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// The file in which a redirector saves its directory.
pub(crate) fn saved_directory(world: &World) -> PathBuf {
    world.state_dir().join("directory.json")
}

/// The daemon's command line. The usual settings are environment variables, so that `flags`
/// override them.
pub(crate) fn daemon(world: &World, flags: &[&str]) -> Command {
    let mut command = subcommand(world, flags);
    command
        .env("CULVERT_NODE_IP", format!("{NODE4},{NODE6}"))
        .env("CULVERT_INTERCEPT_PORTS", "7410,7411")
        .env("CULVERT_CGROUP", world.cgroup())
        .env("CULVERT_DIRECTORY_SOCKET", world.directory_socket())
        .env("CULVERT_LOG", "warn");
    command
}

/// The same in a cgroup namespace of its own, where the world's cgroup is the root.
pub(crate) fn contained(daemon: &Command) -> Command {
    let mut contained = Command::new("unshare");
    contained.args(["--cgroup", "--mount", "sh", "-c"]).arg(
        "umount -lR /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$0\" \"$@\"",
    );
    contained.arg(daemon.get_program()).args(daemon.get_args());
    for (name, value) in daemon.get_envs() {
        contained.env(name, value.unwrap_or_default());
    }
    contained
}

/// The output of a daemon that ends by itself.
pub(crate) fn run_to_the_end(command: &mut Command) -> Output {
    let mut child = command
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the redirector ends", || child.try_wait().unwrap());
    child.wait_with_output().unwrap()
}

fn subcommand(world: &World, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_culvert-redirector"));
    command
        .args(arguments)
        .arg("--bpffs")
        .arg(world.bpffs())
        .arg("--state-dir")
        .arg(world.state_dir());
    command
}

/// Runs a subcommand, which must succeed; returns its output.
#[track_caller]
pub(crate) fn run(world: &World, arguments: &[&str]) -> String {
    let output = subcommand(world, arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The whole answer of the admin server.
pub(crate) fn get(path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(ADMIN).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The mechanism in force, by `/metrics`.
#[track_caller]
pub(crate) fn mechanism() -> String {
    let metrics = get("/metrics").unwrap();
    let mut lines = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("culvert_redirector_mechanism{mechanism=\""));
    lines
        .find_map(|line| line.strip_suffix("\"} 1"))
        .unwrap()
        .to_owned()
}

/// `/debug/installed`.
#[track_caller]
pub(crate) fn installed() -> serde_json::Value {
    let answer = get("/debug/installed").unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// The kernel programs' count for a reason.
#[track_caller]
pub(crate) fn counted(reason: &str) -> u64 {
    let metrics = get("/metrics").unwrap();
    let name = format!("culvert_redirector_kernel_connections_total{{reason=\"{reason}\"}} ");
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(&name))
        .unwrap()
        .parse()
        .unwrap()
}

/// The ids of the pinned links, by `/debug/hooks`.
pub(crate) fn link_ids() -> Vec<u64> {
    let answer = get("/debug/hooks").unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let view: serde_json::Value = serde_json::from_str(body).unwrap();
    view["hooks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hook| hook["link"].as_u64().unwrap())
        .collect()
}

/// A subcommand with another state directory.
pub(crate) fn elsewhere(world: &World, subcommand: &str) -> Command {
    let mut command = Command::new(daemon(world, &[]).get_program());
    command
        .arg(subcommand)
        .arg("--bpffs")
        .arg(world.bpffs())
        .args(["--state-dir", "/nonexistent"]);
    command
}
