//! The API server dials nodes by name and resolves the names with the redirector's DNS. This also
//! reaches nodes that share an address.

use anyhow::{Context, Result, ensure};
use culvert_lab::self_signed::{AUTHORITY, SelfSigned};
use culvert_lab::workspace;

use serde_json::{Value, json};

use crate::cluster::{EDGES, MASTER};
use crate::images::CURL;
use crate::world::{SHOP, World};
use crate::{copy, coredns, exec, forward, healing, logs, metrics, pods};

/// The address of a DNS server that stands for the one that the host asked before.
const ANOTHER: &str = "127.0.0.77";

/// The flag that makes kube-apiserver prefer names to addresses.
pub(super) const BY_NAME: &str = "--kubelet-preferred-address-types=Hostname,InternalIP";

/// Restarts kube-apiserver to dial nodes by name, unless it does so already.
pub(super) fn by_name(world: &World) -> Result<()> {
    let flags = [BY_NAME.to_owned()];
    if world.apiserver_has(&flags) {
        return Ok(());
    }
    world.restart_apiserver(&flags)
}

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim(
        "an API server that trusts another authority refuses the kubelet's certificate: it is the \
         kubelet's own",
        |world| {
            let other = SelfSigned::make(world.folder(), "other", "/CN=another", AUTHORITY)?;
            world.restart_apiserver(&[format!(
                "--kubelet-certificate-authority={}",
                other.certificate.display()
            )])?;
            let refused = world.shop(&["logs", &pods::name("edge-1")]);
            let error = refused.err().context("it took the certificate")?;
            ensure!(
                format!("{error:#}").contains("x509"),
                "it fails otherwise: {error:#}"
            );
            Ok(())
        },
    )?;
    world.claim("the API server is restarted to dial nodes by name", by_name)?;
    healing::apiserver(world)?;
    logs::prove(world, MASTER)?;
    patched(world)?;
    EDGES
        .into_iter()
        .try_for_each(|node| everything(world, node))
}

/// docs/dns.md: only kube-apiserver uses the resolver, by the patch that deploy/kubeadm prints and
/// kubeadm applies to its pod.
fn patched(world: &mut World) -> Result<()> {
    let claim = "a pod of the host's network with kube-apiserver's patch resolves edges by the \
        redirector, all else by another server";
    world.claim_once(claim, |world| {
        let listen = format!("{ANOTHER}:53");
        let server = coredns::start_resolver(world, "resolver", &listen, "127.0.0.1")?;
        let script = workspace::root()
            .join("deploy/kubeadm/kube-apiserver-names")
            .display()
            .to_string();
        let patch = world.cluster.on(
            MASTER,
            &["env", &format!("RESOLVERS={ANOTHER}"), "sh", &script],
        )?;
        let pod = world.file("asker.json");
        std::fs::write(&pod, asker().to_string())
            .with_context(|| format!("write {}", pod.display()))?;
        let pod = pod.display().to_string();
        let patched = [
            "patch",
            "--local",
            "--filename",
            &pod,
            "--type",
            "strategic",
            "--patch",
            &patch,
        ];
        let patched = world.cluster.json(&patched)?;
        ensure!(
            patched["spec"]["dnsConfig"]["nameservers"] == json!(["203.0.113.1", ANOTHER]),
            "{patched}"
        );
        world.apply("asker-patched", &[patched])?;
        world.wait_for_phase("asker", "Succeeded")?;
        let said = world.shop(&["logs", "asker"])?;
        ensure!(
            said.starts_with("198.18.") && said.contains("127.0.0.1 http://foreign.example"),
            "{said}"
        );
        let asked = server.said();
        ensure!(
            asked.contains("asked foreign.example") && !asked.contains("asked edge-1"),
            "{asked}"
        );
        Ok(())
    })
}

/// A pod that dials a node and another host by name.
fn asker() -> Value {
    let args = [
        "--silent",
        "--show-error",
        "--insecure",
        "--max-time",
        "20",
        "--output",
        "/dev/null",
        "--output",
        "/dev/null",
    ];
    let args = args
        .into_iter()
        .chain(["--write-out", "%{remote_ip} %{url_effective}\n"]);
    let args: Vec<&str> = args
        .chain(["https://edge-1:10250/", "http://foreign.example:7409/livez"])
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asker", "namespace": SHOP},
        "spec": {
            "nodeName": MASTER, "hostNetwork": true, "restartPolicy": "Never", "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "curl", "image": CURL, "imagePullPolicy": "Never", "args": args}]
        }
    })
}

/// Proves everything that kubectl does with a pod on a node.
pub(super) fn everything(world: &mut World, node: &str) -> Result<()> {
    logs::prove(world, node)?;
    exec::prove(world, node)?;
    forward::prove(world, node)?;
    copy::prove(world, node)?;
    metrics::prove_summary(world, node)
}
