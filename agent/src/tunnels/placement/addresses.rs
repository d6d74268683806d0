//! The addresses that may lead to a proxy, and what is known about each: whether it is listed or
//! reported, which proxy answered there last, and how attempts there failed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use culvert_api::HostPort;
use culvert_daemon::jittered;
use culvert_tunnel::proto::tunnel::Proxy;
use tokio::time::Instant;

use super::ProxyId;

/// An agent whose certificate is refused needs a person; asking often would only fill logs.
const REFUSED_WAIT: Duration = Duration::from_secs(60);
/// First and longest wait before an address is tried again that only proxies report: it may be one
/// that edge nodes cannot reach.
const REPORTED_FIRST: Duration = Duration::from_secs(15);
const REPORTED_LONGEST: Duration = Duration::from_secs(900);

/// All addresses.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Addresses that the flags, the join or the cluster list.
    listed: BTreeSet<HostPort>,
    /// What each proxy that has a tunnel reports about all proxies.
    reports: BTreeMap<ProxyId, Vec<Proxy>>,
    /// The same by proxy.
    proxies: BTreeMap<ProxyId, ReportedProxy>,
    /// The proxy of each reported address; None if several are reported there.
    owners: BTreeMap<HostPort, Option<ProxyId>>,
    /// The proxy that answered last.
    met: BTreeMap<HostPort, ProxyId>,
    failures: BTreeMap<HostPort, AddressFailures>,
}

/// A proxy as proxies describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReportedProxy {
    /// Addresses that other proxies report. What a proxy reports about itself leads nowhere new.
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
struct AddressFailures {
    last: Instant,
    not_before: Instant,
    count: u32,
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

    /// Records what the proxy `by` reports, and forgets reports of those that are not `ours` any
    /// more. Returns whether that changes more than numbers of nodes.
    pub(super) fn record_report(
        &mut self,
        by: &ProxyId,
        proxies: Vec<Proxy>,
        ours: &BTreeSet<&ProxyId>,
    ) -> bool {
        self.reports.retain(|by, _| ours.contains(by));
        self.reports.insert(by.clone(), proxies);
        self.collect()
    }

    /// The last tunnel to `by` has ended. Its report stays only if there is no other; then without
    /// `by` itself.
    pub(super) fn remove_report(&mut self, by: &ProxyId) -> bool {
        if let Some(mut last) = self.reports.remove(by)
            && self.reports.is_empty()
        {
            last.retain(|proxy| ProxyId::from(proxy.instance.as_str()) != *by);
            self.reports.insert(by.clone(), last);
        }
        self.collect()
    }

    fn collect(&mut self) -> bool {
        let mut proxies = BTreeMap::<ProxyId, ReportedProxy>::new();
        let mut owners = BTreeMap::<HostPort, Option<ProxyId>>::new();
        for (by, report) in &self.reports {
            for proxy in report {
                let id = ProxyId::from(proxy.instance.as_str());
                let entry = proxies.entry(id.clone()).or_default();
                entry.draining |= proxy.draining;
                if *by == id || entry.nodes == 0 {
                    entry.nodes = proxy.nodes;
                }
                for text in &proxy.addresses {
                    let Ok(address) = text.parse::<HostPort>() else {
                        continue;
                    };
                    if *by != id {
                        entry.addresses.insert(address.clone());
                    }
                    let owner = owners.entry(address).or_insert_with(|| Some(id.clone()));
                    owner.take_if(|owner| *owner != id);
                }
            }
        }
        let is_news = differ(&self.proxies, &proxies);
        self.proxies = proxies;
        self.owners = owners;
        self.forget_others();
        is_news
    }

    /// Forgets what is known about addresses that are neither listed nor reported any more.
    fn forget_others(&mut self) {
        let listed = &self.listed;
        let owners = &self.owners;
        self.met
            .retain(|address, _| listed.contains(address) || owners.contains_key(address));
        self.failures
            .retain(|address, _| listed.contains(address) || owners.contains_key(address));
    }

    pub(super) fn met(&mut self, address: &HostPort, proxy: &ProxyId) {
        self.met.insert(address.clone(), proxy.clone());
        self.forget_others();
    }

    /// A tunnel by way of `address` is up.
    pub(super) fn works(&mut self, address: &HostPort) {
        self.failures.remove(address);
    }

    pub(super) fn failed(
        &mut self,
        address: &HostPort,
        failure: Failure,
        error: &str,
        now: Instant,
    ) -> Retry {
        let (count, is_news) = match self.failures.get(address) {
            Some(before) => (before.count, before.error != error),
            None => (0, true),
        };
        let wait = match failure {
            Failure::Refused => jittered(REFUSED_WAIT),
            Failure::Unreachable if !self.listed.contains(address) => {
                let wait = REPORTED_FIRST.saturating_mul(1 << count.min(16));
                jittered(wait.min(REPORTED_LONGEST))
            }
            Failure::Unreachable | Failure::Ended => Duration::ZERO,
        };
        let at = now + wait;
        let failures = AddressFailures {
            last: now,
            not_before: at,
            count: count.saturating_add(1),
            error: error.to_owned(),
        };
        self.failures.insert(address.clone(), failures);
        Retry { at, is_news }
    }

    /// A new certificate may be taken where the last one was refused.
    pub(super) fn forgive(&mut self) {
        self.failures.clear();
    }

    /// The listed addresses, and those that a proxy reports of another.
    pub(super) fn iter(&self) -> impl Iterator<Item = &HostPort> {
        let reported = self.proxies.values().flat_map(|proxy| &proxy.addresses);
        let further = reported.filter(|address| !self.listed.contains(address));
        self.listed.iter().chain(further)
    }

    pub(super) fn is_listed(&self, address: &HostPort) -> bool {
        self.listed.contains(address)
    }

    /// The last failure since the last tunnel.
    pub(super) fn failed_at(&self, address: &HostPort) -> Option<Instant> {
        let failures = self.failures.get(address)?;
        Some(failures.last)
    }

    /// The earliest next attempt; None: now.
    pub(super) fn not_before(&self, address: &HostPort, now: Instant) -> Option<Instant> {
        let not_before = self.failures.get(address)?.not_before;
        if not_before > now {
            Some(not_before)
        } else {
            None
        }
    }

    /// The proxy that the next attempt should meet. An address of which nothing is known stands
    /// for a proxy of its own.
    pub(super) fn expected(&self, address: &HostPort) -> ProxyId {
        if let Some(owner) = self.owner(address) {
            return owner.clone();
        }
        match self.met.get(address) {
            Some(met) => met.clone(),
            None => ProxyId::at(address),
        }
    }

    /// The proxy whose own address this is, by what proxies report.
    pub(super) fn owner(&self, address: &HostPort) -> Option<&ProxyId> {
        self.owners.get(address)?.as_ref()
    }

    /// Whether a listed address may lead to several proxies. That of an older proxy stands for it
    /// alone.
    pub(super) fn may_be_shared(&self, address: &HostPort) -> bool {
        if !self.is_listed(address) || self.owner(address).is_some() {
            return false;
        }
        match self.met.get(address) {
            Some(met) => *met != ProxyId::at(address),
            None => false,
        }
    }

    /// Whether one proxy reports this address of another one.
    pub(super) fn is_reported(&self, address: &HostPort) -> bool {
        self.proxies
            .values()
            .any(|proxy| proxy.addresses.contains(address))
    }

    pub(super) fn proxies(&self) -> &BTreeMap<ProxyId, ReportedProxy> {
        &self.proxies
    }

    pub(super) fn is_draining(&self, proxy: &ProxyId) -> bool {
        self.proxies.get(proxy).is_some_and(|proxy| proxy.draining)
    }
}

/// Whether these differ in more than numbers of nodes.
fn differ(
    before: &BTreeMap<ProxyId, ReportedProxy>,
    after: &BTreeMap<ProxyId, ReportedProxy>,
) -> bool {
    if before.len() != after.len() {
        return true;
    }
    for ((old_id, old), (id, new)) in before.iter().zip(after) {
        if old_id != id || old.addresses != new.addresses || old.draining != new.draining {
            return true;
        }
    }
    false
}
