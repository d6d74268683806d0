//! What every step uses: the cluster, a folder for files, and the function that states a claim.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use culvert_lab::{progress, wait, workspace};
use serde_json::Value;

use crate::cluster::{Cluster, EDGES, MASTER};
use crate::command::Running;
use crate::controllers::Controllers;
use crate::follower::Follower;

/// Culvert's namespace.
pub(super) const CULVERT: &str = "culvert-system";
/// The namespace of the pods that are reached through Culvert.
pub(super) const SHOP: &str = "shop";
/// The address that only edge-1 has.
pub(super) const EDGE_1_ADDRESS: &str = "10.0.3.7";

/// How long pods may take to become ready on two busy cores.
pub(super) const PODS_TIME: Duration = Duration::from_secs(90);
/// Time for a DaemonSet's rollout: its pods are replaced one after the other.
const ROLLOUT_TIME: Duration = Duration::from_secs(240);

/// A run on a cluster.
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) claims: usize,
    /// A `kubectl logs -f` that runs during other steps.
    pub(super) follower: Option<Follower>,
    folder: PathBuf,
    /// Flags that kube-apiserver always has.
    apiserver_flags: Vec<String>,
}

impl World {
    /// Stores files in `folder`.
    pub(super) fn new(cluster: Cluster, folder: PathBuf, apiserver_flags: Vec<String>) -> Self {
        Self {
            cluster,
            claims: 0,
            follower: None,
            folder,
            apiserver_flags,
        }
    }

    /// States a claim, and fails unless `proof` succeeds.
    pub(super) fn claim<T>(
        &mut self,
        claim: &str,
        proof: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let proved = proof(self).with_context(|| format!("does not hold: {claim}"))?;
        self.claims += 1;
        progress::say(&format!(
            "    {:5.1} s  {claim}",
            started.elapsed().as_secs_f32()
        ));
        Ok(proved)
    }

    /// A file of this run.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The folder of this run's files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// kubectl in the namespace [`SHOP`].
    pub(super) fn shop(&self, args: &[&str]) -> Result<String> {
        self.cluster.ask(&[&["--namespace", SHOP], args].concat())
    }

    /// The same for commands that take long.
    pub(super) fn shop_within(&self, deadline: Duration, args: &[&str]) -> Result<String> {
        self.cluster
            .ask_within(deadline, &[&["--namespace", SHOP], args].concat())
    }

    /// The same in the background.
    pub(super) fn start_shop(&self, what: &str, args: &[&str]) -> Result<Running> {
        Running::start(
            &self.folder,
            what,
            &mut self
                .cluster
                .kubectl([&["--namespace", SHOP], args].concat()),
        )
    }

    /// kubectl in Culvert's namespace.
    pub(super) fn culvert(&self, args: &[&str]) -> Result<String> {
        self.cluster
            .ask(&[&["--namespace", CULVERT], args].concat())
    }

    /// Applies objects.
    pub(super) fn apply(&self, name: &str, objects: &[Value]) -> Result<()> {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let path = self.file(&format!("{name}.json"));
        std::fs::write(&path, list.to_string())
            .with_context(|| format!("write {}", path.display()))?;
        self.cluster
            .ask(&["apply", "--filename", &path.display().to_string()])
            .map(drop)
    }

    /// Applies one of the project's kustomizations.
    pub(super) fn apply_overlay(&self, name: &str) -> Result<()> {
        let folder = workspace::root().join("deploy/overlays").join(name);
        self.cluster
            .ask_within(
                PODS_TIME,
                &["apply", "--kustomize", &folder.display().to_string()],
            )
            .map(drop)
    }

    /// Waits until a pod of [`SHOP`] is in this phase. If it fails, the error contains its logs.
    pub(super) fn wait_for_phase(&self, pod: &str, phase: &str) -> Result<()> {
        wait::until(&format!("pod {pod} is {phase}"), PODS_TIME, || {
            let now = self.shop(&["get", "pod", pod, "--output", "jsonpath={.status.phase}"])?;
            if now == phase {
                return Ok(());
            }
            bail!(
                "it is {now}: {}",
                self.shop(&["logs", "--all-containers", "--tail", "5", pod])
                    .unwrap_or_default()
            )
        })
    }

    /// Waits until all pods of a DaemonSet exist, are ready and have its newest version.
    pub(super) fn wait_for_rollout(&self, daemon_set: &str) -> Result<()> {
        let timeout = format!("--timeout={}s", ROLLOUT_TIME.as_secs());
        let args = [
            "--namespace",
            CULVERT,
            "rollout",
            "status",
            &format!("daemonset/{daemon_set}"),
            &timeout,
        ];
        self.cluster
            .ask_within(ROLLOUT_TIME + Duration::from_secs(10), &args)
            .map(drop)
    }

    /// Restarts kube-apiserver with these flags in addition to those that it always has.
    pub(super) fn restart_apiserver(&self, flags: &[String]) -> Result<()> {
        let flags = [&self.apiserver_flags, flags].concat();
        Controllers::find(&self.cluster)?
            .through(&self.cluster, || self.cluster.restart_apiserver(&flags))
    }

    /// Runs one of Culvert's programs in its pod on the master.
    pub(super) fn in_pod(&self, program: &str, args: &[&str]) -> Result<String> {
        self.culvert(
            &[
                &["exec", &format!("daemonset/{program}"), "--", program],
                args,
            ]
            .concat(),
        )
    }

    /// Prints what helps to find the reason of a failure.
    pub(super) fn show_state(&self) {
        let pods = self
            .cluster
            .ask(&["get", "pods", "--all-namespaces", "--output", "wide"]);
        progress::say(&pods.unwrap_or_else(|error| format!("{error:#}")));
        let events = self
            .culvert(&["get", "events", "--sort-by", ".lastTimestamp"])
            .unwrap_or_default();
        progress::say(&last_lines(&events, 15));
        // Reads the nodes' own disks: logs through the API server may not work.
        let tail = "for log in /var/log/pods/culvert-system_*/*/*.log; do [ -e \"$log\" ] && echo \
            \"--- $log\" && tail -n 20 \"$log\"; done; true";
        for node in [&[MASTER][..], &EDGES].concat() {
            let logs = self.cluster.on(node, &["sh", "-c", tail]);
            progress::say(&format!(
                "logs on {node}:\n{}",
                logs.unwrap_or_else(|error| format!("{error:#}"))
            ));
        }
        progress::say(&format!("more is in {}", self.folder.display()));
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
