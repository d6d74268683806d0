//! The addresses that may lead to a proxy, and what is known about each: whether it is listed or
//! told, which proxy answered there last, and how attempts there failed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use culvert_api::HostPort;
use culvert_daemon::jittered;
use culvert_tunnel::proto::tunnel::Proxy;
use tokio::time::Instant;

use super::ProxyId;

/// An agent whose certificate is refused needs a person; asking often would only fill logs.
const REFUSED_WAIT: Duration = Duration::from_secs(60);
/// First and longest wait before an address is tried again that only proxies tell: it may be one
/// that edge nodes cannot reach.
const TOLD_FIRST: Duration = Duration::from_secs(15);
const TOLD_LONGEST: Duration = Duration::from_secs(900);

/// All addresses.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// By the flags, the join or the cluster.
    listed: BTreeSet<HostPort>,
    /// What each proxy that has a tunnel reports about all proxies.
    told: BTreeMap<ProxyId, Vec<Proxy>>,
    /// The same by proxy.
    proxies: BTreeMap<ProxyId, ToldProxy>,
    /// The proxy of each told address; None if several are told there.
    owners: BTreeMap<HostPort, Option<ProxyId>>,
    /// The proxy that answered last.
    met: BTreeMap<HostPort, ProxyId>,
    troubles: BTreeMap<HostPort, Trouble>,
}

/// A proxy as proxies describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ToldProxy {
    /// Those that another proxy tells. A proxy's word on itself leads nowhere new.
    pub(super) addresses: BTreeSet<HostPort>,
    pub(super) nodes: u32,
    pub(super) draining: bool,
}

/// How an attempt ended that set up no tunnel, or how a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tunnels) enum Failure {
    /// A tunnel that was up.
    Ended,
    Unreachable,
    /// The proxy does not take this agent's certificate.
    Refused,
}

/// The failures at an address since its last tunnel.
#[derive(Debug)]
struct Trouble {
    at: Instant,
    not_before: Instant,
    failures: u32,
    error: String,
}

/// When an address may be tried again.
#[derive(Debug)]
pub(in crate::tunnels) struct Retry {
    pub(in crate::tunnels) at: Instant,
    /// Whether the error is another one than before.
    pub(in crate::tunnels) is_news: bool,
}

impl Addresses {
    /// Replaces the list. Returns what was removed from it.
    pub(super) fn list(&mut self, listed: BTreeSet<HostPort>) -> BTreeSet<HostPort> {
        let before = std::mem::replace(&mut self.listed, listed);
        let removed = before.difference(&self.listed).cloned().collect();
        self.forget_others();
        removed
    }

    /// Takes what the proxy `by` tells, and forgets what others told that are not `ours` any more.
    /// Returns whether that changes more than numbers of tunnels.
    pub(super) fn tell(
        &mut self,
        by: &ProxyId,
        proxies: Vec<Proxy>,
        ours: &BTreeSet<&ProxyId>,
    ) -> bool {
        self.told.retain(|by, _| ours.contains(by));
        self.told.insert(by.clone(), proxies);
        self.collect()
    }

    /// The last tunnel to `by` has ended. What it told stays only if nobody else tells anything;
    /// then without `by` itself.
    pub(super) fn untell(&mut self, by: &ProxyId) -> bool {
        let last = self.told.remove(by);
        if let Some(mut last) = last.filter(|_| self.told.is_empty()) {
            last.retain(|proxy| ProxyId::from(proxy.instance.as_str()) != *by);
            self.told.insert(by.clone(), last);
        }
        self.collect()
    }

    fn collect(&mut self) -> bool {
        let mut proxies = BTreeMap::<ProxyId, ToldProxy>::new();
        let mut owners = BTreeMap::<HostPort, Option<ProxyId>>::new();
        for (by, told) in &self.told {
            for proxy in told {
                let id = ProxyId::from(proxy.instance.as_str());
                let entry = proxies.entry(id.clone()).or_default();
                entry.draining |= proxy.draining;
                if *by == id || entry.nodes == 0 {
                    entry.nodes = proxy.nodes;
                }
                for address in proxy.addresses.iter().filter_map(|text| text.parse().ok()) {
                    let owner = owners.entry(address).or_insert_with(|| Some(id.clone()));
                    owner.take_if(|owner| *owner != id);
                }
                if *by != id {
                    let parsed = proxy.addresses.iter().filter_map(|text| text.parse().ok());
                    entry.addresses.extend(parsed);
                }
            }
        }
        let apart_from_numbers = |proxies: &BTreeMap<ProxyId, ToldProxy>| {
            let proxies = proxies
                .iter()
                .map(|(id, proxy)| (id.clone(), proxy.addresses.clone(), proxy.draining));
            proxies.collect::<Vec<_>>()
        };
        let is_news = apart_from_numbers(&proxies) != apart_from_numbers(&self.proxies);
        (self.proxies, self.owners) = (proxies, owners);
        self.forget_others();
        is_news
    }

    /// Forgets what is known about addresses that are neither listed nor told any more.
    fn forget_others(&mut self) {
        let listed = &self.listed;
        let owners = &self.owners;
        let is_here = |address: &HostPort| listed.contains(address) || owners.contains_key(address);
        self.met.retain(|address, _| is_here(address));
        self.troubles.retain(|address, _| is_here(address));
    }

    pub(super) fn met(&mut self, address: &HostPort, proxy: &ProxyId) {
        self.met.insert(address.clone(), proxy.clone());
        self.forget_others();
    }

    /// A tunnel by way of `address` is up.
    pub(super) fn works(&mut self, address: &HostPort) {
        self.troubles.remove(address);
    }

    pub(super) fn failed(
        &mut self,
        address: &HostPort,
        failure: Failure,
        error: &str,
        now: Instant,
    ) -> Retry {
        let before = self.troubles.get(address);
        let is_news = before.is_none_or(|before| before.error != error);
        let failures = before.map_or(0, |before| before.failures);
        let wait = match failure {
            Failure::Refused => jittered(REFUSED_WAIT),
            Failure::Unreachable if !self.listed.contains(address) => jittered(
                TOLD_FIRST
                    .saturating_mul(1 << failures.min(16))
                    .min(TOLD_LONGEST),
            ),
            Failure::Unreachable | Failure::Ended => Duration::ZERO,
        };
        let trouble = Trouble {
            at: now,
            not_before: now + wait,
            failures: failures.saturating_add(1),
            error: error.to_owned(),
        };
        let at = trouble.not_before;
        self.troubles.insert(address.clone(), trouble);
        Retry { at, is_news }
    }

    /// A new certificate may be taken where the last one was refused.
    pub(super) fn forgive(&mut self) {
        self.troubles.clear();
    }

    /// The listed addresses, and those that a proxy reports of another.
    pub(super) fn iter(&self) -> impl Iterator<Item = &HostPort> {
        let told = self.proxies.values().flat_map(|proxy| &proxy.addresses);
        let further = told.filter(|address| !self.listed.contains(address));
        self.listed.iter().chain(further)
    }

    pub(super) fn is_listed(&self, address: &HostPort) -> bool {
        self.listed.contains(address)
    }

    /// The last failure since the last tunnel.
    pub(super) fn failed_at(&self, address: &HostPort) -> Option<Instant> {
        self.troubles.get(address).map(|trouble| trouble.at)
    }

    /// The earliest next attempt; None: now.
    pub(super) fn not_before(&self, address: &HostPort, now: Instant) -> Option<Instant> {
        let trouble = self.troubles.get(address)?;
        Some(trouble.not_before).filter(|not_before| *not_before > now)
    }

    /// The proxy that the next attempt should meet. An address of which nothing is known stands
    /// for a proxy of its own.
    pub(super) fn expected(&self, address: &HostPort) -> ProxyId {
        self.owner(address)
            .or_else(|| self.met.get(address))
            .cloned()
            .unwrap_or_else(|| ProxyId::at(address))
    }

    /// The proxy whose own address this is, by what proxies tell.
    pub(super) fn owner(&self, address: &HostPort) -> Option<&ProxyId> {
        self.owners.get(address)?.as_ref()
    }

    /// Whether a listed address may lead to several proxies. That of an older proxy stands for it
    /// alone.
    pub(super) fn may_be_shared(&self, address: &HostPort) -> bool {
        self.is_listed(address)
            && self.owner(address).is_none()
            && self
                .met
                .get(address)
                .is_some_and(|met| *met != ProxyId::at(address))
    }

    /// Whether one proxy tells this address of another one.
    pub(super) fn is_told(&self, address: &HostPort) -> bool {
        self.proxies
            .values()
            .any(|proxy| proxy.addresses.contains(address))
    }

    pub(super) fn proxies(&self) -> &BTreeMap<ProxyId, ToldProxy> {
        &self.proxies
    }

    pub(super) fn is_draining(&self, proxy: &ProxyId) -> bool {
        self.proxies.get(proxy).is_some_and(|proxy| proxy.draining)
    }
}
