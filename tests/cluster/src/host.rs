//! A node as a host: one process holds its namespaces, and all others join them. Its folders of
//! state are its own, so that the same DaemonSet runs on several.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::unpacked::Unpacked;
use culvert_lab::{progress, wait};

use crate::cluster::{Cluster, PRIVATE};
use crate::network;
use crate::node::Node;

/// Becomes the process that holds the host's namespaces: `$0` its cgroup, `$1` its network
/// namespace, `$2` its name, `$3` its resolv.conf or empty, `$4` a file that it makes when all is
/// mounted, and then the folders of its own.
const HOLD: &str = r#"echo $$ > "$0/cgroup.procs" && exec nsenter --net="$1" unshare --mount --uts --propagation slave sh -ec '
  hostname "$1"; resolv=$2; ready=$3; shift 3
  for folder; do mount -t tmpfs tmpfs "$folder"; done
  mount -t bpf bpf /sys/fs/bpf
  [ -z "$resolv" ] || mount --bind "$resolv" /etc/resolv.conf
  touch "$ready"; exec sleep infinity
' sh "$2" "$3" "$4" $5"#;

/// Moves itself into the cgroup `$0`, joins the namespaces of process `$1`, and executes the command
/// that follows. `ip netns exec` would hide the cgroup mounts.
const ENTER: &str = r#"echo $$ > "$0/cgroup.procs" && pid=$1 && shift && exec nsenter -t "$pid" --net --mount --uts --wdns="$PWD" -- "$@""#;

/// Time for mounts on two busy cores.
const MOUNTED: Duration = Duration::from_mins(3);

/// A host that is up.
pub(crate) struct Host {
    folder: PathBuf,
    cgroup: PathBuf,
    holder: String,
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))
}

/// Leads to the DNS server on the master's address.
fn write_resolv_conf(path: &Path) -> Result<()> {
    let text = format!(
        "nameserver {}\noptions timeout:1 attempts:1\n",
        Node::Master.address()
    );
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

impl Host {
    /// The host of a node.
    pub(crate) fn of(cluster: &Cluster, node: &Node) -> Result<Self> {
        let folder = cluster.folder_of(*node);
        let pid = folder.join("host.pid");
        let holder = fs::read_to_string(&pid).with_context(|| format!("read {}", pid.display()))?;
        Ok(Self {
            folder,
            cgroup: cluster.cgroup(*node)?,
            holder,
        })
    }

    /// Starts it. The hosts of the cloud ask the DNS server on the master's address.
    pub(crate) fn start(cluster: &Cluster, node: &Node) -> Result<()> {
        let folder = cluster.folder_of(*node);
        let cgroup = cluster.cgroup(*node)?;
        for made in [folder.as_path(), &cgroup] {
            create(made)?;
        }
        for private in PRIVATE {
            create(Path::new(private))?;
        }
        let mut resolv_conf = PathBuf::new();
        if node.is_cloud() {
            resolv_conf = folder.join("resolv.conf");
            write_resolv_conf(&resolv_conf)?;
        }
        let ready = folder.join("host.ready");
        let mut hold = Command::new("sh");
        hold.args(["-c", HOLD])
            .arg(&cgroup)
            .arg(network::path(*node));
        hold.arg(node.to_string())
            .arg(&resolv_conf)
            .arg(&ready)
            .arg(PRIVATE.join(" "));
        spawn(&folder, "host", &mut hold)?;
        wait::until(&format!("host {node}"), MOUNTED, || {
            let log = folder.join("host.log");
            ensure!(
                ready.exists(),
                "its folders are not mounted: {}",
                progress::tail(&log, 3)
            );
            Ok(())
        })
    }

    /// A command that will run as a process of this host. Its pid is that of the program itself.
    ///
    /// # Errors
    /// A folder of programs has a colon in its name.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = Command::new("sh");
        command
            .args(["-c", ENTER])
            .arg(&self.cgroup)
            .arg(&self.holder)
            .arg(program)
            .env("PATH", path_with_runtimes()?);
        Ok(command)
    }

    /// Starts a command of this host in the background. Its log and its pid are in the host's folder.
    pub(crate) fn spawn(&self, name: &str, command: &mut Command) -> Result<()> {
        spawn(&self.folder, name, command)
    }

    /// The process of a name, if it runs.
    pub(crate) fn pid(&self, name: &str) -> Option<i32> {
        let pid = fs::read_to_string(self.folder.join(format!("{name}.pid"))).ok()?;
        let pid = pid.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // "PID (NAME) STATE ...": a zombie has ended, and init may never ask how.
        let (_, state) = stat.rsplit_once(") ")?;
        if state.starts_with('Z') {
            None
        } else {
            Some(pid)
        }
    }

    /// The log of a name.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// containerd starts its shim and runc by their names.
fn path_with_runtimes() -> Result<OsString> {
    let programs = [Unpacked::Containerd, Unpacked::Runc].map(Unpacked::program);
    let mut folders: Vec<PathBuf> = Vec::new();
    for program in &programs {
        folders.extend(program.parent().map(Path::to_path_buf));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders)?)
}

/// Starts a command that goes on when this program has ended.
fn spawn(folder: &Path, name: &str, command: &mut Command) -> Result<()> {
    let log = folder.join(format!("{name}.log"));
    let file = File::options().create(true).append(true).open(&log);
    let file = file.with_context(|| format!("open {}", log.display()))?;
    let child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("share a log")?)
        .stderr(file)
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {name}"))?;
    let pid = folder.join(format!("{name}.pid"));
    fs::write(&pid, child.id().to_string()).with_context(|| format!("write {}", pid.display()))
}
