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
        Ok(())
    });
}

fn culvert(server: &ApiServer, words: &[&str]) -> Result<Output> {
    let mut command = Command::new(workspace::binary("culvert"));
    command.args(words).arg("--kubeconfig");
    Ok(command.arg(server.kubeconfig()).output()?)
}
