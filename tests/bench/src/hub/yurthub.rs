//! YurtHub, the program of OpenYurt, as one of the ways: v1.7 with its chart's settings, without the
//! network interface that it would make. Clients ask it without TLS, as kubelet does there.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use culvert_lab::ports;
use culvert_lab::self_signed::SelfSigned;
use serde_json::json;

use super::cluster::{Cluster, NODE_NAME, write_target};
use super::sandbox::Sandbox;
use super::subject::Prepared;

/// The environment variable that names it.
pub(super) const PROGRAM: &str = "YURTHUB";

/// The program, if there is one.
pub(super) fn program() -> Option<PathBuf> {
    std::env::var_os(PROGRAM).map(PathBuf::from)
}

/// One that knows nothing.
pub(super) fn prepare(_programs: &Path, sandbox: &Sandbox, cluster: &Cluster) -> Result<Prepared> {
    let folder = sandbox.folder("yurthub")?;
    let root = folder.join("root");
    let pki = folder.join("root/pki");
    std::fs::create_dir_all(&pki)?;
    // No certificates are signed here, and this port is not asked.
    let serving = SelfSigned::make(
        &folder,
        "serving",
        &format!("/O=system:nodes/CN=system:node:{NODE_NAME}"),
        "subjectAltName=IP:127.0.0.1",
    )?;
    write_pair(&pki.join("yurthub-server-current.pem"), &serving)?;
    write_kubelets_files(sandbox, cluster)?;
    let ports = ports::free_in_row(5)?;
    let target = write_target(
        &folder.join("target.json"),
        &json!({ "address": format!("127.0.0.1:{ports}") }),
    )?;
    Ok(Prepared {
        name: "yurthub",
        program: program().with_context(|| format!("{PROGRAM} names no program"))?,
        args: vec![
            flag("v", 2),
            flag("bind-address", "127.0.0.1"),
            flag("bind-proxy-address", "127.0.0.1"),
            flag("proxy-port", ports),
            flag("proxy-secure-port", ports + 1),
            flag("serve-port", ports + 2),
            flag("multiplexer-port", ports + 3),
            flag("server-addr", cluster.url()?),
            flag("node-name", NODE_NAME),
            flag("node-ip", "127.0.0.1"),
            flag("nodepool-name", "bench"),
            flag("enable-node-pool", false),
            flag("bootstrap-mode", "kubeletcertificate"),
            flag("working-mode", "edge"),
            flag("enable-dummy-if", false),
            flag("namespace", "kube-system"),
            flag("root-dir", root.display()),
            flag(
                "disk-cache-path",
                format!("{}/", folder.join("cache").display()),
            ),
        ],
        target,
    })
}

fn flag(name: &str, value: impl fmt::Display) -> String {
    format!("--{name}={value}")
}

/// What it reads of kubelet's, at fixed paths.
fn write_kubelets_files(sandbox: &Sandbox, cluster: &Cluster) -> Result<()> {
    sandbox.own_folder(Path::new("/etc"))?;
    sandbox.own_folder(Path::new("/var/lib"))?;
    let etc = Path::new("/etc/kubernetes");
    let pki = Path::new("/var/lib/kubelet/pki");
    for folder in [&etc.join("pki"), pki] {
        std::fs::create_dir_all(folder)?;
    }
    cluster.copy_kubeconfig(&etc.join("kubelet.conf"))?;
    std::fs::copy(cluster.authority(), etc.join("pki/ca.crt"))?;
    write_pair(&pki.join("kubelet-client-current.pem"), &cluster.node)
}

/// A certificate and its key in one file.
fn write_pair(path: &Path, pair: &SelfSigned) -> Result<()> {
    let text = std::fs::read_to_string(&pair.certificate)? + &std::fs::read_to_string(&pair.key)?;
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
