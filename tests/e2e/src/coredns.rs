//! The cluster's DNS: CoreDNS on two cloud nodes, as kubeadm installs it, behind the Service
//! `kube-dns`. Pods ask it.

use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::go_program::GoProgram;
use serde_json::{Value, json};

use crate::cluster::{CLOUDS, MASTER};
use crate::command::Running;
use crate::images;
use crate::world::World;

pub(super) const NAME: &str = "coredns";
pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const IMAGE: &str = "local/coredns:1";
/// The address of the Service. Kubelets give it to pods.
const ADDRESS: &str = "10.96.0.10";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Two pods are replaced one after the other.
const ROLLOUT: Duration = Duration::from_mins(6);

/// A DNS server for names that are neither the cluster's nor Culvert's.
pub(super) const RESOLVER: &str = include_str!("resolver.py");
/// Where it runs, in the place of the server that hosts ask.
pub(super) const UPSTREAM: &str = "203.0.113.1:5353";
/// What it answers: the master's address.
pub(super) const UPSTREAM_ANSWER: &str = "203.0.113.1";

/// What a Corefile has before anybody edits it.
pub(super) fn usual() -> String {
    format!(
        ".:53 {{
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }}
    forward . {UPSTREAM}
    cache 30
    loop
    reload
    loadbalance
}}
"
    )
}

/// Starts it. Returns the server that it asks for the names of others.
pub(super) fn start(world: &World) -> Result<Running> {
    let upstream = start_resolver(world, "upstream", UPSTREAM, UPSTREAM_ANSWER)?;
    images::load_static(world, IMAGE, &GoProgram::CoreDns.path())?;
    configure(world, &usual())?;
    Ok(upstream)
}

/// Starts a DNS server on the master that gives one answer to all names.
pub(super) fn start_resolver(
    world: &World,
    name: &str,
    listen: &str,
    answer: &str,
) -> Result<Running> {
    let (address, port) = listen.split_once(':').context("an address and a port")?;
    let script = world.file("resolver.py");
    std::fs::write(&script, RESOLVER).with_context(|| format!("write {}", script.display()))?;
    let mut python = world.cluster.enter(MASTER, "python3");
    python.arg(&script).args([address, port, answer]);
    let mut server = Running::start(world.folder(), name, &mut python)?;
    server.wait_for("listening", Duration::from_secs(20))?;
    Ok(server)
}

/// Whether it can answer names of the cluster: it reads EndpointSlices, which an API server has from
/// 1.21 on.
pub(super) fn knows_the_cluster(world: &World) -> bool {
    let slices = ["get", "--raw", "/apis/discovery.k8s.io/v1"];
    world.cluster.ask(&slices).is_ok()
}

/// Gives CoreDNS a Corefile, and waits until both pods have it.
pub(super) fn configure(world: &World, corefile: &str) -> Result<()> {
    let mut corefile = corefile.to_owned();
    if !knows_the_cluster(world) {
        corefile = without_kubernetes(&corefile);
    }
    let mut objects = permissions();
    objects.push(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(), "data": {"Corefile": corefile}
    }));
    objects.push(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": NAMESPACE},
        "spec": {
            "selector": labels(), "clusterIP": ADDRESS,
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
        }
    }));
    objects.push(deployment(&corefile));
    world.apply(NAME, &objects)?;
    world.wait_for_rollout_of(NAMESPACE, &format!("deployment/{NAME}"), ROLLOUT)
}

fn without_kubernetes(corefile: &str) -> String {
    let mut kept = String::new();
    let mut is_inside = false;
    for line in corefile.lines() {
        is_inside |= line.trim_start().starts_with("kubernetes ");
        if !is_inside {
            kept += &format!("{line}\n");
        }
        is_inside &= line.trim() != "}";
    }
    kept
}

fn metadata() -> Value {
    json!({"name": NAME, "namespace": NAMESPACE})
}

fn labels() -> Value {
    json!({"k8s-app": "kube-dns"})
}

fn permissions() -> Vec<Value> {
    let subject = json!({"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata()}),
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": "system:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
            ]
        }),
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "system:coredns"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "system:coredns"}, "subjects": [subject]
        }),
    ]
}

/// Its pods are replaced when the Corefile is another one. They have the ConfigMap of hosts too, if
/// there is one.
fn deployment(corefile: &str) -> Value {
    let nodes = &CLOUDS[..2];
    let node = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": nodes});
    let apart = json!({
        "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels()}
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(),
        "spec": {
            "replicas": nodes.len(), "selector": {"matchLabels": labels()},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": labels(), "annotations": {"culvert.test/corefile": corefile}},
                "spec": {
                    "serviceAccountName": NAME, "dnsPolicy": "Default", "tolerations": [{"operator": "Exists"}],
                    "terminationGracePeriodSeconds": 1,
                    "affinity": {
                        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
                        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
                    },
                    "volumes": [
                        {"name": "config", "configMap": {"name": NAME}},
                        {"name": "hosts", "configMap": {"name": "culvert-hosts", "optional": true}}
                    ],
                    "containers": [{
                        "name": NAME, "image": IMAGE, "imagePullPolicy": "Never", "args": ["-conf", "/etc/coredns/Corefile"],
                        "readinessProbe": {"httpGet": {"port": 8181, "path": "/ready"}, "periodSeconds": 1},
                        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}, {"name": "hosts", "mountPath": "/etc/edge"}]
                    }]
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plugin_goes() {
        let kept = without_kubernetes(&usual());
        assert!(
            !kept.contains("kubernetes") && !kept.contains("fallthrough"),
            "{kept}"
        );
        assert!(kept.contains("ready") && kept.contains(UPSTREAM), "{kept}");
        assert_eq!(kept.matches('{').count(), kept.matches('}').count());
    }
}
