//! `culvert-hub` as one of the ways.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use culvert_lab::{ports, workspace};
use serde_json::json;

use super::cluster::{Cluster, write_target};
use super::place::Place;
use super::subject::Prepared;

/// A hub that knows nothing, installed for a kubelet as an operator does.
pub(super) fn prepare(programs: &Path, place: &Place, cluster: &Cluster) -> Result<Prepared> {
    let folder = place.folder("hub")?;
    let program = programs.join("culvert-hub");
    let state = folder.join("state");
    let socket = folder.join("admin.sock");
    let listen = ports::free_address()?.to_string();
    let args = |command: &str| {
        [
            command,
            "--listen",
            &listen,
            "--admin-listen",
            "127.0.0.1:0",
            "--state-dir",
            &state.display().to_string(),
            "--admin-socket",
            &socket.display().to_string(),
        ]
        .map(str::to_owned)
        .to_vec()
    };
    let kubeconfig = cluster.copy_kubeconfig(&folder.join("kubelet.conf"))?;
    let mut install = Command::new(&program);
    install.args(args("install"));
    workspace::output(install.arg("--kubelet-kubeconfig").arg(kubeconfig))?;
    let local = |name: &str| state.join("local").join(name);
    let target = write_target(
        &folder.join("target.json"),
        &json!({
            "address": listen,
            "authority": local("ca.crt"),
            "certificate": local("kubelet.crt"),
            "key": local("kubelet.key"),
        }),
    )?;
    Ok(Prepared {
        name: "culvert-hub",
        program,
        args: args("run"),
        target,
    })
}
