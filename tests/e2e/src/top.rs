//! The real metrics-server by the manifests of its own module, and `kubectl top`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::go_program::{self, GoProgram};
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::wait;
use serde_json::{Value, json};

use crate::cluster::{CLOUDS, EDGES, MASTER};
use crate::world::{SHOP, World};
use crate::{images, pods};

const NAME: &str = "metrics-server";
const NAMESPACE: &str = "kube-system";
const IMAGE: &str = "local/metrics-server";
/// The image of its manifests.
const ITS_IMAGE: &str = "gcr.io/k8s-staging-metrics-server/metrics-server";
/// The name in the certificate by which kube-apiserver passes on who asks, as kubeadm has it.
const FRONT_PROXY: &str = "front-proxy-client";
/// It is ready after 20 s at the earliest.
const ROLLOUT: Duration = Duration::from_secs(120);
/// Time for two rounds of 15 s, of which a difference is a rate, and for a node that does not
/// answer.
const MEASURED: Duration = Duration::from_secs(90);

/// The flags of kube-apiserver that an aggregated API needs. kubeadm sets them too.
pub(super) fn aggregation_flags(folder: &Path) -> Result<Vec<String>> {
    let subject = format!("/CN={FRONT_PROXY}");
    let SelfSigned { certificate, key } =
        SelfSigned::make(folder, FRONT_PROXY, &subject, "extendedKeyUsage=clientAuth")?;
    let certificate = certificate.display();
    let key = key.display();
    Ok(vec![
        format!("--proxy-client-cert-file={certificate}"),
        format!("--proxy-client-key-file={key}"),
        format!("--requestheader-client-ca-file={certificate}"),
        format!("--requestheader-allowed-names={FRONT_PROXY}"),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
    ])
}

/// Proves what it lacks before Culvert.
pub(super) fn before(world: &mut World) -> Result<()> {
    world.claim(
        "before: the real metrics-server measures every cloud node and no edge node",
        |world| {
            apply(world)?;
            // It stores a round when each node has answered or had its time.
            let measured = wait_for_nodes(world, &CLOUDS)?;
            let edge = EDGES.iter().find(|node| measured.contains(**node));
            ensure!(edge.is_none(), "it measures {measured:?}");
            Ok(())
        },
    )
}

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    let before = pod(world)?;
    if before.is_empty() {
        apply(world)?;
    }
    world.claim(
        "the same metrics-server, by its own manifests, measures edge-1 too, by its InternalIP; of \
         the two nodes with one address it measures neither",
        |world| {
            let measured = wait_for_nodes(world, &[&CLOUDS[..], &["edge-1"]].concat())?;
            ensure!(
                !measured.contains("edge-2") && !measured.contains("edge-3"),
                "it measures {measured:?}"
            );
            top_pod(world, "edge-1")?;
            let now = pod(world)?;
            ensure!(before.is_empty() || now == before, "{before} became {now}");
            Ok(())
        },
    )?;
    world.claim(
        "with --kubelet-preferred-address-types=Hostname and a CoreDNS that asks the redirector, \
         kubectl top node lists all six nodes, and kubectl top pod the pod of each edge node",
        |world| {
            by_name(world)?;
            wait_for_nodes(world, &[CLOUDS, EDGES].concat())?;
            EDGES.iter().try_for_each(|node| top_pod(world, node))
        },
    )?;
    // Without its pod, the API that it stands for would hold up the deletion of namespaces.
    let folder = world.file(NAME).display().to_string();
    world
        .cluster
        .ask(&["delete", "--wait=false", "--kustomize", &folder])
        .map(drop)
}

/// Applies its manifests. Only the image, and the node that has it, are others.
pub(super) fn apply(world: &World) -> Result<()> {
    let image = format!("{IMAGE}:1");
    images::load_static(world, &image, &GoProgram::MetricsServer.path())?;
    let folder = world.file(NAME);
    let base = folder.join("base");
    std::fs::create_dir_all(&base)?;
    let manifests = go_program::metrics_server_manifests();
    for file in
        std::fs::read_dir(&manifests).with_context(|| format!("read {}", manifests.display()))?
    {
        let file = file?;
        std::fs::copy(file.path(), base.join(file.file_name()))?;
    }
    std::fs::write(
        folder.join("kustomization.yaml"),
        kustomization().to_string(),
    )?;
    let folder = folder.display().to_string();
    world.cluster.ask(&["apply", "--kustomize", &folder])?;
    rollout(world)
}

fn kustomization() -> Value {
    let patch = json!([
        {"op": "replace", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "Never"},
        {"op": "add", "path": "/spec/template/spec/nodeSelector/kubernetes.io~1hostname", "value": MASTER}
    ]);
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["base"],
        "images": [{"name": ITS_IMAGE, "newName": IMAGE, "newTag": "1"}],
        "patches": [{"target": {"kind": "Deployment"}, "patch": patch.to_string()}]
    })
}

/// docs/install-kubernetes.md: the setting where nodes share an address.
fn by_name(world: &World) -> Result<()> {
    let template = world
        .cluster
        .json(&["--namespace", NAMESPACE, "get", "deployment", NAME])?["spec"]["template"]["spec"]
        .clone();
    let args = template["containers"][0]["args"].as_array();
    let others = args.context("it has no arguments")?.iter().filter(|flag| {
        !flag
            .to_string()
            .contains("--kubelet-preferred-address-types")
    });
    let own = json!("--kubelet-preferred-address-types=Hostname");
    let args: Vec<Value> = others.cloned().chain([own]).collect();
    let patch = json!({"spec": {"template": {"spec": {
        "containers": [{"name": NAME, "args": args}]
    }}}});
    let patch = patch.to_string();
    let line = ["patch", "deployment", NAME, "--patch", &patch];
    world
        .cluster
        .ask(&[&["--namespace", NAMESPACE], &line[..]].concat())?;
    rollout(world)
}

fn rollout(world: &World) -> Result<()> {
    world.wait_for_rollout_of(NAMESPACE, &format!("deployment/{NAME}"), ROLLOUT)
}

/// Its pods' names; empty if it is not applied.
fn pod(world: &World) -> Result<String> {
    let label = format!("k8s-app={NAME}");
    let line = [
        "get",
        "pods",
        "--selector",
        &label,
        "--output",
        "jsonpath={.items[*].metadata.name}",
    ];
    world
        .cluster
        .ask(&[&["--namespace", NAMESPACE], &line[..]].concat())
}

/// Waits until `kubectl top node` has measured these nodes; returns all that it has measured.
fn wait_for_nodes(world: &World, nodes: &[&str]) -> Result<BTreeSet<String>> {
    wait::until(&format!("{nodes:?} are measured"), MEASURED, || {
        let said = world.cluster.ask(&["top", "node", "--no-headers"])?;
        let measured = measured(&said);
        let missing = nodes.iter().find(|node| !measured.contains(**node));
        ensure!(missing.is_none(), "kubectl top node says:\n{said}");
        Ok(measured)
    })
}

fn top_pod(world: &World, node: &str) -> Result<()> {
    let name = pods::name(node);
    wait::until(&format!("{name} is measured"), MEASURED, || {
        let line = ["--namespace", SHOP, "top", "pod", &name, "--no-headers"];
        let said = world.cluster.ask(&line)?;
        ensure!(measured(&said).contains(&name), "{said}");
        Ok(())
    })
}

/// Parses `master  250m  12%  1024Mi  6%`. A node without metrics is `edge-1  <unknown>  ...`.
fn measured(said: &str) -> BTreeSet<String> {
    let mut nodes = BTreeSet::new();
    for line in said.lines() {
        let mut words = line.split_whitespace();
        if let Some(name) = words.next()
            && let Some(processor) = words.next()
            && is_measure(processor)
        {
            nodes.insert(name.to_owned());
        }
    }
    nodes
}

fn is_measure(processor: &str) -> bool {
    let mut digits = processor.trim_end_matches('m').bytes();
    digits.all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_numbers_is_not_measured() {
        let said = "master   250m   12%   1024Mi   6%\nedge-1   <unknown>   <unknown>   <unknown>   <unknown>\n";
        assert_eq!(measured(said), BTreeSet::from(["master".to_owned()]));
    }
}
