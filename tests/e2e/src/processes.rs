//! The processes of a node: what its init system would keep running.

use std::path::Path;

use anyhow::{Context, Result};

use crate::cluster::{Cluster, KUBECTL_TIME};
use crate::command::finish;

/// A process of a node.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// Its program and arguments.
    pub(super) line: Vec<String>,
}

impl Process {
    /// The name of its program, without the folder.
    pub(super) fn program(&self) -> &str {
        let path = Path::new(self.line.first().map_or("", String::as_str));
        match path.file_name() {
            Some(name) => name.to_str().unwrap_or_default(),
            None => "",
        }
    }
}

/// The processes in a node's own cgroup. Those of containers may be elsewhere.
pub(super) fn of_node(cluster: &Cluster, node: &str) -> Result<Vec<Process>> {
    let file = Path::new(cluster.variable_of(node, "CGROUP")?).join("cgroup.procs");
    let pids =
        std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let mut processes = Vec::new();
    for pid in pids.lines() {
        // A process that has just ended has no command line.
        if let Ok(line) = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            && let Ok(pid) = pid.parse()
        {
            let line = line.split_terminator('\0').map(str::to_owned).collect();
            processes.push(Process { pid, line });
        }
    }
    Ok(processes)
}

/// Starts a process of a node in the background; its output is appended to `log`.
pub(super) fn start(cluster: &Cluster, node: &str, line: &[String], log: &Path) -> Result<()> {
    let mut shell = cluster.enter(node, "sh");
    // In a session of its own and with its own output, so that nothing waits for its end.
    shell
        .args([
            "-c",
            "log=$0; exec < /dev/null >> \"$log\" 2>&1; setsid \"$@\" &",
        ])
        .arg(log)
        .args(line);
    finish(&mut shell, KUBECTL_TIME)?
        .success()
        .with_context(|| format!("start {} on {node}", line.join(" ")))?;
    Ok(())
}
