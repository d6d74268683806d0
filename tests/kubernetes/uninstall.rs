//! Deleting the DaemonSet of redirectors ends what they installed.

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::host::Host;
use culvert_lab::{Lab, skip, wait, workspace};
use serde_json::json;

use crate::cluster::{DEADLINE, edge, node, proxies_kubeconfig, with_server};
use crate::proxy::Proxy;

#[test]
fn deleting_the_daemon_set_of_redirectors_uninstalls_and_deleting_a_pod_does_not() {
    if skip::may_make_labs() {
        with_server(|server| deleted(server));
    }
}

fn deleted(server: &ApiServer) -> Result<()> {
    edge(server, "edge-1", "10.0.3.7")?;
    node(server, "master-1", "192.0.2.10", &json!({}))?;
    let lab = Lab::start_test()?;
    let kubeconfig = proxies_kubeconfig(server)?;
    let flags = ["--service-range=10.96.0.0/16", "--pod-range=10.244.0.0/16"];
    let mut proxy = Proxy::start_as(server, &kubeconfig, "proxy", &flags)?;
    proxy.wait_for_node("edge-1", &["198.18.0.1"])?;

    // There never was one: as with units of systemd.
    end_of_a_redirector(&lab, &proxy)?;
    ensure!(is_installed(&lab)?, "nothing was deleted");

    let manifest = workspace::root().join("deploy/cloud/redirector.yaml");
    for cascade in ["--cascade=background", "--cascade=foreground"] {
        workspace::output(server.kubectl().args(["apply", "-f"]).arg(&manifest))?;
        wait_until_heard(&proxy, "Exists")?;
        end_of_a_redirector(&lab, &proxy)?;
        ensure!(is_installed(&lab)?, "only the pod was deleted");

        // No controller runs here, so a foreground deletion only begins.
        let delete = ["delete", "daemonset", "culvert-redirector", "--wait=false"];
        let namespace = ["--namespace", "culvert-system", cascade];
        workspace::output(server.kubectl().args(delete).args(namespace))?;
        wait_until_heard(&proxy, "Deleted")?;
        end_of_a_redirector(&lab, &proxy)?;
        ensure!(!is_installed(&lab)?, "{cascade}: the table is left");
    }
    Ok(())
}

/// Waits until this is what the proxy has heard last of the DaemonSet.
fn wait_until_heard(proxy: &Proxy, status: &str) -> Result<()> {
    wait::until(&format!("the DaemonSet is {status}"), DEADLINE, || {
        let heard = proxy.process.logged("DaemonSet of redirectors", &[]);
        let last = heard.last().context("nothing heard")?.field("status");
        ensure!(last == status, "{last}");
        Ok(())
    })
}

/// Starts a redirector as its pod does, waits until it steers, and terminates it.
fn end_of_a_redirector(lab: &Lab, proxy: &Proxy) -> Result<()> {
    let cloud = lab.site(Host::Cloud);
    let mut command = cloud.command(workspace::binary("culvert-redirector"));
    command.arg("--uninstall-with-daemon-set");
    command.arg("--cgroup").arg(cloud.cgroup());
    command.arg("--directory-socket");
    command.arg(proxy.directory_socket());
    for (flag, file) in [
        ("--state-dir", "redirector"),
        ("--admin-socket", "redirector.sock"),
        ("--handover-socket", "handover.sock"),
    ] {
        command.arg(flag).arg(cloud.file(file));
    }
    let mut redirector = cloud.start_process("culvert-redirector", &mut command)?;
    wait::until("the redirector steers", DEADLINE, || {
        redirector.check()?;
        ensure!(is_installed(lab)?, "no table");
        cloud.http_get(7419, "/readyz").map(drop)
    })
    .with_context(|| redirector.log())?;
    redirector.terminate(DEADLINE)
}

fn is_installed(lab: &Lab) -> Result<bool> {
    let cloud = lab.site(Host::Cloud);
    let tables = workspace::output(cloud.command("nft").args(["list", "tables"]))?;
    Ok(tables.contains("culvert"))
}
