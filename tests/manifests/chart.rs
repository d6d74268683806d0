//! The Helm chart: for each overlay, it renders the same objects with the values beside it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::monitoring::DASHBOARDS;
use culvert_lab::{monitoring, workspace};
use serde_json::Value;
use xtask::manifests::chart::{folder, helm};
use xtask::manifests::kustomize_build;

use crate::objects::{Objects, documents, objects};

/// The name of an overlay whose objects the chart renders beside all others.
const UNINSTALL: &str = "uninstall";

const PROGRAMS: [&str; 3] = ["proxy", "redirector", "agent"];

/// The labels by which tools find the objects of a release.
const RELEASE_LABELS: [&str; 4] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
];

/// A version of Kubernetes that has everything.
const NEW: &str = "1.36.0";

/// What the chart renders as a release of the documents' name and namespace.
pub(crate) fn render(more: &[&str]) -> Result<String> {
    render_in("culvert-system", NEW, more)
}

fn render_in(namespace: &str, kubernetes: &str, more: &[&str]) -> Result<String> {
    let home = tempfile::tempdir()?;
    let mut template = helm(home.path());
    template.args(["template", "culvert"]).arg(folder());
    template.args(["--namespace", namespace, "--kube-version", kubernetes]);
    workspace::output(template.args(more))
}

/// The folders below this one that are overlays.
pub(crate) fn overlays(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let kustomization = fs::read_to_string(path.join("kustomization.yaml"))?;
        if kustomization.contains("kind: Kustomization\n") {
            found.push(path.clone());
        }
        overlays(&path, found)?;
    }
    Ok(())
}

#[test]
fn the_chart_renders_what_each_overlay_does_with_the_values_beside_it() {
    let mut found = Vec::new();
    overlays(&workspace::root().join("deploy/overlays"), &mut found).expect("the overlays");
    assert!(found.len() > 15, "{found:?}");
    for overlay in found {
        compare(&overlay).unwrap_or_else(|error| panic!("{}: {error:#}", overlay.display()));
    }
}

fn compare(overlay: &Path) -> Result<()> {
    let mut wanted = objects(&kustomize_build(overlay)?)?;
    // A release cannot make the namespace that it is in.
    let namespace = wanted.remove("Namespace culvert-system");
    ensure!(namespace.is_some(), "the overlay has no namespace");
    let values = overlay.join("values.yaml");
    ensure!(values.is_file(), "it has no values.yaml");
    let mut rendered = objects(&render(&["--values", &values.display().to_string()])?)?;
    if overlay.ends_with(UNINSTALL) {
        rendered.retain(|id, _| wanted.contains_key(id));
    }
    // The check of `helm test`.
    rendered.remove("Pod culvert-system/culvert-check");
    without_release(&mut rendered);
    same(&rendered, &wanted)
}

/// Removes what only objects of a release have: the labels that say so, and a number that is the
/// default of Kubernetes.
fn without_release(objects: &mut Objects) {
    for object in objects.values_mut() {
        for labels in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(Value::Object(labels)) = object.pointer_mut(labels) {
                for label in RELEASE_LABELS {
                    labels.remove(label);
                }
            }
        }
        if let Some(Value::Object(spec)) = object.get_mut("spec") {
            spec.remove("revisionHistoryLimit");
        }
    }
}

fn same(rendered: &Objects, wanted: &Objects) -> Result<()> {
    let as_value = |objects: &Objects| objects.clone().into_iter().collect();
    match difference("", &as_value(rendered), &as_value(wanted)) {
        Some(text) => bail!("{text}"),
        None => Ok(()),
    }
}

/// The first place where two values are not equal, and what they have there.
fn difference(path: &str, rendered: &Value, wanted: &Value) -> Option<String> {
    match (rendered, wanted) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            keys.into_iter()
                .find_map(|key| difference(&format!("{path}/{key}"), &rendered[key], &wanted[key]))
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => (0..one.len())
            .find_map(|at| difference(&format!("{path}/{at}"), &rendered[at], &wanted[at])),
        _ if rendered == wanted => None,
        _ => Some(format!("{path}: the chart has {rendered}, not {wanted}")),
    }
}

#[test]
fn uninstall_changes_nothing_of_a_release_but_its_redirectors() -> Result<()> {
    let mut with = objects(&render(&["--set", "uninstall=true"])?)?;
    let mut without = objects(&render(&[])?)?;
    let added = with.remove("DaemonSet culvert-system/culvert-uninstall");
    ensure!(added.is_some(), "no uninstaller");
    for all in [&mut with, &mut without] {
        let removed = all.remove("DaemonSet culvert-system/culvert-redirector");
        ensure!(removed.is_some(), "no redirectors");
    }
    same(&with, &without)
}

#[test]
fn the_objects_of_the_prometheus_operator_are_those_of_the_folder_monitoring() -> Result<()> {
    let mut wanted = Objects::new();
    for file in ["podmonitor.yaml", "prometheusrule.yaml"] {
        wanted.extend(objects(&fs::read_to_string(
            monitoring::folder().join(file),
        )?)?);
    }
    let on =
        "metrics.enabled=true,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true";
    let mut rendered = objects(&render(&["--set", on])?)?;
    rendered.retain(|id, _| wanted.contains_key(id));
    without_release(&mut rendered);
    same(&rendered, &wanted)?;
    let by_name = render(&["--set", on, "--set", "metrics.podMonitor.agentsByName=true"])?;
    ensure!(by_name.contains("sourceLabels: [job, node]"), "{by_name}");
    let labels = "metrics.podMonitor.labels.release=prom,metrics.prometheusRule.labels.release=prom,\
        metrics.podMonitor.interval=30s,metrics.podMonitor.scrapeTimeout=10s";
    let labelled = objects(&render(&["--set", on, "--set", labels])?)?;
    for id in wanted.keys() {
        ensure!(
            labelled[id]["metadata"]["labels"]["release"] == "prom",
            "{id}"
        );
    }
    let endpoint = &labelled["PodMonitor culvert-system/culvert"]["spec"]["podMetricsEndpoints"][0];
    ensure!(
        endpoint["interval"] == "30s" && endpoint["scrapeTimeout"] == "10s",
        "{endpoint}"
    );
    let linked = render(&[
        "--set",
        on,
        "--set",
        "metrics.prometheusRule.runbooks=https://git.example.org/",
    ])?;
    let address = "runbook_url: https://git.example.org/docs/troubleshooting.md#culvert";
    ensure!(
        linked.matches("runbook_url: ").count() == linked.matches(address).count(),
        "{linked}"
    );
    Ok(())
}

#[test]
fn each_dashboard_is_in_a_config_map_that_grafana_s_sidecar_finds() -> Result<()> {
    let rendered = objects(&render(&["--set", "metrics.dashboards.enabled=true"])?)?;
    for name in DASHBOARDS {
        let id = name.trim_end_matches(".json");
        let map = rendered.get(&format!("ConfigMap culvert-system/culvert-{id}"));
        let map = map.with_context(|| format!("no ConfigMap of {name}"))?;
        ensure!(
            map["metadata"]["labels"]["grafana_dashboard"] == "1",
            "{id}"
        );
        let file = fs::read_to_string(monitoring::folder().join(name))?;
        let text = map["data"][format!("culvert-{name}")].as_str();
        ensure!(text.map(str::trim_end) == Some(file.trim_end()), "{id}");
    }
    Ok(())
}

#[test]
fn every_image_comes_from_the_registry_by_its_digest_and_every_pod_has_the_secret() -> Result<()> {
    let digest = format!("sha256:{}", "5f".repeat(32));
    let digests = ["proxy", "redirector", "agent"].map(|it| format!("{it}.image.digest={digest}"));
    let set = format!(
        "image.registry=registry.example.org:5000/culvert,imagePullSecrets[0].name=mine,uninstall=true,{}",
        digests.join(",")
    );
    let mut pods = 0;
    for (id, object) in objects(&render(&["--set", &set])?)? {
        let spec = &object["spec"]["template"]["spec"];
        if spec.is_null() {
            continue;
        }
        pods += 1;
        ensure!(
            spec["imagePullSecrets"][0]["name"] == "mine",
            "{id}: {spec}"
        );
        for kind in ["initContainers", "containers"] {
            for container in spec[kind].as_array().into_iter().flatten() {
                let image = container["image"].as_str().unwrap_or_default();
                let name = image.strip_prefix("registry.example.org:5000/culvert/culvert-");
                let of = name.and_then(|name| name.strip_suffix(&format!("@{digest}")));
                ensure!(of.is_some(), "{id}: {image}");
            }
        }
    }
    ensure!(pods == 4, "{pods} pods");
    Ok(())
}

#[test]
fn every_port_range_and_name_that_a_value_has_reaches_the_flag_that_its_comment_names() -> Result<()>
{
    let values = "ports.agents=7500,ports.peers=7501,edgeNodes.label=example.org/edge,\
        edgeNodes.ports.ports=9100\\,10250,forwards.ssh=2222=edge-1:22,dns.zone=edge.example,\
        agentService.type=NodePort,agentService.nodePort=30750,agent.extraArgs={--deny-port=22}";
    let rendered = objects(&render(&["--set", values])?)?;
    let of = |id: &str| rendered.get(id).with_context(|| format!("no {id}"));
    let daemon = |name: &str| of(&format!("DaemonSet culvert-system/{name}")).cloned();
    let proxy = daemon("culvert-proxy")?.to_string();
    for flag in [
        "--agent-listen=[::]:7500",
        "--peer-listen=[::]:7501",
        "--node-selector=example.org/edge",
        "--dns-zone=edge.example",
    ] {
        ensure!(proxy.contains(&format!("{flag:?}")), "no {flag}: {proxy}");
    }
    let redirector = daemon("culvert-redirector")?.to_string();
    ensure!(
        redirector.contains("--dns-zone=edge.example"),
        "{redirector}"
    );
    let agent = daemon("culvert-agent")?.to_string();
    ensure!(
        agent.contains("example.org/edge") && agent.contains("--deny-port=22"),
        "{agent}"
    );
    let port = &of("Service culvert-system/culvert-proxy")?["spec"]["ports"][0];
    ensure!(
        port["targetPort"] == 7500 && port["port"] == 7500 && port["nodePort"] == 30750,
        "{port}"
    );
    let ports = &of("ConfigMap culvert-system/culvert-ports")?["data"];
    ensure!(ports["ports"] == "9100,10250", "{ports}");
    let forwards = &of("ConfigMap culvert-system/culvert-forwards")?["data"];
    ensure!(forwards["ssh"] == "2222=edge-1:22", "{forwards}");
    Ok(())
}

#[test]
fn what_a_company_asks_of_every_pod_reaches_every_pod() -> Result<()> {
    let mut values = vec![
        "commonLabels.team=edge,priorityClassName=,log.format=json,log.level=debug".to_owned(),
    ];
    for program in PROGRAMS {
        values.push(format!(
            "{program}.podAnnotations.mesh=disabled,{program}.podLabels.tier=net,\
             {program}.nodeSelector.pool=own,{program}.tolerations[0].key=own,\
             {program}.tolerations[0].operator=Exists,{program}.extraEnv[0].name=TZ,\
             {program}.extraEnv[0].value=UTC,{program}.serviceAccount.annotations.role=own"
        ));
    }
    let rendered = objects(&render(&["--set", &values.join(",")])?)?;
    for program in PROGRAMS {
        let account = &rendered[&format!("ServiceAccount culvert-system/culvert-{program}")];
        ensure!(
            account["metadata"]["annotations"]["role"] == "own",
            "{account}"
        );
        let daemon = &rendered[&format!("DaemonSet culvert-system/culvert-{program}")];
        ensure!(daemon["metadata"]["labels"]["team"] == "edge", "{daemon}");
        let pod = &daemon["spec"]["template"];
        let labels = &pod["metadata"]["labels"];
        ensure!(
            labels["team"] == "edge" && labels["tier"] == "net",
            "{labels}"
        );
        ensure!(
            pod["metadata"]["annotations"]["mesh"] == "disabled",
            "{pod}"
        );
        let spec = &pod["spec"];
        ensure!(spec["nodeSelector"]["pool"] == "own", "{spec}");
        ensure!(
            spec["nodeSelector"]["kubernetes.io/os"] == "linux",
            "{spec}"
        );
        ensure!(spec["tolerations"][0]["key"] == "own", "{spec}");
        ensure!(spec["priorityClassName"].is_null(), "{spec}");
        let container = &spec["containers"][0];
        let env = container["env"].as_array().context("no env")?;
        ensure!(env.iter().any(|it| it["name"] == "TZ"), "{container}");
        let args = container["args"].to_string();
        ensure!(
            args.contains("--log=debug") && args.contains("--log-format=json"),
            "{args}"
        );
    }
    Ok(())
}

#[test]
fn further_objects_belong_to_the_release() -> Result<()> {
    let metadata = r#"{"name": "own", "namespace": "{{ .Release.Namespace }}"}"#;
    let own = format!(
        r#"extraObjects=[{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {metadata}}}]"#
    );
    let objects = objects(&render(&["--set-json", &own])?)?;
    ensure!(
        objects.contains_key("ConfigMap culvert-system/own"),
        "{:?}",
        objects.keys()
    );
    Ok(())
}

#[test]
fn a_release_has_no_object_in_a_namespace_that_was_not_named() -> Result<()> {
    let on = "nameService=true,agentService.type=NodePort,uninstall=true,\
        metrics.enabled=true,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true,\
        metrics.dashboards.enabled=true";
    let rendered = render_in("edge", NEW, &["--set", on])?;
    ensure!(!rendered.contains("culvert-system"), "{rendered}");
    Ok(())
}

#[test]
fn values_that_could_not_work_are_refused_with_the_reason() {
    let cases = [
        ("nameServce=true", "nameServce"),
        ("proxy.replicas=3", "replicas"),
        ("steering.mechanism=iptables", "/steering/mechanism"),
        ("agentService.type=ClusterIP", "/agentService/type"),
        ("ports.agents=74000", "/ports/agents"),
        ("edgeNodes.ranges={10.0.3.7}", "/edgeNodes/ranges"),
        ("advertise={cloud.example.org}", "/advertise"),
        ("proxy.image.digest=sha256:12", "/proxy/image/digest"),
        ("cloudNodes.labels={}", "/cloudNodes/labels"),
        // It names the label that a kubelet may write, and one that it may not.
        ("cloudNodes.labels={culvert.dev/cloud}", "culvert.dev/cloud"),
        (
            "cloudNodes.labels={node-role.kubernetes.io/control-plane,example.org/cloud}",
            "node-restriction.kubernetes.io/culvert-cloud",
        ),
        ("hosts.configMap=culvert-hosts", "/hosts/configMap"),
        ("hosts.address=service", "needs nameService"),
        ("metrics.podMonitor.enabled=true", "needs metrics.enabled"),
    ];
    for (set, reason) in cases {
        refused(render(&["--set", set]), reason);
    }
    let older = |version, set| render_in("culvert-system", version, &["--set", set]);
    refused(older("1.24.9", "surge=true"), "surge needs Kubernetes 1.25");
    refused(older("1.29.0", "appArmorField=true"), "Kubernetes 1.30");
    refused(older("1.19.0", "surge=false"), "kubeVersion: >=1.20.0-0");
    for namespace in ["default", "kube-system"] {
        refused(render_in(namespace, NEW, &[]), "namespace of its own");
    }
}

fn refused(rendered: Result<String>, reason: &str) {
    let Err(error) = rendered else {
        panic!("not refused: {reason}");
    };
    let error = format!("{error:#}");
    assert!(error.contains(reason), "{reason}: {error}");
}

#[test]
fn helm_finds_nothing_wrong_with_the_chart_and_it_has_this_version() {
    let home = tempfile::tempdir().expect("a folder");
    let mut lint = helm(home.path());
    lint.args(["lint", "--strict", "--namespace", "culvert-system"]);
    workspace::output(lint.arg(folder())).expect("lint it");
    let about = fs::read_to_string(folder().join("Chart.yaml")).expect("read it");
    let about = &documents(&about).expect("parse it")[0];
    for field in ["version", "appVersion"] {
        assert_eq!(about[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
}

#[test]
fn every_value_has_a_comment_and_a_place_in_the_schema() -> Result<()> {
    let values = fs::read_to_string(folder().join("values.yaml"))?;
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(folder().join("values.schema.json"))?)?;
    compare_keys("", &documents(&values)?[0], &schema, &schema)?;
    let mut before = "";
    for line in values.lines() {
        // Without a value it is a group, or a list.
        let is_value = line.contains(": ") && !line.trim_start().starts_with(['#', '-']);
        let is_limit = before.trim() == "resources:" || before.trim().starts_with("requests:");
        ensure!(
            !is_value || is_limit || before.trim_start().starts_with('#'),
            "no comment: {line}"
        );
        before = line;
    }
    Ok(())
}

/// Compares the keys of values with the properties of the schema, as far as the schema names them.
fn compare_keys(path: &str, values: &Value, schema: &Value, root: &Value) -> Result<()> {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => root
            .pointer(reference.trim_start_matches('#'))
            .with_context(|| reference.to_owned())?,
        None => schema,
    };
    let (Some(values), Some(properties)) = (values.as_object(), schema["properties"].as_object())
    else {
        return Ok(());
    };
    ensure!(
        schema["additionalProperties"] == false,
        "{path}: the schema takes any value"
    );
    // Helm gives this one to every chart.
    let properties = properties.iter().filter(|(key, _)| *key != "global");
    let properties: Vec<_> = properties.collect();
    let (named, there): (BTreeSet<_>, BTreeSet<_>) = (
        properties.iter().map(|(key, _)| *key).collect(),
        values.keys().collect(),
    );
    ensure!(named == there, "{path}: schema {named:?}, values {there:?}");
    for (key, property) in properties {
        compare_keys(&format!("{path}.{key}"), &values[key], property, root)?;
    }
    Ok(())
}
