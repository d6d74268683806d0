//! What `node list` says of a node.

use std::time::Duration;

use culvert_api::proto::control as proto;
use culvert_api::{Forbidden, NodeName};
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::{Destination, NodeView};
use culvert_tunnel::proto::tunnel::{DescribeResponse, TunnelEnd};

use super::{Control, saturated};
use crate::explain::ReportedRules;

/// How long after the end of a tunnel its agent is asked what it knows of that.
const RECENT_END: Duration = Duration::from_secs(600);

impl Control {
    /// The node's ports that its agent says it would not dial.
    async fn forbidden_ports(&self, node: &NodeView) -> Vec<u16> {
        let Some(tunnel) = self.registry.preferred(&node.name) else {
            return Vec::new();
        };
        let forbidden = self.forbidden_by(&tunnel.described, node);
        if forbidden.is_empty() {
            return forbidden;
        }
        // It may allow them by now.
        self.forbidden_by(&tunnel.described_now().await, node)
    }

    /// Whether the node's agent says that its large packets are lost. It is asked while a tunnel's
    /// end is recent: it may know of that end later than it answered for the next tunnel.
    async fn loses_large_packets(&self, node: &NodeName) -> bool {
        let Some(tunnel) = self.registry.preferred(node) else {
            return false;
        };
        let described = match self.registry.history().of(node).ended {
            Some(event) if UnixTime::now().since(event.at) < RECENT_END => {
                tunnel.described_now().await
            }
            Some(_) | None => tunnel.described.clone(),
        };
        described.last_end() == TunnelEnd::LargePacketsLost
    }

    fn forbidden_by(&self, agent: &DescribeResponse, node: &NodeView) -> Vec<u16> {
        let Some(rules) = ReportedRules::of(agent) else {
            return Vec::new();
        };
        let mut forbidden = Vec::new();
        for port in &node.ports {
            let destination = Destination::Node(node.name.clone(), *port);
            let Ok(target) = self.directory.resolve(&destination) else {
                continue;
            };
            match rules.decide(&target) {
                // An agent on another host: that is what `misplaced` says.
                Ok(_) | Err(Forbidden::OtherAddress(_)) => {}
                Err(_) => forbidden.push(*port),
            }
        }
        forbidden
    }

    /// With what its agent is asked for, if need be.
    pub(super) async fn status(&self, node: NodeView) -> proto::NodeStatus {
        let forbidden = self.forbidden_ports(&node).await;
        proto::NodeStatus {
            forbidden_ports: forbidden.into_iter().map(u32::from).collect(),
            large_packets_lost: self.loses_large_packets(&node.name).await,
            ..self.known_status(node)
        }
    }

    /// Without a question to its agent.
    pub(crate) fn known_status(&self, node: NodeView) -> proto::NodeStatus {
        let mut status = proto::NodeStatus {
            name: node.name.to_string(),
            names: self.directory.names_of(&node.name),
            vip4: node.vip4.to_string(),
            vip6: node.vip6.to_string(),
            ports: node.ports.iter().copied().map(u32::from).collect(),
            tunnels: saturated(self.registry.count(&node.name)),
            ..proto::NodeStatus::default()
        };
        if let Some(misplaced) = self.registry.misplaced_of(&node) {
            status.misplaced = misplaced.to_string();
            status.misplaced_fix = misplaced.fix(&node.name);
        }
        for peer in self.registry.holders(&node.name) {
            status.elsewhere.push(peer.info.host.clone());
        }
        for address in node.addresses {
            status.addresses.push(address.ip.to_string());
            status.reasons.push(address.reason);
        }
        for behind in node.behind {
            status.addresses.push(behind.destination.to_string());
            status.reasons.push(behind.reason);
        }
        status
    }
}
