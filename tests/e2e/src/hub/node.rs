//! The node behind the hub as a machine: its programs, its power and its link.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::{skewed_clock, wait, workspace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{NODE, client, disk};
use crate::processes;
use crate::world::World;

pub(super) const HUB: &str = "culvert-hub";
pub(super) const KUBELET: &str = "kubelet";
pub(super) const CONTAINERD: &str = "containerd";
pub(super) const KUBE_PROXY: &str = "kube-proxy";
/// What an init system starts, in its order.
const PROGRAMS: [&str; 4] = [CONTAINERD, HUB, KUBELET, KUBE_PROXY];
/// Time for a killed process to be gone.
const GONE: Duration = Duration::from_mins(1);

/// The node's programs by their command lines.
pub(super) struct Node {
    programs: Vec<Vec<String>>,
    /// How wrong the hub's clock is from its next start on, in seconds.
    hub_clock: i64,
}

impl Node {
    /// The node as it runs now.
    pub(super) fn find(world: &World) -> Result<Self> {
        let mut programs = Vec::new();
        for process in processes::of_node(&world.cluster, NODE)? {
            if PROGRAMS.contains(&process.program()) {
                programs.push(process.line);
            }
        }
        let node = Self {
            programs,
            hub_clock: 0,
        };
        node.line(KUBELET)?;
        node.line(CONTAINERD)?;
        Ok(node)
    }

    /// Has the hub as one of its programs from now on.
    pub(super) fn add_hub(&mut self, world: &World) {
        let pods = format!("{}:7440", client::ADDRESS);
        let run = ["run", "--pod-listen", &pods].map(str::to_owned);
        let run = [&hub_line(world)[..], &run].concat();
        self.programs.push(run);
    }

    /// Lets kubelet run the static pods of a folder from its next start on.
    pub(super) fn add_static_pods(&mut self, folder: &Path) -> Result<()> {
        let line = self.line_mut(KUBELET)?;
        line.push("--pod-manifest-path".to_owned());
        line.push(folder.display().to_string());
        Ok(())
    }

    /// Gives one of its programs another value for `FLAG VALUE` from its next start on; returns the
    /// value that it had.
    pub(super) fn set_flag(&mut self, program: &str, flag: &str, value: String) -> Result<String> {
        let line = self.line_mut(program)?;
        let mut words = line.iter_mut().skip_while(|word| *word != flag);
        let word = words.nth(1);
        let word = word.with_context(|| format!("{program} has no {flag}"))?;
        Ok(std::mem::replace(word, value))
    }

    /// Kubelet's kubeconfig.
    pub(super) fn kubeconfig(&self) -> Result<PathBuf> {
        let path = argument(self.line(KUBELET)?, &["--kubeconfig"]);
        Ok(path.context("kubelet has no --kubeconfig")?.into())
    }

    /// Starts one of its programs.
    pub(super) fn start(&self, world: &World, program: &str) -> Result<()> {
        if program == HUB {
            // As its unit does.
            let address = format!("{}/32", client::ADDRESS);
            let add = ["ip", "address", "replace", &address, "dev", "lo"];
            world.cluster.on(NODE, &add)?;
        }
        let log = world.file(&format!("hub-{program}.log"));
        let mut line = self.line(program)?.to_vec();
        if program == HUB && self.hub_clock != 0 {
            let variables = skewed_clock::environment(world.folder(), self.hub_clock)?;
            let variables = variables.map(|(name, value)| format!("{name}={value}"));
            line.splice(0..0, ["env".to_owned()].into_iter().chain(variables));
        }
        processes::start(&world.cluster, NODE, &line, &log)
    }

    /// Makes the hub's clock wrong by that many seconds from its next start on.
    pub(super) fn set_hub_clock(&mut self, seconds: i64) {
        self.hub_clock = seconds;
    }

    /// Kills one of its programs with SIGKILL, and waits until it is gone.
    pub(super) fn kill(&self, world: &World, program: &str) -> Result<()> {
        let pid = pid(world, program)?;
        kill_and_wait(program, || {
            let mut left = Vec::new();
            for process in processes::of_node(&world.cluster, NODE)? {
                left.push(process.pid);
            }
            left.retain(|it| *it == pid);
            Ok(left)
        })
    }

    /// Ends every process of the node at once, and all that is only in memory, unflushed writes of the
    /// hub too.
    pub(super) fn power_off(&self, world: &World) -> Result<()> {
        let host: i32 = world.cluster.variable_of(NODE, "PID")?.parse()?;
        let cgroup = PathBuf::from(world.cluster.variable_of(NODE, "CGROUP")?);
        kill_and_wait("every process", || {
            let mut pids = Vec::new();
            collect(&cgroup, &mut pids)?;
            pids.retain(|pid| *pid != host);
            Ok(pids)
        })?;
        disk::lose_power(world)?;
        let kubelet = argument(self.line(KUBELET)?, &["--root-dir"]).unwrap_or("/var/lib/kubelet");
        let state = self.containerd_state()?;
        let script = "for d in \"$@\"; do awk -v d=\"$d/\" 'index($2, d) == 1 {print $2}' \
            /proc/mounts | sort -r | xargs -r -n 1 umount --lazy || exit 1; done; rm -rf \"$1\"; \
            find /run/culvert -mindepth 1 -delete";
        let line = ["sh", "-c", script, "power-off", &state, kubelet];
        world.cluster.on(NODE, &line).map(drop)
    }

    /// Starts those of its programs that do not run, as an init system would: a kubelet ends when
    /// containerd is not up yet.
    pub(super) fn start_missing(&self, world: &World) -> Result<()> {
        let running = processes::of_node(&world.cluster, NODE)?;
        for program in PROGRAMS {
            let runs = running.iter().any(|it| it.program() == program);
            if !runs && self.line(program).is_ok() {
                self.start(world, program)?;
            }
        }
        Ok(())
    }

    /// Where containerd has what a reboot ends.
    pub(super) fn containerd_state(&self) -> Result<String> {
        containerd_state(self.line(CONTAINERD)?)
    }

    fn line_mut(&mut self, program: &str) -> Result<&mut Vec<String>> {
        let mut lines = self.programs.iter_mut();
        let found = lines.find(|line| Path::new(&line[0]).ends_with(program));
        found.with_context(|| format!("{NODE} has no process {program}"))
    }

    fn line(&self, program: &str) -> Result<&[String]> {
        let mut lines = self.programs.iter().map(Vec::as_slice);
        let found = lines.find(|line| Path::new(&line[0]).ends_with(program));
        found.with_context(|| format!("{NODE} has no process {program}"))
    }
}

/// The hub and the flags of this run. Its other defaults would do on a machine of its own.
pub(super) fn hub_line(world: &World) -> Vec<String> {
    vec![
        workspace::image_program(HUB).display().to_string(),
        "--state-dir".to_owned(),
        state_dir(world).display().to_string(),
        "--admin-socket".to_owned(),
        "/run/culvert/hub.sock".to_owned(),
    ]
}

/// Where the hub has its state.
pub(super) fn state_dir(world: &World) -> PathBuf {
    disk::folder(world).join("state")
}

/// The process of a program of the node.
pub(super) fn pid(world: &World, program: &str) -> Result<i32> {
    for process in processes::of_node(&world.cluster, NODE)? {
        if process.program() == program {
            return Ok(process.pid);
        }
    }
    bail!("{program} does not run")
}

/// Nothing goes over the node's link from now on, without an answer. Where a packet goes is known
/// when kube-proxy's rules have led it.
pub(super) fn cut(world: &World) -> Result<()> {
    let file = world.file("hub-cut.nft");
    let rules = "table inet culvert_e2e_cut {
        chain inward { type filter hook input priority -300; iifname \"wan\" drop; }
        chain outward { type filter hook postrouting priority 300; oifname \"wan\" drop; }\n}\n";
    std::fs::write(&file, rules).with_context(|| format!("write {}", file.display()))?;
    let file = file.display().to_string();
    world.cluster.on(NODE, &["nft", "--file", &file]).map(drop)
}

/// The link is there again.
pub(super) fn repair(world: &World) -> Result<()> {
    let delete = ["nft", "delete", "table", "inet", "culvert_e2e_cut"];
    world.cluster.on(NODE, &delete).map(drop)
}

fn kill_and_wait(what: &str, left: impl Fn() -> Result<Vec<i32>>) -> Result<()> {
    wait::until(&format!("{what} is gone"), GONE, || {
        let pids = left()?;
        for pid in &pids {
            // It may end by itself at this moment.
            kill(Pid::from_raw(*pid), Signal::SIGKILL).ok();
        }
        ensure!(pids.is_empty(), "there are {pids:?}");
        Ok(())
    })
}

/// The processes of a cgroup and of those below it.
fn collect(cgroup: &Path, pids: &mut Vec<i32>) -> Result<()> {
    let file = cgroup.join("cgroup.procs");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    pids.extend(text.lines().filter_map(|pid| pid.parse::<i32>().ok()));
    for entry in std::fs::read_dir(cgroup)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), pids)?;
        }
    }
    Ok(())
}

/// Where containerd has what a reboot ends.
fn containerd_state(line: &[String]) -> Result<String> {
    let Some(file) = argument(line, &["-c", "--config"]) else {
        return Ok("/run/containerd".to_owned());
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    for line in text.lines() {
        if let Some(quoted) = line.strip_prefix("state = ") {
            return Ok(quoted.trim_matches('"').to_owned());
        }
    }
    Ok("/run/containerd".to_owned())
}

/// The value of a flag, as `FLAG VALUE` or `FLAG=VALUE`.
pub(super) fn argument<'line>(line: &'line [String], flags: &[&str]) -> Option<&'line str> {
    for (number, word) in line.iter().enumerate() {
        match word.split_once('=') {
            Some((flag, value)) if flags.contains(&flag) => return Some(value),
            Some(_) => {}
            None if flags.contains(&word.as_str()) => {
                if let Some(value) = line.get(number + 1) {
                    return Some(value);
                }
            }
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_their_value_in_one_word_or_two() {
        let line = ["kubelet", "--a", "1", "--kubeconfig=/k", "--b"].map(str::to_owned);
        assert_eq!(argument(&line, &["--a"]), Some("1"));
        assert_eq!(argument(&line, &["-k", "--kubeconfig"]), Some("/k"));
        assert_eq!(argument(&line, &["--b"]), None);
    }
}
