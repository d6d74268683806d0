//! Restarts kube-controller-manager and kube-scheduler, which end when the API server is away for
//! longer than their lease. A kubelet restarts them if they are static pods; here they may be plain
//! processes of the master.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::wait;

use crate::cluster::{Cluster, KUBECTL_TIME, MASTER};
use crate::command::finish;

const PROGRAMS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];
/// The lease of a controller that ended expires after 15 s.
const LEADING: Duration = Duration::from_secs(60);

/// The command lines of the controllers.
pub(super) struct Controllers(Vec<Vec<String>>);

impl Controllers {
    /// The controllers that run now.
    pub(super) fn find(cluster: &Cluster) -> Result<Self> {
        Ok(Self(running(cluster)?))
    }

    /// Runs `change` on the API server, then waits until all controllers lead again.
    pub(super) fn through(
        &self,
        cluster: &Cluster,
        disturb: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = PROGRAMS
            .map(|name| renewed(cluster, name))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        disturb()?;
        wait::until("the controllers lead again", LEADING, || {
            self.start_missing(cluster)?;
            for (name, before) in PROGRAMS.iter().zip(&before) {
                ensure!(
                    renewed(cluster, name)? != *before,
                    "{name} has not renewed its lease"
                );
            }
            Ok(())
        })
    }

    fn start_missing(&self, cluster: &Cluster) -> Result<()> {
        let there = running(cluster)?;
        for line in self.0.iter().filter(|line| !there.contains(line)) {
            let mut shell = cluster.enter(MASTER, "sh");
            // In the background and without output, so that nothing waits for its end.
            shell
                .args(["-c", "exec > /dev/null 2>&1; setsid \"$0\" \"$@\" &"])
                .args(line);
            finish(&mut shell, KUBECTL_TIME)?
                .success()
                .with_context(|| format!("start {} again", line[0]))?;
        }
        Ok(())
    }
}

/// The controllers' command lines among the master's processes.
fn running(cluster: &Cluster) -> Result<Vec<Vec<String>>> {
    let file = Path::new(cluster.variable("CK_MASTER_CGROUP")?).join("cgroup.procs");
    let pids =
        std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    // A process that has just ended has no command line.
    let lines = pids
        .lines()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok());
    let lines = lines.map(|line| {
        line.split_terminator('\0')
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    Ok(lines
        .filter(|line| line.first().is_some_and(|program| is_controller(program)))
        .collect())
}

fn is_controller(program: &str) -> bool {
    Path::new(program)
        .file_name()
        .is_some_and(|name| PROGRAMS.iter().any(|one| name == *one))
}

fn renewed(cluster: &Cluster, name: &str) -> Result<String> {
    let args = [
        "--namespace",
        "kube-system",
        "get",
        "lease",
        name,
        "--output",
        "jsonpath={.spec.renewTime}",
    ];
    cluster.ask(&args)
}
