//! What `culvert check` collects about the ConfigMaps of ports.

use std::collections::{BTreeMap, BTreeSet};

use culvert_api::named_ports::{CULVERT_PORTS, NamedPorts, Owner};
use kube::api::ListParams;

use super::{Cluster, YURT_TUNNEL};

/// The ConfigMaps of ports, as far as something is wrong with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortsFacts {
    /// What is wrong with their content.
    pub problems: Vec<String>,
    /// The namespace in which `culvert-ports` is missing.
    pub missing_in: Option<String>,
    /// YurtTunnel's ports that agents do not get, because they mount `culvert-ports` alone.
    pub unread: Option<UnreadPorts>,
}

/// Ports that `culvert-ports` lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadPorts {
    /// The ports that are steered.
    pub ports: BTreeSet<u16>,
    /// The command that copies them.
    pub command: String,
}

type Data = BTreeMap<String, String>;

impl Cluster {
    pub(crate) async fn ports_facts(&self) -> Result<PortsFacts, kube::Error> {
        let (namespace, name) = YURT_TUNNEL;
        let culvert = self.data(&self.namespace, CULVERT_PORTS).await?;
        let yurt_tunnel = self.data(namespace, name).await?;
        Ok(judged(&self.namespace, culvert, yurt_tunnel))
    }

    async fn data(&self, namespace: &str, name: &str) -> Result<Option<Data>, kube::Error> {
        // It lists, because following them needs that permission too.
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = self.config_maps(namespace).list(&named).await?;
        let first = found.items.into_iter().next();
        Ok(first.map(|found| found.data.unwrap_or_default()))
    }
}

fn judged(own: &str, culvert: Option<Data>, yurt_tunnel: Option<Data>) -> PortsFacts {
    let missing_in = if culvert.is_none() {
        Some(own.to_owned())
    } else {
        None
    };
    let (read, mistake) = NamedPorts::parse(Owner::Culvert, &culvert.unwrap_or_default());
    let theirs = yurt_tunnel.unwrap_or_default();
    let (given, their_mistake) = NamedPorts::parse(Owner::YurtTunnel, &theirs);
    let (namespace, name) = YURT_TUNNEL;
    let mut problems = Vec::new();
    if let Some(problem) = mistake {
        problems.push(format!("ConfigMap {own}/{CULVERT_PORTS}: {problem}"));
    }
    if let Some(problem) = their_mistake {
        problems.push(format!("ConfigMap {namespace}/{name}: {problem}"));
    }
    let lacking: BTreeSet<u16> = every(&given).difference(&every(&read)).copied().collect();
    let unread = if lacking.is_empty() {
        None
    } else {
        Some(UnreadPorts {
            ports: lacking,
            command: copying(own, &given),
        })
    };
    PortsFacts {
        problems,
        missing_in,
        unread,
    }
}

fn every(named: &NamedPorts) -> BTreeSet<u16> {
    named
        .all()
        .chain(named.localhost_ports.iter().copied())
        .collect()
}

/// Writes YurtTunnel's ports into `culvert-ports`, under its own keys: the default ports stay.
fn copying(own: &str, given: &NamedPorts) -> String {
    let keys = [
        ("dnat-ports-pair", listed(&given.further)),
        ("localhost-proxy-ports", listed(&given.localhost_ports)),
    ];
    let mut data = Data::default();
    for (key, ports) in keys {
        if !ports.is_empty() {
            data.insert(key.to_owned(), ports);
        }
    }
    let patch = serde_json::json!({ "data": data });
    format!("kubectl -n {own} patch configmap {CULVERT_PORTS} --type merge -p '{patch}'")
}

fn listed(ports: &BTreeSet<u16>) -> String {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    ports.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pairs: &[(&str, &str)]) -> Option<Data> {
        let owned = |(key, text): &(&str, &str)| ((*key).to_owned(), (*text).to_owned());
        Some(pairs.iter().map(owned).collect())
    }

    #[test]
    fn yurt_tunnels_ports_come_with_the_command_that_gives_them_to_the_agents() {
        let theirs = data(&[
            ("dnat-ports-pair", "9051=10264, 9100=10264"),
            ("localhost-proxy-ports", "10266"),
        ]);
        let facts = judged("culvert-system", data(&[("ports", "9100")]), theirs.clone());
        let unread = facts.unread.unwrap();
        assert_eq!(unread.ports, [9051, 10266].into());
        assert_eq!(
            unread.command,
            "kubectl -n culvert-system patch configmap culvert-ports --type merge -p \
             '{\"data\":{\"dnat-ports-pair\":\"9051,9100\",\"localhost-proxy-ports\":\"10266\"}}'"
        );
        let copied = judged("culvert-system", theirs.clone(), theirs);
        assert_eq!(copied, PortsFacts::default());
    }

    #[test]
    fn a_config_map_that_is_missing_or_wrong_is_named() {
        let facts = judged("culvert-system", None, data(&[("dnat-ports-pair", "x")]));
        assert_eq!(facts.missing_in.as_deref(), Some("culvert-system"));
        assert!(facts.problems[0].contains("kube-system/yurt-tunnel-server-cfg: dnat-ports-pair"));
    }
}
