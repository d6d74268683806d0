//! An edge node, put together from what all proxies say of it.

use std::collections::{BTreeMap, BTreeSet};

use culvert_api::NodeName;
use culvert_api::proto::control::NodeStatus;
use serde::Serialize;

use crate::cloud_host::CloudHost;

/// A node, as the commands show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Node {
    /// Its name.
    pub node: String,
    /// Whether a proxy reaches it.
    pub online: bool,
    /// Tunnels at all proxies that were asked.
    pub tunnels: u32,
    /// Hosts of the proxies where tunnels of it end.
    pub proxies: Vec<String>,
    /// The round trip of its nearest tunnel; absent: not measured yet, or by no proxy that was
    /// asked.
    pub round_trip_ms: Option<f64>,
    /// The versions of its agents.
    pub versions: Vec<String>,
    /// Connections in its tunnels.
    pub streams: u32,
    /// Addresses that the node claims.
    pub addresses: Vec<NodeAddress>,
    /// Its VIP of IPv4.
    pub vip4: String,
    /// Its VIP of IPv6; empty: it has none.
    pub vip6: String,
    /// Ports of its addresses that are steered.
    pub ports: Vec<u32>,
    /// The steered ports that its agent would not dial.
    pub forbidden_ports: Vec<u32>,
    /// Why its agents are not where the node is; empty: they are.
    pub misplaced: String,
    /// What to do then.
    pub fix: String,
}

/// An address of a node in its own network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeAddress {
    /// An IP address, or a destination behind the node.
    pub address: String,
    /// Why it does not lead to the node; empty: it does.
    pub problem: String,
}

/// All nodes that these hosts know, by name.
pub fn nodes<'a>(hosts: impl IntoIterator<Item = &'a CloudHost>) -> Vec<Node> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for host in hosts {
        for status in &host.nodes {
            let node = nodes.entry(status.name.clone()).or_default();
            node.describe(status);
            if status.tunnels > 0 {
                node.is_at(host.name());
            }
            for elsewhere in &status.elsewhere {
                node.is_at(elsewhere);
            }
            node.tunnels += status.tunnels;
        }
        for tunnel in &host.tunnels {
            // Nodes that were removed may still have tunnels.
            if let Some(node) = nodes.get_mut(&tunnel.node) {
                node.add_tunnel(tunnel);
            }
        }
    }
    nodes.into_values().collect()
}

/// Whether this is the node that `name` names, as its proxy reads names: a zone may follow.
pub fn is_named(status: &NodeStatus, name: &NodeName) -> bool {
    status.name == name.as_str() || status.names.iter().any(|known| known == name.as_str())
}

/// The own name of the node that `name` names, by the lists of these proxies.
pub fn listed_name<'a>(
    lists: impl IntoIterator<Item = &'a Vec<NodeStatus>>,
    name: &NodeName,
) -> Option<NodeName> {
    for list in lists {
        if let Some(status) = list.iter().find(|status| is_named(status, name)) {
            return status.name.parse().ok();
        }
    }
    None
}

/// All names of the nodes in the lists of these proxies.
pub fn all_names<'a>(lists: impl IntoIterator<Item = &'a Vec<NodeStatus>>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for list in lists {
        for status in list {
            names.insert(status.name.as_str());
            names.extend(status.names.iter().map(String::as_str));
        }
    }
    names
}

impl Node {
    /// What any proxy says alike.
    fn describe(&mut self, status: &NodeStatus) {
        self.node.clone_from(&status.name);
        self.vip4.clone_from(&status.vip4);
        self.vip6.clone_from(&status.vip6);
        self.ports.clone_from(&status.ports);
        if !status.misplaced.is_empty() {
            self.misplaced.clone_from(&status.misplaced);
            self.fix.clone_from(&status.misplaced_fix);
        }
        for port in &status.forbidden_ports {
            if !self.forbidden_ports.contains(port) {
                self.forbidden_ports.push(*port);
            }
        }
        self.addresses.clear();
        for (address, problem) in status.addresses.iter().zip(&status.reasons) {
            self.addresses.push(NodeAddress {
                address: address.clone(),
                problem: problem.clone(),
            });
        }
    }

    fn is_at(&mut self, proxy: &str) {
        self.online = true;
        if !self.proxies.iter().any(|known| known == proxy) {
            self.proxies.push(proxy.to_owned());
        }
    }

    fn add_tunnel(&mut self, tunnel: &crate::cloud_host::Tunnel) {
        self.streams += tunnel.streams;
        if !self.versions.contains(&tunnel.agent_version) {
            self.versions.push(tunnel.agent_version.clone());
        }
        let Some(round_trip) = tunnel.round_trip_ms() else {
            return;
        };
        let nearest = self
            .round_trip_ms
            .map_or(round_trip, |known| known.min(round_trip));
        self.round_trip_ms = Some(nearest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_may_follow_a_nodes_name_as_its_proxy_says() {
        let status = |name: &str, names: &[&str]| NodeStatus {
            name: name.into(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..NodeStatus::default()
        };
        // The second one's proxy is older and says no names.
        let lists = [
            vec![status("edge-1", &["edge-1", "edge-1.edge.internal"])],
            vec![status("edge-2", &[])],
        ];
        for (text, name) in [
            ("edge-1", Some("edge-1")),
            ("edge-1.edge.internal", Some("edge-1")),
            ("edge-2", Some("edge-2")),
            ("edge-2.edge.internal", None),
        ] {
            let found = listed_name(&lists, &text.parse().expect("a name"));
            assert_eq!(found.as_ref().map(NodeName::as_str), name, "{text}");
        }
    }
}
