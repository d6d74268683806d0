//! The egress selector instead of the redirector: kube-apiserver uses the proxy's CONNECT socket
//! for every connection to the cluster, and no hook is needed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use crate::cluster::{EDGES, MASTER};
use crate::command::Running;
use crate::names::{self, BY_NAME};
use crate::world::{CULVERT, SHOP, World};
use crate::{culvert, exec, forward, install, logs, ports, uninstall};

/// A webhook that refuses labelled ConfigMaps with its own message.
const WEBHOOK: &str = include_str!("webhook.py");
const WEBHOOK_PORT: u16 = 9443;
/// `--connect-listen` of the overlay.
const CONNECT_PORT: u16 = 7402;
/// Time for the programs of an update to start.
const DEADLINE: Duration = Duration::from_secs(60);

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    without_steering(world)?;
    let config = workspace::root()
        .join("deploy/components/egress-selector/egress-selector-configuration.yaml");
    world.claim(
        "kube-apiserver starts with the egress selector's file of deploy/",
        |world| restart_with(world, &config),
    )?;
    install::wait_for_tunnels(world)?;
    check_without_bad_ports(world)?;
    for node in EDGES {
        names::everything(world, node)?;
    }
    logs::prove(world, MASTER)?;
    webhook(world)?;
    count_dials(world, "uds")?;
    two_proxies(world)?;
    by_tcp(world)
}

/// Restarts kube-apiserver with the file of an egress selector. It finds the webhook's Service by its
/// endpoints, as on hosts without kube-proxy's tables.
fn restart_with(world: &World, selector: &Path) -> Result<()> {
    world.restart_apiserver(&[
        format!("--egress-selector-config-file={}", selector.display()),
        BY_NAME.to_owned(),
        "--enable-aggregator-routing=true".to_owned(),
    ])
}

fn without_steering(world: &mut World) -> Result<()> {
    world.claim("the egress selector's overlay is applied", |world| {
        world.apply_overlay("e2e/egress-selector")?;
        world.wait_for_rollout("culvert-proxy")
    })?;
    world.claim(
        "hooks, table and routes are gone: the egress selector is the only way, the redirector \
         answers names",
        |world| {
            world.wait_for_rollout("culvert-redirector")?;
            wait::until("nothing steers", DEADLINE, || {
                uninstall::nothing_left(world)
            })?;
            // Newer API servers resolve a node's name before some requests, although they send the
            // name to the proxy.
            for node in EDGES {
                let found = world.cluster.on(MASTER, &["getent", "ahostsv4", node])?;
                ensure!(found.starts_with("198.18."), "{node}: {found}");
            }
            Ok(())
        },
    )
}

fn check_without_bad_ports(world: &mut World) -> Result<()> {
    world.claim(
        "without its bad ports, which the new proxies have reported again, culvert check \
         finds nothing wrong",
        |world| {
            ports::set(world, &json!({"ports": null}))?;
            let said = culvert::found(world)?;
            ensure!(
                said.contains("nothing is steered, as --mechanism none wants it"),
                "{said}"
            );
            Ok(())
        },
    )
}

/// As konnectivity's own end-to-end test counts connections of agents to servers.
fn two_proxies(world: &mut World) -> Result<()> {
    let claim = "each agent has tunnels to just two of the proxies, however many there are";
    world.claim(claim, |world| {
        wait::until("tunnels to two proxies", DEADLINE, || {
            let holders = culvert::holders(world, &EDGES)?;
            ensure!(
                holders.iter().all(|proxies| proxies.len() == 2),
                "{EDGES:?} have tunnels to {holders:?}"
            );
            Ok(())
        })
    })
}

/// Proves by kube-apiserver's own metrics that it dials through the egress selector.
fn count_dials(world: &mut World, transport: &str) -> Result<()> {
    let claim = format!(
        "kube-apiserver's own metrics count its dials by CONNECT over {transport}, and none that \
         failed"
    );
    world.claim(&claim, |world| {
        let metrics = world.cluster.ask(&["get", "--raw", "/metrics"])?;
        let done = dialer_metrics(&metrics, "dial_duration_seconds_count");
        let ours = [
            "protocol=\"http_connect\"".to_owned(),
            format!("transport=\"{transport}\""),
        ];
        let counted = done
            .iter()
            .any(|line| ours.iter().all(|label| line.contains(label)));
        ensure!(counted, "it counts {done:?}");
        let failed = dialer_metrics(&metrics, "dial_failure_count");
        ensure!(failed.is_empty(), "{failed:?}");
        Ok(())
    })
}

/// The lines of a metric of kube-apiserver's egress dialer.
fn dialer_metrics<'page>(metrics: &'page str, name: &str) -> Vec<&'page str> {
    let name = format!("apiserver_egress_dialer_{name}");
    let lines = metrics.lines();
    lines.filter(|line| line.starts_with(&name)).collect()
}

/// The same by TCP: kube-apiserver shows a certificate at the proxies' CONNECT port.
fn by_tcp(world: &mut World) -> Result<()> {
    world.claim(
        "kube-apiserver starts with an egress selector of the CONNECT port and a client certificate",
        |world| {
            let file = connect_port(world)?;
            restart_with(world, &file)
        },
    )?;
    install::wait_for_tunnels(world)?;
    EDGES
        .into_iter()
        .try_for_each(|node| logs::prove(world, node))?;
    exec::prove(world, "edge-2")?;
    forward::prove(world, "edge-2")?;
    logs::prove(world, MASTER)?;
    webhook(world)?;
    count_dials(world, "tcp")
}

/// Opens the CONNECT port of the proxies, and writes the file of an egress selector for it.
fn connect_port(world: &World) -> Result<PathBuf> {
    let SelfSigned { certificate, key } = SelfSigned::make(
        world.folder(),
        "egress-client",
        "/CN=kube-apiserver",
        // It is its own authority, but rustls takes no certificate of an authority from a client.
        "basicConstraints=critical,CA:FALSE",
    )?;
    let authority = std::fs::read_to_string(&certificate)?;
    world.apply("connect-clients", &[json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "connect-clients", "namespace": CULVERT},
        "data": {"ca.crt": authority}
    })])?;
    world.apply_overlay("e2e/egress-port")?;
    world.wait_for_rollout("culvert-proxy")?;
    let ca = authority_of_proxies(world)?;
    let address = world.cluster.variable_of(MASTER, "ADDRESS")?;
    let tls = json!({"caBundle": ca, "clientCert": certificate, "clientKey": key});
    write_selector(world, &format!("https://{address}:{CONNECT_PORT}"), &tls)
}

/// Writes the file of an egress selector for a CONNECT port.
fn write_selector(world: &World, url: &str, tls: &Value) -> Result<PathBuf> {
    let file = world.file("egress-port.json");
    let connection = json!({
        "proxyProtocol": "HTTPConnect",
        "transport": {"tcp": {"url": url, "tlsConfig": tls}}
    });
    let configuration = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}]
    });
    std::fs::write(&file, configuration.to_string())?;
    Ok(file)
}

/// Proves that a webhook on a cloud node still works.
/// The file of the authority that signs the proxies' certificates.
fn authority_of_proxies(world: &World) -> Result<PathBuf> {
    let ask = ["get", "configmap", "culvert-agent", "--output"];
    let own = world.culvert(&[&ask[..], &["go-template={{index .data \"ca.crt\"}}"]].concat())?;
    let ca = world.file("egress-ca.crt");
    std::fs::write(&ca, own)?;
    Ok(ca)
}

fn webhook(world: &mut World) -> Result<()> {
    world.claim(
        "a webhook on a cloud node is asked, through the proxy",
        |world| {
            let subject = "/CN=webhook";
            let name = "subjectAltName=DNS:webhook.shop.svc";
            let identity = SelfSigned::make(world.folder(), "webhook", subject, name)?;
            let mut server = start_webhook(world, &identity)?;
            configure(world, &identity.certificate)?;
            wait::until("the webhook's refusal", DEADLINE, || {
                server.check()?;
                let made = world.shop(&["create", "configmap", "forbidden", "--dry-run=server"]);
                let error = made.err().context("nobody refused")?;
                ensure!(
                    format!("{error:#}").contains("the webhook was asked"),
                    "{error:#}"
                );
                Ok(())
            })
        },
    )
}

fn start_webhook(world: &World, identity: &SelfSigned) -> Result<Running> {
    let script = world.file("webhook.py");
    std::fs::write(&script, WEBHOOK).with_context(|| format!("write {}", script.display()))?;
    let mut python = world.cluster.enter(MASTER, "python3");
    python
        .arg(&script)
        .args([&identity.certificate, &identity.key])
        .arg(WEBHOOK_PORT.to_string());
    let mut server = Running::start(world.folder(), "webhook", &mut python)?;
    server.wait_for("listening", Duration::from_secs(20))?;
    Ok(server)
}

/// Creates a Service with endpoints on the master's own address, and the webhook for ConfigMaps of
/// one namespace.
fn configure(world: &World, certificate: &Path) -> Result<()> {
    let bundle = workspace::output(
        std::process::Command::new("base64")
            .args(["--wrap", "0"])
            .arg(certificate),
    )?;
    let address =
        world.cluster.json(&["get", "node", MASTER])?["status"]["addresses"][0]["address"].clone();
    world
        .cluster
        .ask(&["label", "namespace", SHOP, "--overwrite", "e2e=webhook"])?;
    let port = json!([{"name": "https", "port": 443, "targetPort": WEBHOOK_PORT}]);
    world.apply("webhook", &[
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "webhook", "namespace": SHOP}, "spec": {"ports": port}}),
        json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "webhook", "namespace": SHOP},
            "subsets": [{"addresses": [{"ip": address}], "ports": [{"name": "https", "port": WEBHOOK_PORT}]}]
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "e2e"},
            "webhooks": [{
                "name": "webhook.shop.svc.cluster.local", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
                "timeoutSeconds": 5, "namespaceSelector": {"matchLabels": {"e2e": "webhook"}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
                "clientConfig": {"caBundle": bundle, "service": {"name": "webhook", "namespace": SHOP}}
            }]
        }),
    ])
}
