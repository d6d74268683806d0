//! `culvert migrate`: what other tunnels have in a real API server, and what becomes of it.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::workspace;
use serde_json::{Value, json};

use crate::cluster::{apply, get, with_server};
use crate::proxy::program;

/// Applies the manifests of another tunnel, as the unit tests read them.
fn install(server: &ApiServer, tunnel: &str) -> Result<()> {
    let folder = workspace::root().join("cli/migrate/tests/predecessors");
    let manifests = folder.join(format!("{tunnel}.yaml"));
    workspace::output(server.kubectl().args(["apply", "-f"]).arg(manifests)).map(drop)
}

/// What the program prints on both outputs.
fn migrate(server: &ApiServer, tunnel: &str, further: &[&str]) -> Result<[String; 2]> {
    let mut command: Command = program("culvert");
    command.args(["migrate", "--from", tunnel, "--kubeconfig"]);
    let done = command.arg(server.kubeconfig()).args(further).output()?;
    let text = |bytes| String::from_utf8(bytes).context("its output is text");
    let printed = text(done.stdout)?;
    let said = text(done.stderr)?;
    ensure!(done.status.success(), "{said}");
    Ok([printed, said])
}

#[test]
fn what_a_cluster_has_of_each_tunnel_becomes_manifests_that_the_api_server_accepts() {
    with_server(|server| accepted(server));
}

fn accepted(server: &ApiServer) -> Result<()> {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "edge-system"}});
    apply(server, &namespace)?;
    for (tunnel, expected) in [
        ("yurttunnel", "- localhost-ports=10266,10267"),
        ("superedge", "mode.cloud.tcp.0.0.0.0:6443 - equal: "),
        ("konnectivity", "--advertise=198.51.100.7:7400"),
    ] {
        install(server, tunnel)?;
        let [printed, said] = migrate(server, tunnel, &["--dry-run"])?;
        ensure!(
            printed.contains(expected) && !printed.contains("hush"),
            "{printed}"
        );
        ensure!(said.contains("the API server accepts "), "{said}");
        let again = migrate(server, tunnel, &[])?;
        ensure!(again[0] == printed, "{printed}\n---\n{}", again[0]);
    }
    let made = get(server, &["daemonsets,configmaps", "-n", "culvert-system"])?;
    let items = made["items"].as_array().map_or(0, Vec::len);
    // The API server makes kube-root-ca.crt; a bare one has no controller for it.
    ensure!(items == 0, "a dry run made something: {made}");
    Ok(())
}

#[test]
fn the_printed_kustomization_is_applied_as_it_stands() {
    with_server(|server| applied(server));
}

fn applied(server: &ApiServer) -> Result<()> {
    install(server, "yurttunnel")?;
    // kustomize takes only relative paths.
    let folder = workspace::root().join(format!("target/migrated-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let done = (|| {
        let [printed, _] = migrate(server, "yurttunnel", &["--deploy", "../../deploy"])?;
        std::fs::write(folder.join("kustomization.yaml"), printed)?;
        workspace::output(server.kubectl().args(["apply", "-k"]).arg(&folder))
    })();
    std::fs::remove_dir_all(&folder)?;
    done?;
    let ports = get(
        server,
        &["configmap", "-n", "culvert-system", "culvert-ports"],
    )?;
    ensure!(
        ports["data"]["ports"] == "7429,9051,9100,9445,10250,10255",
        "{ports}"
    );
    let args = |name: &str| -> Result<Value> {
        let set = get(server, &["daemonset", "-n", "culvert-system", name])?;
        Ok(set["spec"]["template"]["spec"]["containers"][0]["args"].clone())
    };
    let proxy = args("culvert-proxy")?;
    let agent = args("culvert-agent")?;
    ensure!(
        proxy.to_string().contains("--advertise=198.51.100.7:30740"),
        "{proxy}"
    );
    ensure!(ports["data"]["localhost-ports"] == "10266,10267", "{ports}");
    ensure!(!agent.to_string().contains("port="), "{agent}");
    Ok(())
}

#[test]
fn a_cluster_without_the_tunnel_is_told_by_the_names_that_were_looked_for() {
    with_server(|server| {
        let said = migrate(server, "yurttunnel", &[])
            .expect_err("there is none")
            .to_string();
        ensure!(
            said.contains("nothing of YurtTunnel")
                && said.contains("Deployment kube-system/yurt-tunnel-server")
                && said.contains("give their manifests as files"),
            "{said}"
        );
        Ok(())
    });
}
