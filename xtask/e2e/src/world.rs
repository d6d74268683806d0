//! What every step uses: the cluster, a folder for files, and the function that states a claim.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use culvert_lab::{progress, wait, workspace};
use serde_json::Value;

use crate::cluster::{CLOUDS, Cluster, EDGES, MASTER};
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
    /// Whether Culvert's images, and those of the clients, are on every node.
    pub(super) has_images: bool,
    /// The cloud nodes that are not lost.
    pub(super) clouds: Vec<&'static str>,
    /// Whether cuts last as long as on real links.
    pub(super) long: bool,
    folder: PathBuf,
    /// Flags that kube-apiserver always has.
    apiserver_flags: Vec<String>,
    /// Flags that it has now in addition.
    further_flags: Mutex<Vec<String>>,
}

impl World {
    /// Stores files in `folder`.
    pub(super) fn new(
        cluster: Cluster,
        folder: PathBuf,
        apiserver_flags: Vec<String>,
        long: bool,
    ) -> Self {
        Self {
            cluster,
            claims: 0,
            follower: None,
            has_images: false,
            clouds: CLOUDS.to_vec(),
            long,
            folder,
            apiserver_flags,
            further_flags: Mutex::default(),
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
        *self.further_flags() = flags.to_vec();
        let flags = [&self.apiserver_flags, flags].concat();
        Controllers::find(&self.cluster)?
            .through(&self.cluster, || self.cluster.restart_apiserver(&flags))
    }

    /// Whether kube-apiserver has just these flags in addition to those that it always has.
    pub(super) fn apiserver_has(&self, flags: &[String]) -> bool {
        *self.further_flags() == flags
    }

    fn further_flags(&self) -> MutexGuard<'_, Vec<String>> {
        self.further_flags
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one of Culvert's programs in its pod on the master.
    pub(super) fn in_pod(&self, program: &str, args: &[&str]) -> Result<String> {
        self.in_pod_on(MASTER, program, args)
    }

    /// Runs one of Culvert's programs in its pod on a node.
    pub(super) fn in_pod_on(&self, node: &str, program: &str, args: &[&str]) -> Result<String> {
        let pods = self.pods(program)?;
        let pod = pods
            .get(node)
            .with_context(|| format!("{program} has no pod on {node}"))?;
        self.culvert(&[&["exec", &pod.name, "--", program], args].concat())
    }

    /// The pods of one of Culvert's programs by their nodes, without those that are ending.
    pub(super) fn pods(&self, program: &str) -> Result<BTreeMap<String, Pod>> {
        let label = format!("app.kubernetes.io/name={program}");
        let list =
            self.cluster
                .json(&["--namespace", CULVERT, "get", "pods", "--selector", &label])?;
        let pods = list["items"].as_array().into_iter().flatten();
        let present = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(present
            .map(|pod| (text(&pod["spec"]["nodeName"]), Pod::from(pod)))
            .collect())
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
        for node in [&CLOUDS[..], &EDGES].concat() {
            let logs = self.cluster.on(node, &["sh", "-c", tail]);
            progress::say(&format!(
                "logs on {node}:\n{}",
                logs.unwrap_or_else(|error| format!("{error:#}"))
            ));
        }
        progress::say(&format!("more is in {}", self.folder.display()));
    }
}

/// A pod of one of Culvert's programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) is_ready: bool,
}

impl From<&Value> for Pod {
    fn from(pod: &Value) -> Self {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let is_ready =
            |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        let name = pod["metadata"]["name"].as_str();
        Self {
            name: name.unwrap_or_default().to_owned(),
            is_ready: conditions.into_iter().any(is_ready),
        }
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
