//! What runs pods on a node: containerd, kubelet and kube-proxy.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::unpacked::Unpacked;
use culvert_lab::{cgroup, progress, wait, workspace};
use serde_json::{Value, json};

use crate::host::Host;

use crate::cluster::Cluster;
use crate::network::ALL_PODS;
use crate::node::{NAME, Node};

/// The image of the process that holds a pod's namespaces.
pub(crate) const PAUSE: &str = "local/pause:1";

/// Time for containerd to answer, on two busy cores.
const READY: Duration = Duration::from_mins(3);

/// The address of the service `kube-dns`, as kubeadm has it. Nothing serves it at first.
const CLUSTER_DNS: &str = "10.96.0.10";

/// The first version whose kubelets refuse version 1 of cgroups unless told otherwise.
const REFUSES_CGROUP_V1: u32 = 31;

/// The first version whose kube-proxy has the mode `nftables` without asking for it.
const PROXIES_BY_NFTABLES: u32 = 31;

/// The first version whose kubelets know only one kind of container runtime.
const ONE_RUNTIME: u32 = 27;

/// The socket of a node's containerd.
pub(crate) fn socket(cluster: &Cluster, node: Node) -> PathBuf {
    cluster.path(format!("{node}/containerd.sock"))
}

/// Starts them.
pub(crate) fn start(cluster: &Cluster, node: &Node, proxy_mode: Option<&str>) -> Result<()> {
    let host = Host::of(cluster, node)?;
    make_cgroups(*node)?;
    start_containerd(cluster, *node, &host)?;
    start_kubelet(cluster, *node, &host)?;
    let default_mode = if cluster.minor_version()? < PROXIES_BY_NFTABLES {
        "iptables"
    } else {
        "nftables"
    };
    let mut proxy = host.command(cluster.program("kube-proxy")?)?;
    proxy
        .arg("--kubeconfig")
        .arg(cluster.path("proxy.kubeconfig"));
    proxy.args([
        "--hostname-override",
        &node.to_string(),
        "--proxy-mode",
        proxy_mode.unwrap_or(default_mode),
    ]);
    // The machine's own limit of connections stays: no site may change it.
    proxy.args(["--cluster-cidr", ALL_PODS, "--conntrack-max-per-core", "0"]);
    host.spawn("kube-proxy", &mut proxy)
}

/// Pods' cgroups are below their node's. Those of version 1 need the processors and the memory nodes
/// of the machine before a process can join them.
fn make_cgroups(node: Node) -> Result<()> {
    for hierarchy in cgroup::hierarchies()? {
        let parent = hierarchy.join(NAME);
        let own = parent.join(node.to_string());
        fs::create_dir_all(&own).with_context(|| format!("create {}", own.display()))?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let Ok(all) = fs::read_to_string(hierarchy.join(file)) else {
                continue;
            };
            for folder in [&parent, &own] {
                let file = folder.join(file);
                fs::write(&file, &all).with_context(|| format!("write {}", file.display()))?;
            }
        }
    }
    Ok(())
}

fn start_containerd(cluster: &Cluster, node: Node, host: &Host) -> Result<()> {
    write_containerd_config(cluster, node, host)?;
    let mut containerd = host.command(Unpacked::Containerd.program())?;
    containerd
        .arg("--config")
        .arg(host.folder().join("containerd.toml"));
    host.spawn("containerd", &mut containerd)?;
    wait::until(&format!("containerd of {node}"), READY, || {
        let version = workspace::output(ctr(cluster, node).arg("version"));
        version
            .map(drop)
            .with_context(|| progress::tail(&host.log("containerd"), 3))
    })
}

/// Writes the settings of containerd, and those of its pods' network.
fn write_containerd_config(cluster: &Cluster, node: Node, host: &Host) -> Result<()> {
    let folder = host.folder();
    let cni = folder.join("cni");
    fs::create_dir_all(&cni).with_context(|| format!("create {}", cni.display()))?;
    let network = json!({
        "cniVersion": "0.4.0", "name": "cluster", "plugins": [{
            "type": "ptp", "ipMasq": false,
            "ipam": {
                "type": "host-local", "dataDir": folder.join("cni-state"),
                "subnet": node.pods(), "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    });
    cluster.write(format!("{node}/cni/10-ptp.conflist"), &network.to_string())?;
    let config = format!(
        r#"version = 2
root = "{disk}"
state = "{folder}/containerd-state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  # Root of a container may not lower it.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "docker.io/{PAUSE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{cni}"
"#,
        folder = folder.display(),
        disk = cluster.on_disk(node.to_string()).display(),
        socket = socket(cluster, node).display(),
        plugins = Unpacked::CniPlugins.folder().join("usr/lib/cni").display(),
        cni = cni.display(),
    );
    cluster.write(format!("{node}/containerd.toml"), &config)
}

/// containerd's own client, for a node.
pub(crate) fn ctr(cluster: &Cluster, node: Node) -> Command {
    let mut ctr = Command::new(Unpacked::Containerd.folder().join("usr/bin/ctr"));
    ctr.arg("--address")
        .arg(socket(cluster, node))
        .args(["--namespace", "k8s.io"]);
    ctr
}

fn start_kubelet(cluster: &Cluster, node: Node, host: &Host) -> Result<()> {
    let minor = cluster.minor_version()?;
    let mut config = kubelet_config(cluster, node);
    if minor >= REFUSES_CGROUP_V1 {
        config["failCgroupV1"] = false.into();
    }
    cluster.write(format!("{node}/kubelet.yaml"), &config.to_string())?;
    let role = if node.is_cloud() { "cloud" } else { "edge" };
    let mut kubelet = host.command(cluster.program("kubelet")?)?;
    kubelet
        .arg("--config")
        .arg(cluster.path(format!("{node}/kubelet.yaml")));
    kubelet
        .arg("--kubeconfig")
        .arg(cluster.path(format!("{node}.kubeconfig")));
    kubelet
        .arg("--root-dir")
        .arg(cluster.path(format!("{node}/kubelet")));
    if minor < ONE_RUNTIME {
        kubelet.args(["--container-runtime", "remote"]);
    }
    kubelet.args([
        "--container-runtime-endpoint",
        &format!("unix://{}", socket(cluster, node).display()),
        "--hostname-override",
        &node.to_string(),
        "--node-ip",
        &node.address().to_string(),
        "--node-labels",
        &format!("node.kubernetes.io/role={role}"),
    ]);
    host.spawn("kubelet", &mut kubelet)
}

fn kubelet_config(cluster: &Cluster, node: Node) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": cluster.path_text("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": cluster.path_text(format!("{node}.crt")),
        "tlsPrivateKeyFile": cluster.path_text(format!("{node}.key")),
        "clusterDNS": [CLUSTER_DNS],
        "clusterDomain": "cluster.local",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{NAME}/{node}"),
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi"},
    })
}
