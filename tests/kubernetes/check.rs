//! `culvert check`: missing permissions of a service account, and an invalid
//! ConfigMap.

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use crate::cluster::{DEADLINE, config_map, node, proxies_kubeconfig, with_server};
use crate::proxy::Proxy;

/// The verdict of a check, and its text.
fn checked(proxy: &Proxy, kubeconfig: &str, check: &str) -> Result<(String, String)> {
    checked_with(proxy, kubeconfig, check, &[])
}

/// The same where the proxy has these variables.
fn checked_with(
    proxy: &Proxy,
    kubeconfig: &str,
    check: &str,
    variables: &[(&str, &str)],
) -> Result<(String, String)> {
    let words = [
        "check",
        "--output",
        "json",
        "--",
        "--kubeconfig",
        kubeconfig,
    ];
    let mut command = proxy.control(&words);
    command.env("CULVERT_ADMIN_LISTEN", proxy.admin().to_string());
    command.envs(variables.iter().copied());
    let done = command.output()?;
    let said: Value = serde_json::from_slice(&done.stdout)
        .with_context(|| String::from_utf8_lossy(&done.stderr).into_owned())?;
    let found = said["hosts"][0]["checks"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|finding| finding["check"] == check);
    let found = found.with_context(|| format!("no {check} in {said}"))?;
    Ok((
        found["verdict"].as_str().unwrap_or_default().to_owned(),
        found.to_string(),
    ))
}

#[test]
fn a_check_names_the_rights_that_the_proxy_lacks() {
    with_server(|server| rights(server));
}

fn rights(server: &ApiServer) -> Result<()> {
    let kubeconfig = proxies_kubeconfig(server)?.display().to_string();
    let proxy = Proxy::start(server, "proxy", &[])?;
    wait::until("the manifests give all rights", DEADLINE, || {
        let (verdict, found) = checked(&proxy, &kubeconfig, "rbac")?;
        ensure!(verdict == "ok", "{found}");
        Ok(())
    })?;
    a_view_needs_one_more(server, &proxy, &kubeconfig)?;
    let (verdict, found) = checked(&proxy, &kubeconfig, "clock")?;
    ensure!(
        verdict == "ok" && found.contains("API server's clock"),
        "{found}"
    );

    workspace::output(server.kubectl().args([
        "delete",
        "role",
        "-n",
        "kube-system",
        "culvert-proxy-events",
    ]))?;
    wait::until("the lost rights are named", DEADLINE, || {
        let (verdict, found) = checked(&proxy, &kubeconfig, "rbac")?;
        let lacking = "not allowed: create events.events.k8s.io in kube-system; patch \
            events.events.k8s.io in kube-system\"";
        ensure!(
            verdict == "failure"
                && found.contains(lacking)
                && found.contains("kubectl apply -k deploy/"),
            "{found}"
        );
        Ok(())
    })?;

    let (verdict, found) = checked(&proxy, &kubeconfig, "claims")?;
    ensure!(
        verdict == "warning" && found.contains("no --edge-range is given"),
        "{found}"
    );
    node(
        server,
        "edge-old",
        "10.0.3.9",
        &json!({"openyurt.io/is-edge-worker": "true"}),
    )?;
    let (verdict, found) = checked(&proxy, &kubeconfig, "edge label")?;
    ensure!(
        verdict == "warning" && found.contains("not for this one: edge-old"),
        "{found}"
    );
    let (verdict, found) = checked(&proxy, &kubeconfig, "cloud label")?;
    ensure!(verdict == "ok", "{found}");
    let former = json!({"culvert.dev/cloud": ""});
    node(server, "worker-9", "192.0.2.19", &former)?;
    let (verdict, found) = checked(&proxy, &kubeconfig, "cloud label")?;
    ensure!(
        verdict == "warning" && found.contains("worker-9"),
        "{found}"
    );

    config_map(
        server,
        "culvert-system",
        "culvert-ports",
        &json!({"ports": "x"}),
    )?;
    let (verdict, found) = checked(&proxy, &kubeconfig, "ports")?;
    ensure!(
        verdict == "failure" && found.contains("culvert-system/culvert-ports"),
        "{found}"
    );
    Ok(())
}

fn a_view_needs_one_more(server: &ApiServer, proxy: &Proxy, kubeconfig: &str) -> Result<()> {
    let with_view = [("CULVERT_VIEW_LISTEN", "192.0.2.1")];
    let (verdict, found) = checked_with(proxy, kubeconfig, "rbac", &with_view)?;
    let lacking = "create subjectaccessreviews.authorization.k8s.io";
    ensure!(verdict == "failure" && found.contains(lacking), "{found}");
    let rbac = workspace::root().join("deploy/components/view/rbac.yaml");
    workspace::output(server.kubectl().args(["apply", "-f"]).arg(rbac))?;
    wait::until("the component gives it", DEADLINE, || {
        let (verdict, found) = checked_with(proxy, kubeconfig, "rbac", &with_view)?;
        ensure!(verdict == "ok", "{found}");
        Ok(())
    })
}
