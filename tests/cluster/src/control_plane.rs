//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as processes of the master.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use culvert_lab::{progress, wait, workspace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster::Cluster;
use crate::host::Host;
use crate::node::Node;

/// Half a minute is usual on two busy cores.
const READY: Duration = Duration::from_mins(6);

/// A graceful end waits for watches, which may take a minute: no longer than this.
const GRACEFUL: Duration = Duration::from_secs(20);
const ENDED: Duration = Duration::from_secs(60);

/// The name of its log and pid.
const APISERVER: &str = "kube-apiserver";

/// A leader that cannot renew its lease in time ends, and the 10 s that are the default pass on a
/// busy machine.
const LEADER_ELECTION: [&str; 2] = [
    "--leader-elect-lease-duration=60s",
    "--leader-elect-renew-deadline=50s",
];

/// The flag that has a default here and may be given again.
const ADDRESS_TYPES: &str = "--kubelet-preferred-address-types";

/// Starts all of them, kube-apiserver with these flags in addition to its own.
pub(crate) fn start(cluster: &Cluster, flags: &[String]) -> Result<()> {
    let master = Host::of(cluster, &Node::Master)?;
    start_etcd(cluster, &master)?;
    start_apiserver(cluster, &master, flags)?;
    start_controllers(cluster, &master)?;
    let mut scheduler = master.command(cluster.program("kube-scheduler")?)?;
    scheduler
        .arg("--kubeconfig")
        .arg(cluster.path("scheduler.kubeconfig"))
        .args(LEADER_ELECTION);
    master.spawn("kube-scheduler", &mut scheduler)
}

fn start_etcd(cluster: &Cluster, master: &Host) -> Result<()> {
    let mut etcd = master.command(cluster.program("etcd")?)?;
    etcd.arg("--data-dir").arg(cluster.on_disk("etcd"));
    etcd.args([
        "--listen-client-urls",
        ETCD,
        "--advertise-client-urls",
        ETCD,
    ]);
    etcd.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
    // A cut of power is not what is tested, and each write would wait for the disk.
    etcd.arg("--unsafe-no-fsync");
    master.spawn("etcd", &mut etcd)
}

fn start_controllers(cluster: &Cluster, master: &Host) -> Result<()> {
    let mut controllers = master.command(cluster.program("kube-controller-manager")?)?;
    controllers
        .arg("--kubeconfig")
        .arg(cluster.path("controllers.kubeconfig"));
    controllers
        .arg("--service-account-private-key-file")
        .arg(cluster.path("service-accounts.key"));
    controllers
        .arg("--root-ca-file")
        .arg(cluster.path("ca.crt"));
    controllers
        .arg("--cluster-signing-cert-file")
        .arg(cluster.path("ca.crt"));
    controllers
        .arg("--cluster-signing-key-file")
        .arg(cluster.path("ca.key"));
    controllers.args([
        "--use-service-account-credentials",
        "--authorization-always-allow-paths",
        "/healthz",
    ]);
    controllers.args(LEADER_ELECTION);
    master.spawn("kube-controller-manager", &mut controllers)
}

const ETCD: &str = "http://127.0.0.1:2379";

/// Ends kube-apiserver, and starts it with these flags in addition to its own.
pub(crate) fn restart_apiserver(cluster: &Cluster, flags: &[String]) -> Result<()> {
    let master = Host::of(cluster, &Node::Master)?;
    if let Some(pid) = master.pid(APISERVER) {
        let started = Instant::now();
        let mut signal = Signal::SIGTERM;
        wait::until("kube-apiserver ends", ENDED, || {
            match kill(Pid::from_raw(pid), signal) {
                Ok(()) | Err(nix::Error::ESRCH) => {}
                Err(error) => return Err(error).context("end kube-apiserver"),
            }
            if started.elapsed() > GRACEFUL {
                signal = Signal::SIGKILL;
            }
            ensure!(master.pid(APISERVER).is_none(), "it runs on");
            Ok(())
        })?;
    }
    start_apiserver(cluster, &master, flags)
}

fn start_apiserver(cluster: &Cluster, master: &Host, flags: &[String]) -> Result<()> {
    let mut apiserver = apiserver(cluster, master)?;
    if !flags.iter().any(|flag| flag.starts_with(ADDRESS_TYPES)) {
        // As kubeadm sets it.
        apiserver.args([ADDRESS_TYPES, "InternalIP,Hostname"]);
    }
    apiserver.args(flags);
    wait::until("kube-apiserver is ready", READY, || {
        // As a kubelet does. One before it may still have the port.
        if master.pid(APISERVER).is_none() {
            master.spawn(APISERVER, &mut apiserver)?;
        }
        let ready = workspace::output(cluster.kubectl()?.args(["get", "--raw", "/readyz"]));
        ready
            .map(drop)
            .with_context(|| progress::tail(&master.log(APISERVER), 5))
    })
}

/// kube-apiserver with its own flags.
fn apiserver(cluster: &Cluster, master: &Host) -> Result<Command> {
    let mut apiserver = master.command(cluster.program("kube-apiserver")?)?;
    apiserver.args([
        "--etcd-servers",
        ETCD,
        "--bind-address",
        "0.0.0.0",
        "--advertise-address",
        &Node::Master.address().to_string(),
        "--tls-cert-file",
        &cluster.path_text("apiserver.crt"),
        "--tls-private-key-file",
        &cluster.path_text("apiserver.key"),
        "--client-ca-file",
        &cluster.path_text("ca.crt"),
        "--service-account-key-file",
        &cluster.path_text("service-accounts.key"),
        "--service-account-signing-key-file",
        &cluster.path_text("service-accounts.key"),
        "--service-account-issuer",
        "https://kubernetes.default.svc",
        "--authorization-mode",
        "Node,RBAC",
        "--enable-admission-plugins",
        "NodeRestriction",
        "--allow-privileged",
        "--service-cluster-ip-range",
        "10.96.0.0/16",
        "--kubelet-certificate-authority",
        &cluster.path_text("ca.crt"),
        "--kubelet-client-certificate",
        &cluster.path_text("admin.crt"),
        "--kubelet-client-key",
        &cluster.path_text("admin.key"),
    ]);
    Ok(apiserver)
}
