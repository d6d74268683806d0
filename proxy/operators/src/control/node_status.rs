//! What `node list` says of a node.

use std::time::Duration;

use culvert_api::proto::control as proto;
use culvert_api::{Forbidden, NodeName};
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::{Destination, NodeView};
use culvert_tunnel::proto::tunnel::{DescribeResponse, TunnelEnd};

use super::Control;
use crate::explain::ReportedRules;

/// How long after the end of a tunnel its agent is asked what it knows of that.
const RECENT_END: Duration = Duration::from_secs(600);

impl Control {
    /// The node's ports that its agent says it would not dial.
    async fn forbidden_ports(&self, node: &NodeView) -> Vec<u16> {
        let Some(tunnel) = self.registry.preferred(&node.name) else {
            return Vec::new();
        };
        match self.forbidden_by(&tunnel.described, node) {
            // It may allow them by now.
            ports if !ports.is_empty() => self.forbidden_by(&tunnel.described_now().await, node),
            none => none,
        }
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
        let is_forbidden = |port: &u16| {
            let destination = Destination::Node(node.name.clone(), *port);
            let target = self.directory.resolve(&destination);
            let decided = target.map(|target| rules.decide(&target));
            // An agent on another host: that is what `misplaced` says.
            let is_strange = matches!(decided, Ok(Err(Forbidden::OtherAddress(_))));
            decided.is_ok_and(|decided| decided.is_err()) && !is_strange
        };
        node.ports.iter().copied().filter(is_forbidden).collect()
    }

    pub(super) async fn status(&self, node: NodeView) -> proto::NodeStatus {
        let misplaced = self.registry.misplaced_of(&node);
        proto::NodeStatus {
            large_packets_lost: self.loses_large_packets(&node.name).await,
            misplaced_fix: misplaced
                .as_ref()
                .map(|misplaced| misplaced.fix(&node.name))
                .unwrap_or_default(),
            misplaced: misplaced
                .map(|misplaced| misplaced.to_string())
                .unwrap_or_default(),
            tunnels: u32::try_from(self.registry.count(&node.name)).unwrap_or(u32::MAX),
            elsewhere: self
                .registry
                .holders(&node.name)
                .iter()
                .map(|peer| peer.info.host.clone())
                .collect(),
            forbidden_ports: self
                .forbidden_ports(&node)
                .await
                .into_iter()
                .map(u32::from)
                .collect(),
            name: node.name.to_string(),
            addresses: node
                .addresses
                .iter()
                .map(|address| address.ip.to_string())
                .chain(node.behind.iter().map(|it| it.destination.to_string()))
                .collect(),
            reasons: node
                .addresses
                .into_iter()
                .map(|address| address.reason)
                .chain(node.behind.into_iter().map(|it| it.reason))
                .collect(),
            vip4: node.vip4.to_string(),
            vip6: node.vip6.to_string(),
            ports: node.ports.iter().copied().map(u32::from).collect(),
        }
    }
}
