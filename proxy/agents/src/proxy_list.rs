//! The list of all proxies with their tunnels that agents get, so that each agent chooses where its
//! own go. A proxy that drains says so, and one with too many tunnels repeats the numbers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::Drain;
use culvert_proxy_streams::peers::PeerInfo;
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::sockets::listen::AgentTarget;
use culvert_tunnel::Tunnel;
use culvert_tunnel::proto::tunnel::{Proxy, SetProxiesRequest};
use tokio::sync::watch;

/// How often the proxies' numbers of tunnels are compared.
const COMPARE_INTERVAL: Duration = Duration::from_secs(30);
/// Agents get a change within this time, at random: ten thousand messages at once would
/// delay the streams.
const SPREAD: Duration = Duration::from_secs(2);
/// Nodes above the fair share that do not matter.
const TOLERANCE: u32 = 4;

/// The list of all proxies. Clones share it.
#[derive(Clone)]
pub struct ProxyList {
    own: PeerInfo,
    registry: Registry,
    agents: watch::Receiver<AgentTarget>,
    changed_tx: watch::Sender<()>,
}

impl ProxyList {
    /// `own` is what this proxy says about itself.
    pub fn new(own: PeerInfo, registry: Registry, agents: watch::Receiver<AgentTarget>) -> Self {
        Self {
            own,
            registry,
            agents,
            changed_tx: watch::Sender::default(),
        }
    }

    /// Watches the peers, and whether the load is uneven, until the drain begins.
    pub async fn run(self, drain: Drain) -> Result<()> {
        let mut peers = self.registry.peer_changes();
        loop {
            tokio::select! {
                // The sender lives as long as the registry.
                _ = peers.changed() => self.changed_tx.send_replace(()),
                () = tokio::time::sleep(COMPARE_INTERVAL) => {
                    if self.has_too_many() {
                        self.changed_tx.send_replace(());
                    }
                }
                () = drain.begun() => return Ok(()),
            }
        }
    }

    /// Sends the list, and each change of it, for as long as the agent's tunnel lives. An agent that
    /// does not know the call needs nothing.
    pub(crate) async fn send_to(self, tunnel: Tunnel) -> Infallible {
        let mut changes = self.changed_tx.subscribe();
        let mut agents = self.agents.clone();
        loop {
            agents.mark_unchanged();
            // Also if there is no other: then the agent looks for none. Boxed: an idle tunnel would keep
            // the space that the call takes.
            if let Err(error) = Box::pin(tunnel.set_proxies(&self.message())).await {
                tracing::debug!(%error, "an agent did not get the list of proxies");
            }
            tokio::select! {
                // The sender is in `self`.
                _ = changes.changed() => {
                    let wait = SPREAD.mul_f64(rand::random());
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        Ok(()) = agents.changed() => {}
                    }
                }
                Ok(()) = agents.changed() => {}
            }
        }
    }

    fn message(&self) -> SetProxiesRequest {
        let mut proxies = vec![Proxy {
            instance: self.own.instance.to_string(),
            addresses: self.own.addresses.clone(),
            nodes: self.registry.own_nodes(),
            draining: *self.agents.borrow() == AgentTarget::Others,
        }];
        for peer in self.registry.peers() {
            proxies.push(Proxy {
                instance: peer.info.instance.to_string(),
                addresses: peer.info.addresses.clone(),
                nodes: u32::try_from(peer.nodes).unwrap_or(u32::MAX),
                draining: peer.draining,
            });
        }
        remove_shared_addresses(&mut proxies);
        SetProxiesRequest { proxies }
    }

    fn has_too_many(&self) -> bool {
        let mut numbers = Vec::new();
        for proxy in self.message().proxies {
            if !proxy.draining {
                numbers.push(proxy.nodes);
            }
        }
        is_too_many(self.registry.own_nodes(), &numbers)
    }
}

/// Removes the addresses that several proxies have: they lead to any of these. Pure.
fn remove_shared_addresses(proxies: &mut [Proxy]) {
    let mut holders: BTreeMap<String, usize> = BTreeMap::new();
    for proxy in proxies.iter() {
        for address in &proxy.addresses {
            *holders.entry(address.clone()).or_default() += 1;
        }
    }
    for proxy in proxies {
        proxy.addresses.retain(|address| holders[address] == 1);
    }
}

/// Whether a proxy with `own` nodes has clearly more than its share. Pure.
fn is_too_many(own: u32, all: &[u32]) -> bool {
    let total: u64 = all.iter().copied().map(u64::from).sum();
    let share = total / (all.len() as u64).max(1);
    u64::from(own) > share + share / 4 + u64::from(TOLERANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_leads_to_several_proxies_is_nobodys_own() {
        let proxy = |addresses: [&str; 2]| Proxy {
            addresses: addresses.map(str::to_owned).to_vec(),
            ..Proxy::default()
        };
        let mut proxies = [proxy(["all:7400", "a:7400"]), proxy(["all:7400", "b:7400"])];
        remove_shared_addresses(&mut proxies);
        assert_eq!(proxies[0].addresses, ["a:7400"]);
        assert_eq!(proxies[1].addresses, ["b:7400"]);
    }

    #[test]
    fn a_proxy_has_too_many_nodes_if_others_have_clearly_fewer() {
        assert!(is_too_many(3000, &[3000, 3000, 0]));
        assert!(!is_too_many(2200, &[2200, 2000, 1800]));
        assert!(!is_too_many(4, &[4, 0, 0]), "a few do not matter");
        assert!(!is_too_many(1000, &[1000]), "it is the only one");
        assert!(!is_too_many(0, &[]));
    }
}
