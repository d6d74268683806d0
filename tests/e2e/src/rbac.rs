//! Compares the requests of each of Culvert's service accounts, by the API server's audit log, with
//! the permissions of its roles: nothing more is requested, and nothing more is granted.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::install::PROGRAMS;
use crate::world::{CULVERT, HUB_NODE, World};

/// The ConfigMaps that open ports: of agents, and of cloud nodes.
const OPENING: [&str; 2] = ["culvert-ports", "culvert-forwards"];
/// The name of the audit log among the files of the run.
const LOG: &str = "audit.log";

/// How many lines may be unreadable. An API server that is replaced writes its last lines while its
/// successor writes its first ones.
const TORN_LINES: usize = 4;

/// The flags that make kube-apiserver write its audit log.
pub(super) fn audit_flags(folder: &Path) -> Result<Vec<String>> {
    let policy_file = folder.join("audit-policy.json");
    std::fs::write(&policy_file, policy().to_string())
        .with_context(|| format!("write {}", policy_file.display()))?;
    let log = folder.join(LOG);
    Ok(vec![
        format!("--audit-policy-file={}", policy_file.display()),
        format!("--audit-log-path={}", log.display()),
    ])
}

/// What kube-apiserver has logged so far: an event a line.
pub(super) fn audit_log(world: &World) -> Result<String> {
    let log = world.file(LOG);
    std::fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))
}

/// The audit policy: each answered request of Culvert's service accounts, and of the node behind
/// the hub, without bodies.
fn policy() -> Value {
    let group = format!("system:serviceaccounts:{CULVERT}");
    let node = format!("system:node:{}", HUB_NODE);
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "userGroups": [group]}, {"level": "Metadata", "users": [node]},
            {"level": "None"}
        ]
    })
}

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    let log = audit_log(world)?;
    let objects = world.cluster.json(&[
        "get",
        "roles,clusterroles,rolebindings,clusterrolebindings",
        "--all-namespaces",
    ])?;
    let objects = objects["items"].as_array().context("no list of roles")?;
    world.claim_once(
        "culvert-ports and culvert-forwards are there, so no program can make them, and none has a \
         right to change them",
        |world| {
            for name in OPENING {
                world.culvert(&["get", "configmap", name])?;
            }
            for account in PROGRAMS {
                let granted = granted(objects, account);
                let opens = granted.iter().find(|grant| opens_ports(grant));
                ensure!(opens.is_none(), "granted: {opens:?}");
            }
            Ok(())
        },
    )?;
    let minor = world.cluster.minor_version()?;
    for account in PROGRAMS {
        let asked = requests(&log, account)?;
        let granted = granted(objects, account);
        world.claim_once(
            &format!(
                "{account} asked for {} kinds of things, and its roles grant just these",
                asked.len()
            ),
            |_| {
                let mut missing: Vec<_> = asked.iter().collect();
                missing.retain(|ask| !granted.iter().any(|grant| grant.covers(ask)));
                ensure!(
                    missing.is_empty(),
                    "asked for, but not granted: {missing:#?}\ngranted: {granted:#?}"
                );
                let mut idle: Vec<_> = granted.iter().collect();
                idle.retain(|grant| {
                    !is_of_older_clusters(grant, minor)
                        && !is_of_large_clusters(grant)
                        && !asked.iter().any(|ask| grant.covers(ask))
                });
                ensure!(
                    idle.is_empty(),
                    "granted, but never asked for: {idle:#?}\nasked for: {asked:#?}"
                );
                Ok(())
            },
        )?;
    }
    Ok(())
}

/// Whether only clusters before this minor version need it: from 1.30 on, a pod's token names its
/// node, and nobody has to read the pod for that.
fn is_of_older_clusters(grant: &Access, minor: u32) -> bool {
    minor >= 30 && (grant.verb.as_str(), grant.resource.as_str()) == ("get", "pods")
}

/// Whether only clusters with thousands of nodes need it: their VIPs are in several ConfigMaps.
fn is_of_large_clusters(grant: &Access) -> bool {
    let name = grant.name.as_deref().unwrap_or_default();
    grant.resource == "configmaps" && name.starts_with("culvert-vips-")
}

/// A verb on a kind of objects, or on one object. In a grant, no namespace means every namespace,
/// and no name means every name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Access {
    verb: String,
    group: String,
    /// The resource with its subresource, such as `pods/log`.
    resource: String,
    namespace: Option<String>,
    name: Option<String>,
}

impl Access {
    /// Whether this grant allows the request `ask`.
    fn covers(&self, ask: &Self) -> bool {
        let named = self.name.is_none() || self.name == ask.name;
        let placed = self.namespace.is_none() || self.namespace == ask.namespace;
        (&self.verb, &self.group, &self.resource) == (&ask.verb, &ask.group, &ask.resource)
            && named
            && placed
    }
}

/// The requests of an account in the log. Requests for versions and for the account's own
/// permissions are left out: every account may send them.
fn requests(log: &str, account: &str) -> Result<BTreeSet<Access>> {
    let user = format!("system:serviceaccount:{CULVERT}:{account}");
    let mut asked = BTreeSet::new();
    let mut torn = 0;
    for line in log.lines() {
        if line.is_empty() {
            continue;
        }
        let event: Value = match serde_json::from_str(line) {
            Ok(event) => event,
            Err(_) if torn < TORN_LINES => {
                torn += 1;
                continue;
            }
            Err(error) => {
                return Err(error).with_context(|| format!("a line of the audit log: {line:.200}"));
            }
        };
        let object = &event["objectRef"];
        let of_everybody = object["apiGroup"] == "authorization.k8s.io"
            && object["resource"] == "selfsubjectaccessreviews";
        if event["user"]["username"] != user.as_str() || object.is_null() || of_everybody {
            continue;
        }
        let resource = [text(&object["resource"]), text(&object["subresource"])];
        asked.insert(Access {
            verb: text(&event["verb"]).unwrap_or_default(),
            group: text(&object["apiGroup"]).unwrap_or_default(),
            resource: resource.into_iter().flatten().collect::<Vec<_>>().join("/"),
            namespace: text(&object["namespace"]),
            name: text(&object["name"]),
        });
    }
    Ok(asked)
}

/// The permissions of the roles that are bound to an account, one by one.
fn granted(objects: &[Value], account: &str) -> BTreeSet<Access> {
    let mut granted = BTreeSet::new();
    for binding in objects {
        if !binds(binding, account) {
            continue;
        }
        // A ClusterRole that is bound in a namespace grants only in that namespace.
        let namespace = binding["metadata"]["namespace"].as_str().map(str::to_owned);
        let kind = &binding["roleRef"]["kind"];
        let name = &binding["roleRef"]["name"];
        for object in objects {
            let is_bound = &object["kind"] == kind
                && &object["metadata"]["name"] == name
                && (kind == "ClusterRole"
                    || object["metadata"]["namespace"] == binding["metadata"]["namespace"]);
            if !is_bound {
                continue;
            }
            for rule in list(&object["rules"]) {
                split_rule(rule, namespace.as_deref(), &mut granted);
            }
        }
    }
    granted
}

/// Whether an object binds a role to one of Culvert's accounts.
fn binds(object: &Value, account: &str) -> bool {
    list(&object["subjects"]).iter().any(|subject| {
        subject["kind"] == "ServiceAccount"
            && subject["name"] == account
            && subject["namespace"] == CULVERT
    })
}

/// Whether it lets its holder change a ConfigMap that opens ports. `create` does not, while the
/// ConfigMap is there.
fn opens_ports(grant: &Access) -> bool {
    let is_read = ["get", "list", "watch", "create"].contains(&grant.verb.as_str());
    let is_meant = match &grant.name {
        Some(name) => OPENING.contains(&name.as_str()),
        None => true,
    };
    ["configmaps", "*"].contains(&grant.resource.as_str()) && is_meant && !is_read
}

fn split_rule(rule: &Value, namespace: Option<&str>, granted: &mut BTreeSet<Access>) {
    let names: Vec<_> = texts(&rule["resourceNames"])
        .into_iter()
        .map(Some)
        .collect();
    let names = if names.is_empty() { vec![None] } else { names };
    for group in texts(&rule["apiGroups"]) {
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                granted.extend(names.iter().map(|name| Access {
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                    namespace: namespace.map(str::to_owned),
                    name: name.clone(),
                }));
            }
        }
    }
}

fn texts(values: &Value) -> Vec<String> {
    list(values).iter().filter_map(text).collect()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> Vec<Value> {
        let subject =
            json!([{"kind": "ServiceAccount", "name": "culvert-proxy", "namespace": CULVERT}]);
        let meta = json!({"name": "culvert-proxy", "namespace": CULVERT});
        vec![
            json!({"kind": "Role", "metadata": meta, "rules": [
                {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["culvert-ca"], "verbs": ["get", "update"]}]}),
            json!({"kind": "RoleBinding", "metadata": meta, "subjects": subject, "roleRef": {"kind": "Role", "name": "culvert-proxy"}}),
        ]
    }

    fn event(account: &str, verb: &str, name: &str) -> String {
        json!({"user": {"username": format!("system:serviceaccount:{CULVERT}:{account}")}, "verb": verb,
               "objectRef": {"resource": "secrets", "namespace": CULVERT, "name": name, "apiVersion": "v1"}})
        .to_string()
    }

    #[test]
    fn what_is_asked_is_compared_with_what_is_granted_by_verb_and_name() {
        let granted = granted(&objects(), "culvert-proxy");
        assert_eq!(granted.len(), 2, "{granted:?}");
        let log = [
            event("culvert-proxy", "get", "culvert-ca"),
            event("culvert-agent", "list", "x"),
        ]
        .join("\n");
        let asked = requests(&log, "culvert-proxy").unwrap();
        assert_eq!(asked.len(), 1, "the other account's are not its own");
        assert!(
            asked
                .iter()
                .all(|ask| granted.iter().any(|grant| grant.covers(ask)))
        );
        let idle: Vec<_> = granted
            .iter()
            .filter(|grant| !asked.iter().any(|ask| grant.covers(ask)))
            .collect();
        assert_eq!(idle.len(), 1, "update was never asked for");
        let other =
            super::requests(&event("culvert-proxy", "get", "other"), "culvert-proxy").unwrap();
        assert!(
            !other
                .iter()
                .any(|ask| granted.iter().any(|grant| grant.covers(ask))),
            "another name is not granted"
        );
    }

    #[test]
    fn what_opens_ports_is_found_by_verb_and_name() {
        let grant = |verb: &str, name: Option<&str>| Access {
            verb: verb.to_owned(),
            resource: "configmaps".to_owned(),
            name: name.map(str::to_owned),
            ..Access::default()
        };
        assert!(opens_ports(&grant("patch", Some("culvert-ports"))));
        assert!(opens_ports(&grant("update", Some("culvert-forwards"))));
        assert!(opens_ports(&grant("update", None)) && opens_ports(&grant("*", None)));
        assert!(!opens_ports(&grant("update", Some("culvert-vips"))));
        assert!(!opens_ports(&grant("list", Some("culvert-ports"))));
        assert!(!opens_ports(&grant("create", None)));
    }

    #[test]
    fn an_account_without_a_binding_is_granted_nothing() {
        assert!(granted(&objects(), "culvert-agent").is_empty());
    }
}
