//! `culvert-hub` as one of the ways.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use culvert_lab::{ports, workspace};
use serde_json::json;

use super::cluster::{Cluster, write_target};
use super::sandbox::Sandbox;
use super::subject::Prepared;

/// A hub that knows nothing, installed for a kubelet as an operator does.
pub(super) fn prepare(programs: &Path, sandbox: &Sandbox, cluster: &Cluster) -> Result<Prepared> {
    let folder = sandbox.folder("hub")?;
    let kubeconfig = cluster.copy_kubeconfig(&folder.join("kubelet.conf"))?;
    prepare_in(&folder, programs, &kubeconfig)
}

/// The same with the API server behind the long link.
pub(super) fn prepare_far(
    programs: &Path,
    sandbox: &Sandbox,
    cluster: &Cluster,
) -> Result<Prepared> {
    let folder = sandbox.folder("hub")?;
    let kubeconfig = cluster.copy_far_kubeconfig(&folder.join("kubelet.conf"))?;
    prepare_in(&folder, programs, &kubeconfig)
}

fn prepare_in(folder: &Path, programs: &Path, kubeconfig: &Path) -> Result<Prepared> {
    let program = programs.join("culvert-hub");
    let state = folder.join("state");

    let listen = ports::free_address()?.to_string();
    let flags = flags(&listen, &state, &folder.join("admin.sock"));
    install(&program, &flags, kubeconfig)?;
    let local = state.join("local");
    let target = write_target(
        &folder.join("target.json"),
        &json!({
            "address": listen,
            "authority": local.join("ca.crt"),
            "certificate": local.join("kubelet.crt"),
            "key": local.join("kubelet.key"),
        }),
    )?;
    Ok(Prepared {
        name: "culvert-hub",
        program,
        args: [&["run".to_owned()], &flags[..]].concat(),
        target,
    })
}

fn install(program: &Path, flags: &[String], kubeconfig: &Path) -> Result<()> {
    let mut install = Command::new(program);
    install.arg("install").args(flags);
    workspace::output(install.arg("--kubelet-kubeconfig").arg(kubeconfig)).map(drop)
}

fn flags(listen: &str, state: &Path, socket: &Path) -> [String; 8] {
    [
        "--listen",
        listen,
        "--admin-listen",
        "127.0.0.1:0",
        "--state-dir",
        &state.display().to_string(),
        "--admin-socket",
        &socket.display().to_string(),
    ]
    .map(str::to_owned)
}
