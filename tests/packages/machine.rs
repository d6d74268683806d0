//! Machines with systemd: systemd-nspawn boots copies of this machine's root in the networks of a
//! lab's hosts.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::{Lab, skip, wait, workspace};

use crate::made::MADE;

/// Where a machine has the packages.
pub(crate) const PACKAGES: &str = "/packages";
/// Where it has an exporter.
pub(crate) const EXPORTER: &str = "/node_exporter";
const BOOT_TIME: Duration = Duration::from_secs(120);

/// `$0` folder of the machine, `$1` cgroup, `$2` network namespace, `$3` host name; then what is bound.
/// Only what the machine needs to start units runs on it, and no service of this machine's root.
/// Devices 0:0 are overlayfs's whiteouts: folders that other tests make on this machine are hidden.
const BOOT: &str = r#"
echo $$ > "$1/cgroup.procs"
mount -t tmpfs tmpfs "$0"
cd "$0"
mkdir -p hidden/etc hidden/var/lib upper work root bpf
mknod hidden/etc/culvert c 0 0
mknod hidden/var/lib/culvert c 0 0
mount -t overlay overlay -o lowerdir=hidden:/,upperdir=upper,workdir=work root
mount -t bpf bpf bpf
netns=$2 name=$3
shift 3
echo "$name" >root/etc/hostname
exec systemd-nspawn --quiet --boot --register=no --keep-unit --console=pipe --link-journal=no \
  --directory="$0/root" --machine="$name" --network-namespace-path="$netns" --resolv-conf=off \
  --capability=CAP_NET_ADMIN,CAP_BPF --system-call-filter=bpf --bind="$0/bpf:/sys/fs/bpf" \
  "$@" systemd.unit=basic.target
"#;

/// Runs a test in a lab of its own; nothing if this machine can make none.
pub(crate) fn with_lab(test: impl FnOnce(&Lab) -> Result<()>) {
    if !skip::may_make_labs() {
        return;
    }
    let lab = Lab::start_test().expect("the lab");
    // The panic must happen while the lab is up, so that its logs are shown.
    if let Err(error) = test(&lab) {
        panic!("{error:#}");
    }
}

/// A running machine. It is switched off when it is dropped.
pub(crate) struct Machine {
    _nspawn: Process,
    /// systemd on the machine.
    init: String,
}

impl Machine {
    /// Boots a machine in the place of a host.
    pub(crate) fn boot(site: &Site) -> Result<Self> {
        let folder = site.file("machine");
        std::fs::create_dir(&folder)?;
        let mut nspawn = Command::new("unshare");
        nspawn.args(["--mount", "sh", "-e", "-c", BOOT]);
        nspawn.args([&folder, site.cgroup(), site.netns()]);
        nspawn.arg(site.host().name());
        nspawn.arg(format!("--bind-ro={}:{PACKAGES}", MADE.display()));
        let exporter = Unpacked::NodeExporter.program();
        nspawn.arg(format!("--bind-ro={}:{EXPORTER}", exporter.display()));
        // The machine has cgroup2 alone, as machines of today have.
        nspawn.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1");
        let mut nspawn = site.start_process("machine", &mut nspawn)?;
        let init = wait::until("the machine is up", BOOT_TIME, || {
            nspawn.check()?;
            let init = child(nspawn.pid())?;
            // It fails while it starts, and where a unit of this machine's root cannot run.
            let state = enter(&init, "systemctl")
                .arg("is-system-running")
                .output()?;
            let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
            ensure!(["running", "degraded"].contains(&state.as_str()), "{state}");
            Ok(init)
        })?;
        Ok(Self {
            _nspawn: nspawn,
            init,
        })
    }

    /// What a script prints that root runs in the folder of the packages, as a unit of its own.
    pub(crate) fn run(&self, script: &str) -> Result<String> {
        let mut run = enter(&self.init, "systemd-run");
        run.args(["--quiet", "--pipe", "--wait", "--collect"]);
        run.arg(format!("--working-directory={PACKAGES}"));
        run.args(["sh", "-e", "-c", script]);
        workspace::output(&mut run).with_context(|| format!("run on the machine: {script}"))
    }
}

/// The only child of a process. nspawn has others for a moment before it has systemd.
fn child(pid: u32) -> Result<String> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let child = children.split_whitespace().next();
    child.map(str::to_owned).context("no process yet")
}

/// A command in all namespaces of a machine's systemd.
fn enter(init: &str, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", init]);
    command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]);
    command.args(["--", program]);
    command
}
