//! A hub in a lab, on an edge without a cluster: its link is down.

use std::fs;

use anyhow::Result;
use serde_json::json;

use crate::process::Process;
use crate::self_signed::SelfSigned;
use crate::site::Site;
use crate::workspace;

/// Port of the hub's admin server on loopback.
pub const HUB_ADMIN: u16 = 7439;
/// Port that serves metrics alone.
pub const HUB_METRICS: u16 = 7438;

/// Nothing listens there.
const API_SERVER: &str = "https://127.0.0.1:6443";

/// Starts a hub with the certificate of a node.
///
/// # Errors
/// It cannot be started. That it serves is not checked here.
pub fn start(site: &Site) -> Result<Process> {
    let folder = site.file("hub");
    fs::create_dir_all(&folder)?;
    let subject = "/O=system:nodes/CN=system:node:edge";
    let node = SelfSigned::make(&folder, "node", subject, "extendedKeyUsage=clientAuth")?;
    let cluster = json!({"server": API_SERVER, "certificate-authority": node.certificate});
    let user = json!({"client-certificate": node.certificate, "client-key": node.key});
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "node",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "node", "user": user}],
        "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "node"}}],
    });
    let file = folder.join("kubeconfig");
    fs::write(&file, kubeconfig.to_string())?;
    let mut command = site.command(workspace::binary("culvert-hub"));
    command
        .args(["run", "--metrics-listen"])
        .arg(format!("[::]:{HUB_METRICS}"))
        .arg("--kubeconfig")
        .arg(file)
        .arg("--state-dir")
        .arg(folder.join("state"))
        .arg("--admin-socket")
        .arg(folder.join("admin.sock"));
    site.start_process("hub", &mut command)
}
