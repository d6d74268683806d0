//! Sends what the kustomization makes to the API server, which checks it and changes nothing.
//!
//! The manifests are those that this program was built with: the default ones, and each component of
//! the plan. Their DaemonSets get the flags of the plan.

use anyhow::{Context, Result, ensure};
use culvert_daemon::counted;
use serde_json::{Value, json};

use super::ApiServer;
use super::kubernetes::{Object, text};
use super::objects::dry_run;
use super::plan::{Component, Plan};

const DEFAULT: &str = include_str!("../../../deploy/rendered/default.yaml");
const NODE_PORT: &str = include_str!("../../../deploy/rendered/nodeport.yaml");
const LOAD_BALANCER: &str = include_str!("../../../deploy/rendered/loadbalancer.yaml");
const HOSTS: &str = include_str!("../../../deploy/rendered/hosts.yaml");
const EGRESS_SELECTOR: &str = include_str!("../../../deploy/rendered/egress-selector.yaml");

/// Asks the API server for its judgement of each object.
pub(super) async fn send(cluster: &ApiServer, plan: &Plan) -> Result<()> {
    let objects = objects(plan)?;
    let count = objects.len();
    let mut refused = Vec::new();
    for object in objects {
        let name = Object(object.clone()).name();
        if let Err(error) = dry_run(cluster, object).await {
            refused.push(format!("{name}: {:#}", anyhow::Error::new(error)));
        }
    }
    ensure!(
        refused.is_empty(),
        "the API server refuses {} of {}: {}",
        refused.len(),
        counted(count, "object", "objects"),
        refused.join("; ")
    );
    eprintln!(
        "# the API server accepts {} (a dry run: nothing is changed)",
        counted(count, "object", "objects")
    );
    Ok(())
}

/// The objects, each once.
fn objects(plan: &Plan) -> Result<Vec<Value>> {
    let mut all: Vec<Value> = Vec::new();
    let components = plan.components();
    for rendered in [DEFAULT]
        .into_iter()
        .chain(components.into_iter().map(rendered))
    {
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(rendered).context("the manifests of this program")?;
        for mut object in objects {
            add_flags(&mut object, plan);
            if !all.contains(&object) {
                all.push(object);
            }
        }
    }
    if let Some(data) = plan.config_map() {
        let data: serde_json::Map<String, Value> = data
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect();
        // The manifests have it without data.
        all.retain(|object| object.pointer("/metadata/name") != Some(&json!("culvert-ports")));
        all.push(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"name": "culvert-ports", "namespace": "culvert-system"}}),
        );
    }
    Ok(all)
}

const fn rendered(component: Component) -> &'static str {
    match component {
        Component::NodePort => NODE_PORT,
        Component::LoadBalancer => LOAD_BALANCER,
        Component::Hosts => HOSTS,
        Component::EgressSelector | Component::NamesOnly => EGRESS_SELECTOR,
    }
}

fn add_flags(object: &mut Value, plan: &Plan) {
    if text(object.get("kind")) != "DaemonSet" {
        return;
    }
    let name = text(object.pointer("/metadata/name")).to_owned();
    let args = object.pointer_mut("/spec/template/spec/containers/0/args");
    let Some(args) = args.and_then(Value::as_array_mut) else {
        return;
    };
    for (program, flag) in plan.flags() {
        if program.name() == name {
            args.push(Value::from(flag));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_get_the_flags_and_the_ports_of_the_plan() {
        let mut plan = Plan::default();
        let count = objects(&plan).unwrap().len();
        plan.require(Component::NodePort);
        plan.steer([9445]);
        plan.allow(22);
        let all = objects(&plan).unwrap();
        assert!(all.len() > count + 1);
        let named = |kind: &str, name: &str| {
            all.iter()
                .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
                .unwrap()
        };
        assert_eq!(
            named("ConfigMap", "culvert-ports")["data"]["ports"],
            "7429,9100,9445,10250,10255"
        );
        named("Service", "culvert-proxy");
        let agent = named("DaemonSet", "culvert-agent").to_string();
        assert!(agent.contains("\"--port=22\""), "{agent}");
    }
}
