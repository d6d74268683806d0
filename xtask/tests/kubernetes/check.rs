//! `culvert-proxy check --kubernetes`: what a service account lacks, and a ConfigMap that is broken.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::kube::apiserver::ApiServer;
use xtask::{wait, workspace};

use crate::ports::proxy::{DEADLINE, Proxy, apply, server};

/// The verdict of a check, and all that it says.
fn checked(proxy: &Proxy, kubeconfig: &str, check: &str) -> Result<(String, String)> {
    let mut command = proxy.control(&["check", "--output", "json", "--redirector-admin", "127.0.0.1:1"]);
    let done = command.args(["--kubeconfig", kubeconfig]).output()?;
    let said: Value =
        serde_json::from_slice(&done.stdout).with_context(|| String::from_utf8_lossy(&done.stderr).into_owned())?;
    let found = said["checks"].as_array().into_iter().flatten().find(|finding| finding["check"] == check);
    let found = found.with_context(|| format!("no {check} in {said}"))?;
    Ok((found["verdict"].as_str().unwrap_or_default().to_owned(), found.to_string()))
}

/// A token for the proxy's service account, as kubelet would ask for it.
fn token(server: &ApiServer) -> Result<String> {
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let file = server.folder().join("token-request.json");
    std::fs::write(&file, request.to_string())?;
    let path = "/api/v1/namespaces/culvert-system/serviceaccounts/culvert-proxy/token";
    let answer = workspace::output(server.kubectl().args(["create", "--raw", path, "-f"]).arg(&file))?;
    let answer: Value = serde_json::from_str(&answer)?;
    Ok(answer["status"]["token"].as_str().context("no token")?.to_owned())
}

#[test]
fn a_check_names_the_rights_that_the_proxy_lacks() {
    let Some(server) = server() else { return };
    if let Err(error) = rights(&server) {
        panic!("{error:#}");
    }
}

fn rights(server: &ApiServer) -> Result<()> {
    let rbac = workspace::root().join("deploy/cloud/rbac.yaml");
    workspace::output(server.kubectl().args(["apply", "-f"]).arg(rbac))?;
    let token = token(server)?;
    let kubeconfig = server.kubeconfig_of("culvert-proxy", &token)?.display().to_string();
    let proxy = Proxy::start(server, "proxy", &[])?;
    wait::until("the manifests give all rights", DEADLINE, || {
        let (verdict, found) = checked(&proxy, &kubeconfig, "rbac")?;
        ensure!(verdict == "ok", "{found}");
        Ok(())
    })?;
    let (verdict, found) = checked(&proxy, &kubeconfig, "clock")?;
    ensure!(verdict == "ok" && found.contains("API server's clock"), "{found}");

    workspace::output(server.kubectl().args(["delete", "role", "-n", "kube-system", "culvert-proxy-events"]))?;
    wait::until("the lost rights are named", DEADLINE, || {
        let (verdict, found) = checked(&proxy, &kubeconfig, "rbac")?;
        let lacking =
            "not allowed: create events.events.k8s.io in kube-system; patch events.events.k8s.io in kube-system\"";
        ensure!(
            verdict == "failure" && found.contains(lacking) && found.contains("kubectl apply -k deploy/"),
            "{found}"
        );
        Ok(())
    })?;

    let metadata = json!({"namespace": "culvert-system", "name": "culvert-ports"});
    apply(server, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ports": "x"}}))?;
    let (verdict, found) = checked(&proxy, &kubeconfig, "ports")?;
    ensure!(verdict == "failure" && found.contains("culvert-system/culvert-ports"), "{found}");
    Ok(())
}
