//! What every step uses: the cluster, a folder for files, and the function that states a claim.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use culvert_lab::failures::{Failure, Record, SecondLook};
use culvert_lab::{interrupt, progress, wait, workspace};
use serde_json::Value;

use crate::cluster::{CLOUDS, Cluster, EDGES, MASTER};
use crate::command::Running;
use crate::controllers::Controllers;
use crate::follower::Follower;

/// Culvert's namespace.
pub(super) const CULVERT: &str = "culvert-system";
/// The namespace of the pods that are reached through Culvert.
pub(super) const SHOP: &str = "shop";
/// The node whose kubelet asks the hub.
pub(super) const HUB_NODE: &str = "edge-1";
/// The address that only edge-1 has.
pub(super) const EDGE_1_ADDRESS: &str = "10.0.3.7";

/// The name of this run among the test suites.
pub(super) const SUITE: &str = "e2e";

/// The pause before a claim is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// How long pods may take to become ready on two busy cores.
pub(super) const PODS_TIME: Duration = Duration::from_mins(4);
/// Time for a DaemonSet's rollout: its pods are replaced one after the other.
const ROLLOUT_TIME: Duration = Duration::from_mins(8);

/// How long the cuts of links last.
#[derive(Clone, Copy)]
pub(super) enum Cuts {
    Short,
    /// As long as on real links.
    Long,
}

/// A run on a cluster.
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) claims: usize,
    /// The claims that held at the second try only.
    pub(super) flaky: Vec<Failure>,
    /// Where they are for `cargo xtask test --report`.
    record: Option<Record>,
    /// The step that runs.
    pub(super) step: Option<&'static str>,
    /// The DNS server that CoreDNS asks for the names of others.
    pub(super) upstream: Option<Running>,
    /// A `kubectl logs -f` that runs during other steps.
    pub(super) follower: Option<Follower>,
    /// Whether Culvert's images, and those of the clients, are on every node.
    pub(super) has_images: bool,
    /// The cloud nodes that are not lost.
    pub(super) clouds: Vec<&'static str>,
    pub(super) cuts: Cuts,
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
        cuts: Cuts,
        record: Option<Record>,
    ) -> Self {
        Self {
            cluster,
            claims: 0,
            flaky: Vec::new(),
            record,
            step: None,
            upstream: None,
            follower: None,
            has_images: false,
            clouds: CLOUDS.to_vec(),
            cuts,
            folder,
            apiserver_flags,
            further_flags: Mutex::default(),
        }
    }

    /// States a claim, and fails unless `proof` succeeds. If it fails, it is tried once more, unless
    /// it fails with [`WrongData`]: a claim that holds only then is flaky.
    pub(super) fn claim<T>(
        &mut self,
        claim: &str,
        mut proof: impl FnMut(&Self) -> Result<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let first = match proof(self) {
            Ok(proved) => return Ok(self.record_claim(claim, started, proved)),
            Err(error) => error.context(format!("does not hold: {claim}")),
        };
        interrupt::check()?;
        if first.downcast_ref::<WrongData>().is_some() {
            return Err(first);
        }
        let first = format!("{first:#}");
        progress::say(&format!("    {first}; it is tried again"));
        self.show_state();
        let pause = "the pause before a second try";
        wait::throughout(pause, TRY_AGAIN_AFTER, || Ok(()))?;
        match proof(self) {
            Ok(proved) => {
                self.record_flaky(claim, first)?;
                Ok(self.record_claim(claim, started, proved))
            }
            Err(second) => Err(second.context(format!("{first}; and at a second try"))),
        }
    }

    /// States a claim that is not tried again if it fails: its proof changes what it is about, or a
    /// failure is lost or wrong data.
    pub(super) fn claim_once<T>(
        &mut self,
        claim: &str,
        proof: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let proved = proof(self).with_context(|| format!("does not hold: {claim}"))?;
        Ok(self.record_claim(claim, started, proved))
    }

    fn record_claim<T>(&mut self, claim: &str, started: Instant, proved: T) -> T {
        self.claims += 1;
        progress::say(&format!(
            "    {:5.1} s  {claim}",
            started.elapsed().as_secs_f32()
        ));
        proved
    }

    fn record_flaky(&mut self, claim: &str, first: String) -> Result<()> {
        let failure = Failure {
            kernel: None,
            suite: SUITE.to_owned(),
            test: Some(claim.to_owned()),
            output: first,
            second: SecondLook::Passed("It held at a second try, on the same cluster.".to_owned()),
            repeat: self.repeat(),
        };
        if let Some(record) = &self.record {
            record.add(&failure)?;
        }
        self.flaky.push(failure);
        Ok(())
    }

    /// The command that runs the present step again.
    pub(super) fn repeat(&self) -> String {
        let long = match self.cuts {
            Cuts::Short => "",
            Cuts::Long => " --long",
        };
        match self.step {
            Some(step) => format!("cargo xtask e2e{long} --only {step}"),
            None => format!("cargo xtask e2e{long}"),
        }
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

    /// Starts to replace all pods of a DaemonSet.
    pub(super) fn start_rollout(&self, daemon_set: &str) -> Result<()> {
        let daemon_set = format!("daemonset/{daemon_set}");
        self.culvert(&["rollout", "restart", &daemon_set])?;
        Ok(())
    }

    /// Waits until all pods of a DaemonSet exist, are ready and have its newest version.
    pub(super) fn wait_for_rollout(&self, daemon_set: &str) -> Result<()> {
        self.wait_for_rollout_of(CULVERT, &format!("daemonset/{daemon_set}"), ROLLOUT_TIME)
    }

    /// The same for a workload such as `deployment/coredns`, in another namespace.
    pub(super) fn wait_for_rollout_of(
        &self,
        namespace: &str,
        workload: &str,
        limit: Duration,
    ) -> Result<()> {
        let timeout = format!("--timeout={}s", limit.as_secs());
        let args = [
            "--namespace",
            namespace,
            "rollout",
            "status",
            workload,
            &timeout,
        ];
        self.cluster
            .ask_within(limit + Duration::from_secs(10), &args)
            .map(drop)
    }

    /// Restarts kube-apiserver with these flags in addition to those that it always has.
    pub(super) fn restart_apiserver(&self, flags: &[String]) -> Result<()> {
        let all = [&self.apiserver_flags, flags].concat();
        Controllers::find(&self.cluster)?
            .through(&self.cluster, || self.cluster.restart_apiserver(&all))?;
        *self.further_flags() = flags.to_vec();
        Ok(())
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

    /// Runs `culvert` in the proxy's pod on the master.
    pub(super) fn in_proxys_pod(&self, args: &[&str]) -> Result<String> {
        let pods = self.pods("culvert-proxy")?;
        let pod = pods.get(MASTER).context("the master has no proxy's pod")?;
        self.culvert(&[&["exec", &pod.name, "--", "culvert"], args].concat())
    }

    /// The pods of one of Culvert's programs by their nodes, without those that are ending.
    pub(super) fn pods(&self, program: &str) -> Result<BTreeMap<String, Pod>> {
        let label = format!("app.kubernetes.io/name={program}");
        let list =
            self.cluster
                .json(&["--namespace", CULVERT, "get", "pods", "--selector", &label])?;
        let mut pods = BTreeMap::new();
        for pod in list["items"].as_array().into_iter().flatten() {
            if pod["metadata"]["deletionTimestamp"].is_null() {
                let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
                pods.insert(node.to_owned(), Pod::from(pod));
            }
        }
        Ok(pods)
    }

    /// Prints what helps to find the reason of a failure.
    pub(super) fn show_state(&self) {
        let pods = self
            .cluster
            .ask(&["get", "pods", "--all-namespaces", "--output", "wide"]);
        progress::say(&text_of(pods));
        let events = self
            .culvert(&["get", "events", "--sort-by", ".lastTimestamp"])
            .unwrap_or_default();
        progress::say(&last_lines(&events, 15));
        // Reads the nodes' own disks: logs through the API server may not work.
        let tail = "for log in /var/log/pods/culvert-system_*/*/*.log; do [ -e \"$log\" ] && echo \
            \"--- $log\" && tail -n 20 \"$log\"; done; true";
        for node in [&CLOUDS[..], &EDGES].concat() {
            let logs = self.cluster.on(node, &["sh", "-c", tail]);
            progress::say(&format!("logs on {node}:\n{}", text_of(logs)));
        }
        progress::say(&format!("more is in {}", self.folder.display()));
    }
}

fn text_of(output: Result<String>) -> String {
    match output {
        Ok(text) => text,
        Err(error) => format!("{error:#}"),
    }
}

/// A proof found data of another node, or other data than was sent.
#[derive(Debug)]
pub(super) struct WrongData(pub(super) String);

impl fmt::Display for WrongData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongData {}

/// A pod of one of Culvert's programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) is_ready: bool,
}

impl From<&Value> for Pod {
    fn from(pod: &Value) -> Self {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let name = pod["metadata"]["name"].as_str();
        Self {
            name: name.unwrap_or_default().to_owned(),
            is_ready: conditions
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True"),
        }
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
