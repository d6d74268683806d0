//! One host of a lab: network, host name, mounts (its own bpffs; in the cloud also its own
//! resolv.conf) and a cgroup.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::host::Host;
use crate::process::Process;
use crate::{LabName, inside, network, wait, workspace};

/// Moves itself into the cgroup `$0`, then into the namespaces of process `$1` (`$2` selects the
/// network), and executes the command that follows. `ip netns exec` would hide the cgroup mounts.
const ENTER: &str = r#"echo $$ > "$0/cgroup.procs" && pid=$1 net=$2 && shift 2 && exec nsenter -t "$pid" "$net" --mount --uts -- "$@""#;

/// Becomes the process that holds the host's namespaces: `$1` network namespace, `$2` host name,
/// `$3` resolv.conf or empty, `$4` file that it creates when it is ready.
const HOLD: &str = r#"echo $$ > "$0/cgroup.procs" && exec nsenter --net="$1" unshare --mount --uts sh -ec '
  hostname "$1"; mount -t bpf bpf /sys/fs/bpf; [ -z "$2" ] || mount --bind "$2" /etc/resolv.conf; touch "$3"; exec sleep infinity
' sh "$2" "$3" "$4""#;

/// A running host.
pub struct Site {
    host: Host,
    netns: PathBuf,
    cgroup: PathBuf,
    folder: PathBuf,
    holder: Process,
}

impl Site {
    pub(crate) fn start(name: &LabName, host: Host) -> Result<Self> {
        let netns = Path::new(network::NAMES).join(name.netns(host.name()));
        let cgroup = name.cgroup()?.join(host.name());
        let folder = name.folder().join(host.name());
        for made in [&cgroup, &folder] {
            std::fs::create_dir_all(made).with_context(|| format!("create {}", made.display()))?;
        }
        let resolv_conf = if host == Host::Cloud {
            resolv_conf(&folder)?
        } else {
            PathBuf::new()
        };
        let ready = folder.join("ready");
        let mut command = Command::new("sh");
        command
            .args(["-c", HOLD])
            .arg(&cgroup)
            .arg(&netns)
            .arg(host.name())
            .arg(resolv_conf)
            .arg(&ready);
        let mut holder = Process::start("host", &folder, &mut command)?;
        std::fs::write(folder.join("pid"), holder.pid().to_string())
            .context("write the host's pid")?;
        wait::until(
            &format!("host {}", host.name()),
            Duration::from_secs(60),
            || {
                holder.check()?;
                ensure!(ready.exists(), "its mounts are not ready");
                Ok(())
            },
        )?;
        Ok(Self {
            host,
            netns,
            cgroup,
            folder,
            holder,
        })
    }

    /// Which host this is.
    pub fn host(&self) -> Host {
        self.host
    }

    /// Files of this host.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file of this host.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The cgroup of all its processes.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// A command that will run as a process of this host. Its pid is the pid of the program itself.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        enter_command(&self.cgroup, self.holder.pid(), "--net", program)
    }

    /// A command in another network namespace, as processes of this host's pods run.
    pub fn command_in(&self, netns: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
        enter_command(
            &self.cgroup,
            self.holder.pid(),
            &format!("--net={}", netns.display()),
            program,
        )
    }

    /// A command outside of every host's cgroup. No connect hook sees it: only its packets are
    /// steered.
    pub fn unhooked_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let above = self.cgroup.parent().unwrap_or(&self.cgroup);
        enter_command(above, self.holder.pid(), "--net", program)
    }

    /// Starts a program in the background.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn start_process(&self, name: &str, command: &mut Command) -> Result<Process> {
        Process::start(name, &self.folder, command)
    }

    /// The output of a command that runs here.
    ///
    /// # Errors
    /// It fails; the error contains its error output.
    pub fn output<S: AsRef<std::ffi::OsStr>>(
        &self,
        program: impl AsRef<std::ffi::OsStr>,
        args: impl IntoIterator<Item = S>,
    ) -> Result<String> {
        workspace::output(self.command(program).args(args))
    }

    /// The body of a page on this host's loopback.
    ///
    /// # Errors
    /// The port does not answer in time, or the status is not a success; the error contains status
    /// and body.
    pub fn http_get(&self, port: u16, path: &str) -> Result<String> {
        inside::http(&self.netns, port, &format!("GET {path}"), "")
    }

    /// Sends a text with PUT to a page on this host's loopback.
    ///
    /// # Errors
    /// As [`Self::http_get`].
    pub fn http_put(&self, port: u16, path: &str, text: &str) -> Result<()> {
        inside::http(&self.netns, port, &format!("PUT {path}"), text).map(drop)
    }

    /// A JSON page on this host's loopback.
    ///
    /// # Errors
    /// As [`Self::http_get`], or the page is not JSON.
    pub fn json(&self, port: u16, path: &str) -> Result<Value> {
        let body = self.http_get(port, path)?;
        serde_json::from_str(&body).with_context(|| format!("{path} is not JSON: {body}"))
    }

    /// The value of one line of `/metrics`. The name includes its labels.
    ///
    /// # Errors
    /// As [`Self::http_get`], or there is no such line, or its value is not a number.
    pub fn metric(&self, port: u16, name: &str) -> Result<f64> {
        let body = self.http_get(port, "/metrics")?;
        let value = body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.with_context(|| format!("no {name} in /metrics"))?;
        value
            .trim()
            .parse()
            .with_context(|| format!("{name}: {value:?} is not a number"))
    }

    /// Its network namespace.
    pub fn netns(&self) -> &Path {
        &self.netns
    }
}

/// A command that runs as a process of a host, in a lab that another process holds up.
///
/// # Errors
/// No such lab is up.
pub fn enter(name: &LabName, host: Host, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
    let pid = name.folder().join(host.name()).join("pid");
    let pid = std::fs::read_to_string(&pid).with_context(|| format!("read {}", pid.display()))?;
    let cgroup = name.cgroup()?.join(host.name());
    Ok(enter_command(
        &cgroup,
        pid.trim().parse()?,
        "--net",
        program,
    ))
}

/// A command that enters the host whose processes are in `cgroup` and whose namespaces process
/// `holder` holds. `net` is nsenter's option: `--net` for the host's own network.
fn enter_command(
    cgroup: &Path,
    holder: u32,
    net: &str,
    program: impl AsRef<std::ffi::OsStr>,
) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", ENTER])
        .arg(cgroup)
        .arg(holder.to_string())
        .arg(net)
        .arg(program);
    command
}

/// The cloud's only DNS server is the redirector.
fn resolv_conf(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("resolv.conf");
    let text = format!(
        "nameserver {}\noptions timeout:1 attempts:1\n",
        Host::Cloud.address()
    );
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
