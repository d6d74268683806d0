//! Proxies of a cluster find each other by their Leases, with only the permissions in the
//! manifests.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::wait;
use serde_json::{Value, json};

use crate::cluster::{DEADLINE, apply, get, proxies_kubeconfig, with_server};
use crate::loopback::http_get;
use crate::proxy::Proxy;

const LISTED: &str = "proxy listed";
const GONE: &str = "proxy no longer listed";
const FIRST: &str = "127.0.0.1:17401";
const SECOND: &str = "proxy-2.example:7401";
const FIRST_LEASE: &str = "culvert-proxy-127-0-0-1-17401";
const SECOND_LEASE: &str = "culvert-proxy-proxy-2-example-7401";

#[test]
fn proxies_of_a_cluster_find_each_other_by_leases_that_nothing_foreign_disturbs() {
    with_server(|server| others(server));
}

fn others(server: &ApiServer) -> Result<()> {
    let kubeconfig = proxies_kubeconfig(server)?;
    let first = start(server, &kubeconfig, "proxy-1", FIRST)?;
    let lease = wait_for_lease(server, FIRST_LEASE, |_| Ok(()))?;
    let said = &lease["metadata"]["annotations"];
    ensure!(
        said["culvert.dev/peer-address"] == FIRST
            && said["culvert.dev/tunnels"] == "0"
            && lease["spec"]["leaseDurationSeconds"] == 40,
        "{lease}"
    );
    let mut second = start(server, &kubeconfig, "proxy-2", SECOND)?;
    first
        .process
        .wait_logged(LISTED, &[("peer.addr", SECOND)], DEADLINE)?;
    let instance = holder(&lease)?;
    second.process.wait_logged(
        LISTED,
        &[("peer.addr", FIRST), ("peer", &instance)],
        DEADLINE,
    )?;

    garbage_harms_nothing(server, &first)?;
    a_stale_lease_is_forgotten(server, &first)?;

    second.process.terminate(DEADLINE)?;
    first
        .process
        .wait_logged(GONE, &[("peer.addr", SECOND)], DEADLINE)?;
    let left = get(server, &["leases", "-n", "culvert-system"])?;
    ensure!(!left.to_string().contains(SECOND_LEASE), "{left}");
    let log = first.process.log();
    ensure!(
        !log.contains("answered 403") && first.process.logged(LISTED, &[]).len() == 2,
        "{log}"
    );
    Ok(())
}

/// A user who may write Leases in the namespace can write anything into one.
fn garbage_harms_nothing(server: &ApiServer, proxy: &Proxy) -> Result<()> {
    let labels = json!({"app.kubernetes.io/name": "culvert-proxy"});
    let spec = json!({"holderIdentity": "not an instance", "leaseDurationSeconds": 40});
    put_lease(server, "garbage", &labels, &json!({}), &spec)?;
    proxy.process.wait_logged(
        "Lease left out: it describes no proxy",
        &[("lease", "garbage"), ("reason", "holderIdentity")],
        DEADLINE,
    )?;
    // Without the label it is none of a proxy's, whatever it says.
    let address = json!({"culvert.dev/peer-address": "192.0.2.7:7401"});
    let spec = json!({"holderIdentity": "00", "leaseDurationSeconds": 40});
    put_lease(server, "leader", &json!({}), &address, &spec)
}

/// It is renewed in the future by its own word, and never again. While it lasts, the proxy is not
/// ready, because it reaches no other.
fn a_stale_lease_is_forgotten(server: &ApiServer, proxy: &Proxy) -> Result<()> {
    let labels = json!({"app.kubernetes.io/name": "culvert-proxy"});
    let address = "192.0.2.9:7401";
    let annotations = json!({"culvert.dev/peer-address": address, "culvert.dev/tunnels": "7"});
    let spec = json!({"holderIdentity": "00ff", "leaseDurationSeconds": 12,
        "renewTime": "2199-01-01T00:00:00.000000Z"});
    put_lease(server, "culvert-proxy-gone", &labels, &annotations, &spec)?;
    wait_for_contact(proxy, |page| page.contains(address))?;
    for message in [LISTED, GONE] {
        proxy
            .process
            .wait_logged(message, &[("peer.addr", address)], DEADLINE)?;
    }
    wait_for_contact(proxy, |page| !page.contains("peers:"))
}

/// Waits until the page of the proxy's readiness is as wanted.
fn wait_for_contact(proxy: &Proxy, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    wait::until("readiness", DEADLINE, || {
        let page = http_get(proxy.admin(), "/readyz")?;
        ensure!(is_wanted(&page), "{page}");
        Ok(())
    })
}

#[test]
fn a_lease_outlives_the_api_servers_outage_and_goes_to_the_next_run_of_its_proxy() {
    with_server(outage);
}

fn outage(server: &mut ApiServer) -> Result<()> {
    let kubeconfig = proxies_kubeconfig(server)?;
    let mut first = start(server, &kubeconfig, "proxy-1", FIRST)?;
    let second = start(server, &kubeconfig, "proxy-2", SECOND)?;
    first
        .process
        .wait_logged(LISTED, &[("peer.addr", SECOND)], DEADLINE)?;
    let before = wait_for_lease(server, FIRST_LEASE, |_| Ok(()))?;

    server.stop()?;
    for unknown in [
        "Leases of the other proxies not readable, keeping what is known of them",
        "this proxy's Lease is not renewed: other proxies may forget it",
    ] {
        first.process.wait_logged(unknown, &[], DEADLINE)?;
    }
    server.resume()?;
    for (name, lease) in [(FIRST_LEASE, Some(&before)), (SECOND_LEASE, None)] {
        wait_for_lease(server, name, |now| {
            ensure!(
                lease.is_none_or(|lease| lease["spec"]["renewTime"] != now["spec"]["renewTime"]),
                "not renewed"
            );
            Ok(())
        })?;
    }
    ensure!(
        first.process.logged(GONE, &[]).is_empty(),
        "{}",
        first.process.log()
    );

    // It cannot give its Lease back. Its successor has it at once.
    first.process.kill()?;
    first.start_again()?;
    let taken = wait_for_lease(server, FIRST_LEASE, |now| {
        ensure!(
            holder(now)? != holder(&before)?,
            "still the one that was killed"
        );
        Ok(())
    })?;
    ensure!(taken["spec"]["leaseTransitions"] == 1, "{taken}");
    let successor = holder(&taken)?;
    second
        .process
        .wait_logged(LISTED, &[("peer", &successor)], DEADLINE)?;
    second
        .process
        .wait_logged(GONE, &[("peer", &holder(&before)?)], DEADLINE)
}

fn start(server: &ApiServer, kubeconfig: &Path, name: &str, address: &str) -> Result<Proxy> {
    Proxy::start_as(server, kubeconfig, name, &["--peer-advertise", address])
}

/// Waits until there is this Lease and it is as wanted.
fn wait_for_lease(
    server: &ApiServer,
    name: &str,
    wanted: impl Fn(&Value) -> Result<()>,
) -> Result<Value> {
    wait::until(&format!("Lease {name}"), DEADLINE, || {
        let lease = get(server, &["lease", "-n", "culvert-system", name])?;
        wanted(&lease).with_context(|| lease.to_string())?;
        Ok(lease)
    })
}

fn holder(lease: &Value) -> Result<String> {
    let holder = lease["spec"]["holderIdentity"].as_str();
    Ok(holder.context("nobody holds it")?.to_owned())
}

fn put_lease(
    server: &ApiServer,
    name: &str,
    labels: &Value,
    annotations: &Value,
    spec: &Value,
) -> Result<()> {
    let metadata = json!({"namespace": "culvert-system", "name": name, "labels": labels,
        "annotations": annotations});
    apply(
        server,
        &json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": spec}),
    )
}
