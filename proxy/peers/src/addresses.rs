//! Where peers may be: what the names of `--peer` stand for now, and what the cluster lists. A task
//! for each address follows the peer there.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_api::HostPort;
use culvert_daemon::{Problem, chain};
use culvert_proxy_core::listed_peer::ListedPeer;
use futures_util::future::BoxFuture;
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Peers;
use super::connected::Role;
use super::follow::follow;

/// How often names are looked up again.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(10);
/// A lookup fails after this time.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Peers that are followed. More proxies would be more than a cluster has masters.
const MAX_PEERS: usize = 256;

/// The addresses of peers.
pub struct PeerAddresses {
    /// `--peer`. A name may stand for several proxies, this one included.
    pub given: Vec<HostPort>,
    /// `--follow`.
    pub primary: Option<HostPort>,
    /// What the cluster lists.
    pub listed: watch::Receiver<BTreeSet<ListedPeer>>,
}

impl PeerAddresses {
    /// Follows the peers at all addresses, for as long as the process lives.
    pub fn follow_all(self, peers: Arc<Peers>) -> BoxFuture<'static, Result<()>> {
        Box::pin(self.follow_each(peers))
    }

    async fn follow_each(mut self, peers: Arc<Peers>) -> Result<()> {
        let mut lookups = Lookups::default();
        let mut tasks = JoinSet::new();
        let mut followed: BTreeMap<(SocketAddr, Role), DropGuard> = BTreeMap::new();
        loop {
            let present = self.present(&mut lookups).await;
            // A peer that is not listed any more may still end its streams.
            followed.retain(|one, _| present.contains(one));
            for (address, role) in present {
                if let Entry::Vacant(entry) = followed.entry((address, role)) {
                    let unlisted = CancellationToken::new();
                    tasks.spawn(follow(peers.clone(), address, role, unlisted.clone()));
                    entry.insert(unlisted.drop_guard());
                }
            }
            while tasks.try_join_next().is_some() {}
            tokio::select! {
                () = tokio::time::sleep(LOOKUP_INTERVAL) => {}
                Ok(()) = self.listed.changed() => {}
            }
        }
    }

    /// All addresses of now, and which are the primary's.
    async fn present(&mut self, lookups: &mut Lookups) -> BTreeSet<(SocketAddr, Role)> {
        let mut hosts = BTreeSet::new();
        for peer in self.listed.borrow_and_update().iter() {
            hosts.insert(peer.address.clone());
        }
        hosts.extend(self.given.iter().cloned());
        hosts.extend(self.primary.clone());
        let all = lookups.resolve(hosts).await;
        let mut primary = None;
        if let Some(host) = &self.primary {
            primary = lookups.last.get(host);
        }
        let mut present = BTreeSet::new();
        for address in all {
            let role = match primary {
                Some(addresses) if addresses.contains(&address) => Role::Primary,
                Some(_) | None => Role::Peer,
            };
            present.insert((address, role));
        }
        present
    }
}

/// What hosts stood for when they were last looked up with success.
#[derive(Default)]
struct Lookups {
    last: BTreeMap<HostPort, BTreeSet<SocketAddr>>,
    problem: Problem,
}

impl Lookups {
    async fn resolve(&mut self, hosts: BTreeSet<HostPort>) -> BTreeSet<SocketAddr> {
        let mut problems = Vec::new();
        self.last.retain(|host, _| hosts.contains(host));
        for host in hosts {
            match lookup(&host).await {
                Ok(addresses) => drop(self.last.insert(host, addresses)),
                Err(problem) => problems.push(format!("{host}: {problem}")),
            }
        }
        let mut all: BTreeSet<_> = self.last.values().flatten().copied().collect();
        if all.len() > MAX_PEERS {
            problems.push(format!(
                "{} addresses of peers, of which {MAX_PEERS} are used",
                all.len()
            ));
            all = all.into_iter().take(MAX_PEERS).collect();
        }
        let mut problem = None;
        if !problems.is_empty() {
            problem = Some(problems.join("; "));
        }
        if let Some(reason) = self.problem.record(problem) {
            tracing::warn!(reason, "look up peers");
        }
        all
    }
}

async fn lookup(host: &HostPort) -> Result<BTreeSet<SocketAddr>, String> {
    let lookup = lookup_host((host.host.to_string(), host.port));
    match timeout(LOOKUP_TIMEOUT, lookup).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err("no answer in time".to_owned()),
    }
}
