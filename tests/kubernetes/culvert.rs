//! `culvert` with a kubeconfig. Nothing runs the pods here: what it says of proxies that it reaches by
//! exec is proved by `cargo xtask e2e`.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::workspace;
use serde_json::{Value, json};

use crate::cluster::{apply, node, pod, with_server};

const PROXY: &str = "culvert-proxy";

#[test]
fn proxies_that_exec_does_not_reach_are_rows_and_a_cluster_without_proxies_is_said() {
    with_server(|server| {
        let none = culvert(server, &["status"])?;
        let said = String::from_utf8_lossy(&none.stderr).into_owned();
        ensure!(none.status.code() == Some(1), "{none:?}");
        ensure!(
            said.contains("culvert-system") && said.contains(PROXY),
            "{said}"
        );
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"namespace": "culvert-system", "name": PROXY}});
        apply(server, &account)?;
        for (host, address) in [("cloud-1", "192.0.2.1"), ("cloud-2", "192.0.2.2")] {
            node(server, host, address, &json!({}))?;
            pod(
                server,
                "culvert-system",
                &format!("proxy-{host}"),
                PROXY,
                host,
            )?;
        }
        let asked = culvert(server, &["status", "--output", "json", "--timeout", "3s"])?;
        ensure!(asked.status.code() == Some(1), "{asked:?}");
        let status: Value = serde_json::from_slice(&asked.stdout)?;
        let rows = status["proxies"].as_array().context("no proxies")?;
        ensure!(rows.len() == 2, "{status:#}");
        for (row, host) in rows.iter().zip(["cloud-1", "cloud-2"]) {
            ensure!(
                row["host"] == host && row["state"] == "no answer",
                "{row:#}"
            );
            ensure!(row["error"].is_string(), "{row:#}");
        }
        a_bundle_says_what_it_lacks(server)
    });
}

/// What the API server has is in the archive, and what needs exec is listed with the reason.
fn a_bundle_says_what_it_lacks(server: &ApiServer) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bundle.tar.gz").display().to_string();
    let words = ["bundle", &file, "--output", "json", "--timeout", "3s"];
    let made = culvert(server, &words)?;
    ensure!(made.status.success(), "{made:?}");
    let written: Value = serde_json::from_slice(&made.stdout)?;
    let items = written["items"].as_array().context("no items")?;
    for path in [
        "status.json",
        "cluster/events.json",
        "cluster/daemonsets.json",
    ] {
        ensure!(!is_missing(items, path)?, "{path}: {written:#}");
    }
    for host in ["cloud-1", "cloud-2"] {
        ensure!(
            is_missing(items, &format!("hosts/{host}/check.json"))?,
            "{written:#}"
        );
    }
    Ok(())
}

/// Whether a part that the answer lists is not in the archive.
fn is_missing(items: &[Value], path: &str) -> Result<bool> {
    let item = items.iter().find(|item| item["path"] == path);
    let item = item.with_context(|| format!("no {path}: {items:#?}"))?;
    Ok(item["error"].is_string())
}

fn culvert(server: &ApiServer, words: &[&str]) -> Result<Output> {
    let mut command = Command::new(workspace::binary("culvert"));
    command.args(words).arg("--kubeconfig");
    Ok(command.arg(server.kubeconfig()).output()?)
}
