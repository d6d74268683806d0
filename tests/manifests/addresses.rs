//! Addresses that kubelet gives pods: of IPv6 they are without brackets.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;
use serde_json::Value;

use crate::committed;
use crate::objects::documents;
use crate::placement::pods;

const NODE_IP: &str = "fd00::1";

#[test]
fn programs_take_what_manifests_pass_in_a_cluster_of_ipv6() -> Result<()> {
    let mut lines = BTreeSet::new();
    for path in committed() {
        for document in documents(&fs::read_to_string(&path)?)? {
            for pod in pods(&document) {
                for container in pod["containers"].as_array().context("containers")? {
                    lines.extend(command_line(container)?);
                }
            }
        }
    }
    ensure!(lines.len() > 3, "{lines:?}");
    let passed = lines.iter().flatten();
    ensure!(
        passed.filter(|arg| arg.contains(NODE_IP)).count() > 2,
        "{lines:?}"
    );
    for line in &lines {
        takes(line)?;
    }
    // The way of asking finds what is wrong.
    let wrong = ["culvert-proxy", "--metrics-listen=[fd00::1"].map(str::to_owned);
    ensure!(takes(&wrong).is_err(), "it takes {wrong:?}");
    Ok(())
}

/// The program of a container with its arguments, and the flags that its variables stand for.
/// `None` if it has no arguments.
fn command_line(container: &Value) -> Result<Option<Vec<String>>> {
    let image = container["image"].as_str().context("an image")?;
    let (program, _) = image.split_once(':').context("a version")?;
    let mut line = vec![program.to_owned()];
    for arg in container["args"].as_array().into_iter().flatten() {
        line.push(
            arg.as_str()
                .context("a text")?
                .replace("$(NODE_IP)", NODE_IP),
        );
    }
    for variable in container["env"].as_array().into_iter().flatten() {
        let name = variable["name"].as_str().context("a name")?;
        let is_address = variable["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP";
        if let Some(flag) = name.strip_prefix("CULVERT_")
            && is_address
        {
            let flag = flag.to_lowercase().replace('_', "-");
            line.push(format!("--{flag}={NODE_IP}"));
        }
    }
    Ok((line.len() > 1).then_some(line))
}

/// The program reads its arguments before it prints the help that the last of them asks for.
fn takes(line: &[String]) -> Result<()> {
    let mut command = Command::new(workspace::binary(&line[0]));
    command.args(&line[1..]).arg("--help");
    workspace::output(&mut command).map(drop)
}
