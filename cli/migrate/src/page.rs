//! The output: comments, and a kustomization.

use std::collections::BTreeMap;

use super::Tunnel;
use super::meaning::Meaning;
use super::plan::{Part, Plan, Removal};
use super::rules::Report;

/// Flags of kube-apiserver with the egress selector.
const EGRESS_STEPS: [&str; 3] = [
    "copy deploy/components/egress-selector/egress-selector-configuration.yaml to each control plane; mount it and the folder /run/culvert of the host into the pod of kube-apiserver; give kube-apiserver --egress-selector-config-file with it",
    "kube-apiserver: --kubelet-preferred-address-types=Hostname,InternalIP, and a resolver that knows the names (docs/dns.md)",
    "replace the ranges of --direct in deploy/components/egress-selector with those of your Services and pods",
];

/// The kustomization, below what it takes and what was found.
pub(super) fn page(from: Tunnel, plan: &Plan, report: &Report, deploy: &str) -> String {
    let mut page = format!(
        "# Made by `culvert migrate --from {}`. Save it as kustomization.yaml and apply its folder with\n\
         # `kubectl apply -k`. docs/migrate.md has the steps.\n",
        from.flag_value()
    );
    let before: Vec<&String> = plan.before.iter().collect();
    steps(&mut page, "Before:", before.into_iter().map(String::as_str));
    let removal = removal(plan);
    let after = removal.iter().chain(&plan.after).map(String::as_str);
    if plan.egress {
        let steps_of = EGRESS_STEPS.into_iter().chain(after);
        steps(&mut page, "Then, in this order:", steps_of);
    } else {
        let title = "Then, once the agents have tunnels (`culvert nodes`), in this order:";
        steps(&mut page, title, after);
    }
    page.push_str(&found(from, report));
    page.push_str(&kustomization(plan, deploy));
    page
}

/// The steps that remove the other tunnel: all of it is saved first, and its server goes first, so
/// that what is left can be put back if something does not work without it.
fn removal(plan: &Plan) -> Vec<String> {
    let mut saved: BTreeMap<&str, String> = BTreeMap::new();
    for (_, removal) in &plan.removals {
        if let Removal::Object {
            namespace,
            kind,
            name,
        } = removal
        {
            let objects = saved.entry(namespace).or_default();
            objects.push_str(&format!(" {kind}/{name}"));
        }
    }
    let mut steps = Vec::new();
    for (namespace, objects) in &saved {
        steps.push(format!(
            "kubectl -n {namespace} get{objects} -o yaml > saved-{namespace}.yaml"
        ));
    }
    let mut is_tried = saved.is_empty();
    for (part, removal) in &plan.removals {
        if *part > Part::Server && !is_tried {
            is_tried = true;
            let files: Vec<String> = saved
                .keys()
                .map(|it| format!("-f saved-{it}.yaml"))
                .collect();
            steps.push(format!(
                "try what went through the other tunnel, such as `kubectl logs` of a pod on an edge node. `kubectl apply {}` is the way back; `culvert why NODE:10250` says why it failed",
                files.join(" ")
            ));
        }
        steps.push(match removal {
            Removal::Object {
                namespace,
                kind,
                name,
            } => format!("kubectl -n {namespace} delete {kind} {name}"),
            Removal::ByHand(step) => step.clone(),
        });
    }
    steps
}

fn steps<'a>(page: &mut String, title: &str, steps: impl Iterator<Item = &'a str>) {
    let steps: Vec<&str> = steps.collect();
    if steps.is_empty() {
        return;
    }
    page.push_str(&format!("#\n# {title}\n"));
    for step in steps {
        page.push_str(&format!("#   {}\n", one_line(step)));
    }
}

fn found(from: Tunnel, report: &Report) -> String {
    let mut text = format!("#\n# What was found of {}:\n", from.name());
    for (place, lines) in &report.places {
        text.push_str(&format!("#   {}\n", one_line(place)));
        for line in lines {
            let (word, why) = match &line.meaning {
                Meaning::Equal(text) => ("equal", text.as_str()),
                Meaning::NoEqual(text) => ("no equal", text.as_str()),
                Meaning::Unknown => (
                    "unknown",
                    "not a setting that this version knows: look whether you need it",
                ),
            };
            text.push_str(&format!(
                "#     {} - {word}: {}\n",
                one_line(&line.setting),
                one_line(why)
            ));
        }
    }
    text
}

/// A name of the input stays within its comment.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

fn kustomization(plan: &Plan, deploy: &str) -> String {
    let mut text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n- {deploy}/cloud\n- {deploy}/edge\n"
    );
    let components = plan.components();
    if !components.is_empty() {
        text.push_str("components:\n");
    }
    for component in components {
        text.push_str(&format!("- {deploy}/components/{}\n", component.folder()));
    }
    if let Some(data) = plan.config_map() {
        text.push_str(
            "configMapGenerator:\n- name: culvert-ports\n  namespace: culvert-system\n  behavior: \
             merge\n  options: {disableNameSuffixHash: true}\n  literals:\n",
        );
        for (key, value) in data {
            text.push_str(&format!("  - {key}={value}\n"));
        }
    }
    let flags = plan.flags();
    if !flags.is_empty() {
        text.push_str("patches:\n");
    }
    for (program, flag) in flags {
        text.push_str(&format!(
            "- target: {{kind: DaemonSet, name: {}}}\n  patch: |-\n    - {{op: add, path: \
             /spec/template/spec/containers/0/args/-, value: \"{flag}\"}}\n",
            program.name()
        ));
    }
    text
}
