//! Restarts kube-controller-manager and kube-scheduler, which end when the API server is away for
//! longer than their lease. A kubelet restarts them if they are static pods; here they may be plain
//! processes of the master.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::wait;

use crate::cluster::{Cluster, MASTER};
use crate::processes;

const PROGRAMS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];
/// The lease of a controller that ended expires after a minute.
const LEADING: Duration = Duration::from_mins(3);

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
        for line in &self.0 {
            if !there.contains(line) {
                processes::start(cluster, MASTER, line, Path::new("/dev/null"))?;
            }
        }
        Ok(())
    }
}

/// The controllers' command lines among the master's processes.
fn running(cluster: &Cluster) -> Result<Vec<Vec<String>>> {
    let mut controllers = Vec::new();
    for process in processes::of_node(cluster, MASTER)? {
        if PROGRAMS.contains(&process.program()) {
            controllers.push(process.line);
        }
    }
    Ok(controllers)
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
