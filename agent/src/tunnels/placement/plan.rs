//! Which proxy each tunnel slot goes to: pure decisions over what the agent knows.
//!
//! The agent keeps some tunnels to each of some different proxies. Only when a tunnel is up does it
//! know which proxy it has met, for one address may hide several proxies, and several addresses may
//! lead to the same one. So a slot chooses an address by what it expects there, and then either
//! claims the proxy that it met or declines it and dials again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use culvert_api::HostPort;
use culvert_tunnel::Declined;
use culvert_tunnel::proto::tunnel::Proxy;
use tokio::time::Instant;

use super::addresses::{Addresses, Failure, Retry};
use super::{Look, ProxyId, SlotNumber, evening};

/// Proxies that are invited at once: each has connections and memory of its own.
const INVITED_MAX: usize = 4;

/// How many tunnels there are in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// Different proxies.
    pub(crate) proxies: u8,
    /// Tunnels to each of them.
    pub(crate) tunnels: u8,
    /// Further tunnels that it may have while bulk data keeps the others busy.
    pub(crate) extra: u8,
}

impl Spread {
    /// Slots for the tunnels that there are always.
    pub(crate) fn slots(self) -> u16 {
        u16::from(self.proxies) * u16::from(self.tunnels)
    }

    fn to_each(self, extra: u8) -> usize {
        usize::from(self.tunnels) + usize::from(extra)
    }
}

/// What a slot without a tunnel does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tunnels) enum Choice {
    Dial(HostPort),
    /// Dial an address that led to a proxy with enough tunnels: it may hide others.
    Look(HostPort),
    /// Nothing until something changes, or until then.
    Wait(Option<Instant>),
}

/// Why a tunnel should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tunnels) enum Leave {
    /// For one to another proxy.
    Proxy,
    /// Its proxy has more than it gets.
    Surplus,
}

/// A slot's tunnel.
#[derive(Debug)]
struct Claim {
    sequence: u64,
    proxy: ProxyId,
    address: HostPort,
}

/// What the agent knows, and what its slots do.
#[derive(Debug)]
pub(super) struct Plan {
    spread: Spread,
    addresses: Addresses,
    claims: BTreeMap<SlotNumber, Claim>,
    dialling: BTreeMap<SlotNumber, HostPort>,
    /// Addresses that were removed from the list while tunnels led there.
    former: BTreeSet<HostPort>,
    /// Tunnels that a proxy gets beside those that it always gets.
    extra: BTreeMap<ProxyId, u8>,
    /// Proxies that have only extra tunnels, for streams that came by way of others.
    invited: BTreeSet<ProxyId>,
    /// The proxy that this agent leaves, so that loads even out.
    moving: Option<ProxyId>,
    /// How many reasons there were so far to look behind a shared address again.
    pub(super) reasons_to_look: u64,
}

impl Plan {
    pub(super) fn new(spread: Spread) -> Self {
        Self {
            spread,
            addresses: Addresses::default(),
            claims: BTreeMap::new(),
            dialling: BTreeMap::new(),
            former: BTreeSet::new(),
            extra: BTreeMap::new(),
            invited: BTreeSet::new(),
            moving: None,
            reasons_to_look: 0,
        }
    }

    /// Replaces the listed addresses. Returns those that tunnels have to leave.
    pub(super) fn list(&mut self, listed: BTreeSet<HostPort>) -> BTreeSet<HostPort> {
        let mut removed = self.addresses.list(listed);
        removed.retain(|address| {
            !self.addresses.is_reported(address)
                && self.claims.values().any(|claim| claim.address == *address)
        });
        self.former
            .retain(|address| !self.addresses.is_listed(address));
        self.former.extend(removed.iter().cloned());
        self.forget_former();
        self.reasons_to_look += 1;
        removed
    }

    /// Former addresses count while tunnels lead there, or nowhere else.
    fn forget_former(&mut self) {
        let claims = &self.claims;
        let elsewhere = claims
            .values()
            .any(|claim| !self.former.contains(&claim.address));
        self.former
            .retain(|address| !elsewhere || claims.values().any(|claim| claim.address == *address));
    }

    /// The proxy `by` reports which proxies there are.
    pub(super) fn record_report(&mut self, by: &ProxyId, proxies: Vec<Proxy>) {
        let ours: BTreeSet<_> = self.claims.values().map(|claim| &claim.proxy).collect();
        if ours.contains(by) && self.addresses.record_report(by, proxies, &ours) {
            self.reasons_to_look += 1;
        }
    }

    /// What a slot without a tunnel, or with one that should go, does next.
    pub(super) fn choose(&self, slot: SlotNumber, look: Look, now: Instant) -> Choice {
        let candidates = if self.claims.is_empty() {
            self.any_address(slot)
        } else {
            self.promising(slot, look)
        };
        let mut ready = Vec::new();
        let mut later = Vec::new();
        for candidate in candidates {
            match self.addresses.not_before(candidate.address, now) {
                None => ready.push(candidate),
                Some(not_before) => later.push(not_before),
            }
        }
        let best = ready.into_iter().min_by_key(|candidate| {
            let failed_at = self.addresses.failed_at(candidate.address);
            (failed_at, candidate.rank, rand::random::<u32>())
        });
        match best {
            Some(Candidate {
                address,
                rank: Rank::Look,
            }) => Choice::Look(address.clone()),
            Some(Candidate { address, .. }) => Choice::Dial(address.clone()),
            None => Choice::Wait(later.into_iter().min()),
        }
    }

    /// Without any tunnel, all addresses are tried side by side, each by few slots.
    fn any_address(&self, slot: SlotNumber) -> Vec<Candidate<'_>> {
        let mut candidates = Vec::new();
        for address in self.addresses.iter().chain(&self.former) {
            let mut dials = 0;
            for (other, dialled) in &self.dialling {
                if *other != slot && dialled == address {
                    dials += 1;
                }
            }
            if dials < usize::from(self.spread.tunnels) {
                candidates.push(Candidate {
                    address,
                    rank: Rank::Dialled(dials),
                });
            }
        }
        candidates
    }

    /// The addresses where a proxy is expected that this slot may have. An address where another
    /// one is expected may be looked behind, unless a listed one is left to be tried; that of a
    /// proxy that drains in any case, for its successor has the same one.
    fn promising(&self, slot: SlotNumber, look: Look) -> Vec<Candidate<'_>> {
        let others = self.others(slot, true);
        let mean = evening::mean(self.addresses.proxies()).unwrap_or_default();
        let mut candidates = Vec::new();
        let mut rest = Vec::new();
        for address in self.addresses.iter() {
            let proxy = self.addresses.expected(address);
            if self.admits(&proxy, &others) {
                let rank = self.rank(&proxy, mean);
                candidates.push(Candidate { address, rank });
            } else {
                rest.push((address, proxy));
            }
        }
        if look == Look::Never {
            return candidates;
        }
        let has_listed = candidates
            .iter()
            .any(|candidate| self.addresses.is_listed(candidate.address));
        let may_share = !has_listed && self.may_be_others(&others);
        for (address, proxy) in rest {
            let is_draining = self.addresses.is_draining(&proxy);
            if is_draining || may_share && self.addresses.may_be_shared(address) {
                let rank = Rank::Look;
                candidates.push(Candidate { address, rank });
            }
        }
        candidates
    }

    /// The rank of an address where `proxy` is expected; `mean` is the proxies' mean of nodes.
    fn rank(&self, proxy: &ProxyId, mean: f64) -> Rank {
        match self.addresses.proxies().get(proxy) {
            Some(reported) if f64::from(reported.nodes) > mean => Rank::Full,
            Some(_) | None => Rank::Expected,
        }
    }

    /// Whether there may be a proxy that is wanted, by what proxies report. Older ones report
    /// nothing.
    fn may_be_others(&self, others: &[ProxyId]) -> bool {
        let reported = self.addresses.proxies();
        reported.is_empty() || reported.keys().any(|proxy| self.admits(proxy, others))
    }

    /// The proxies of the other slots' tunnels, without those that have to go; those that they
    /// expect at the addresses that they dial count too if `dialling`.
    fn others(&self, slot: SlotNumber, dialling: bool) -> Vec<ProxyId> {
        let mut others = BTreeMap::new();
        if dialling {
            for (number, address) in &self.dialling {
                others.insert(*number, self.addresses.expected(address));
            }
        }
        for (number, claim) in &self.claims {
            if !self.has_to_go(claim) {
                others.entry(*number).or_insert_with(|| claim.proxy.clone());
            }
        }
        others.remove(&slot);
        others.into_values().collect()
    }

    fn admits(&self, proxy: &ProxyId, others: &[ProxyId]) -> bool {
        if self.is_left(proxy) {
            return false;
        }
        let mut to_it = 0;
        for other in others {
            to_it += usize::from(other == proxy);
        }
        to_it < self.allowance(proxy, others)
    }

    /// How many tunnels `proxy` may have, beside tunnels to the `others`.
    fn allowance(&self, proxy: &ProxyId, others: &[ProxyId]) -> usize {
        let chosen = self.chosen(others);
        if chosen.contains(proxy) || chosen.len() < usize::from(self.spread.proxies) {
            self.spread.to_each(self.extra(proxy))
        } else if self.invited.contains(proxy) {
            self.extra(proxy).into()
        } else {
            0
        }
    }

    /// The proxies among these that have their tunnels whether or not there is bulk data.
    fn chosen<'a>(&self, proxies: &'a [ProxyId]) -> BTreeSet<&'a ProxyId> {
        let mut chosen: BTreeSet<_> = proxies.iter().collect();
        chosen.retain(|proxy| !self.invited.contains(*proxy));
        chosen
    }

    pub(super) fn invited(&self) -> &BTreeSet<ProxyId> {
        &self.invited
    }

    /// Whether `proxy` may have extra tunnels: there are tunnels to it, or it can be dialled.
    pub(super) fn may_invite(&self, proxy: &ProxyId) -> bool {
        self.invited.contains(proxy)
            || self.claims.values().any(|claim| claim.proxy == *proxy)
            || self.invited.len() < INVITED_MAX && !self.is_left(proxy) && self.has_address(proxy)
    }

    /// Whether another proxy says where it can be dialled.
    fn has_address(&self, proxy: &ProxyId) -> bool {
        match self.addresses.proxies().get(proxy) {
            Some(reported) => !reported.addresses.is_empty(),
            None => false,
        }
    }

    /// Lets `proxy` have extra tunnels, if it may.
    pub(super) fn invite(&mut self, proxy: &ProxyId) -> bool {
        if !self.may_invite(proxy) {
            return false;
        }
        if self.claims.values().all(|claim| claim.proxy != *proxy) {
            self.invited.insert(proxy.clone());
        }
        true
    }

    /// Invited proxies are forgotten that have no tunnels and get none.
    fn forget_invited(&mut self) {
        let extra = &self.extra;
        let claims = &self.claims;
        self.invited.retain(|proxy| {
            extra.contains_key(proxy) || claims.values().any(|claim| claim.proxy == *proxy)
        });
    }

    fn extra(&self, proxy: &ProxyId) -> u8 {
        self.extra.get(proxy).copied().unwrap_or_default()
    }

    /// Proxies get this many extra tunnels from now on. Returns whether it changed.
    pub(super) fn set_extra(&mut self, extra: BTreeMap<ProxyId, u8>) -> bool {
        let is_changed = self.extra != extra;
        if extra
            .iter()
            .any(|(proxy, number)| *number > self.extra(proxy))
        {
            self.reasons_to_look += 1;
        }
        self.extra = extra;
        self.forget_invited();
        is_changed
    }

    /// Whether the slot has the last of more tunnels than its proxy gets now.
    fn is_surplus(&self, slot: SlotNumber) -> bool {
        let Some(claim) = self.claims.get(&slot) else {
            return false;
        };
        let mut before = 0;
        for (_, other) in self.claims.range(..slot) {
            if other.proxy == claim.proxy && !self.has_to_go(other) {
                before += 1;
            }
        }
        let extra = self.extra(&claim.proxy);
        if self.invited.contains(&claim.proxy) {
            before >= usize::from(extra)
        } else {
            before >= self.spread.to_each(extra)
        }
    }

    /// Whether the tunnels to `proxy` should go to others.
    fn is_left(&self, proxy: &ProxyId) -> bool {
        self.addresses.is_draining(proxy) || self.moving.as_ref() == Some(proxy)
    }

    fn has_to_go(&self, claim: &Claim) -> bool {
        self.is_left(&claim.proxy) || self.former.contains(&claim.address)
    }

    /// The slot dials `address` from now on.
    pub(super) fn dials(&mut self, slot: SlotNumber, address: &HostPort) {
        self.dialling.insert(slot, address.clone());
    }

    /// The slot's tunnel number `sequence`, by way of `address`, has met `proxy`.
    pub(super) fn claim(
        &mut self,
        slot: SlotNumber,
        sequence: u64,
        address: &HostPort,
        proxy: &ProxyId,
    ) -> Result<(), Declined> {
        self.dialling.remove(&slot);
        self.addresses.met(address, proxy);
        let is_former = self.former.contains(address);
        let others = self.others(slot, false);
        let is_wanted = !is_former && self.admits(proxy, &others);
        // Any proxy is better than none.
        if !is_wanted && !self.claims.is_empty() {
            return Err(Declined);
        }
        if self.chosen(&others).len() < usize::from(self.spread.proxies) {
            self.invited.remove(proxy);
        }
        self.addresses.works(address);
        let claim = Claim {
            sequence,
            proxy: proxy.clone(),
            address: address.clone(),
        };
        if let Some(before) = self.claims.insert(slot, claim) {
            self.left(&before.proxy);
        }
        self.forget_former();
        Ok(())
    }

    /// The slot's tunnel number `sequence` has ended, or was never claimed.
    pub(super) fn release(&mut self, slot: SlotNumber, sequence: u64) {
        if let Entry::Occupied(entry) = self.claims.entry(slot)
            && entry.get().sequence == sequence
        {
            let claim = entry.remove();
            self.reasons_to_look += 1;
            self.left(&claim.proxy);
            self.forget_former();
        }
    }

    fn left(&mut self, proxy: &ProxyId) {
        if self.claims.values().all(|claim| claim.proxy != *proxy) {
            if self.addresses.remove_report(proxy) {
                self.reasons_to_look += 1;
            }
            self.moving.take_if(|moving| moving == proxy);
            self.forget_invited();
        }
    }

    pub(super) fn failed(
        &mut self,
        slot: SlotNumber,
        address: &HostPort,
        failure: Failure,
        error: &str,
        now: Instant,
    ) -> Retry {
        self.dialling.remove(&slot);
        self.addresses.failed(address, failure, error, now)
    }

    pub(super) fn forgive(&mut self) {
        self.addresses.forgive();
    }

    pub(super) fn has_tunnel(&self, slot: SlotNumber) -> bool {
        self.claims.contains_key(&slot)
    }

    /// Why the slot's tunnel should end, if it should.
    pub(super) fn should_leave(&self, slot: SlotNumber) -> Option<Leave> {
        if self.has_to_go(self.claims.get(&slot)?) {
            Some(Leave::Proxy)
        } else if self.is_surplus(slot) {
            Some(Leave::Surplus)
        } else {
            None
        }
    }

    /// Whether the slot's tunnel is to end even if the slot finds no other place: its proxy has more
    /// than it gets, or it should go and the other slots have tunnels to all proxies that there are
    /// to be, or its proxy drains or was removed and they have as many tunnels as one proxy gets.
    pub(super) fn may_end(&self, slot: SlotNumber) -> bool {
        let Some(claim) = self.claims.get(&slot) else {
            return false;
        };
        if self.is_surplus(slot) {
            return true;
        }
        let ends = self.addresses.is_draining(&claim.proxy) || self.former.contains(&claim.address);
        let others = self.others(slot, false);
        let different = self.chosen(&others).len();
        ends && others.len() >= usize::from(self.spread.tunnels)
            || self.has_to_go(claim) && different >= usize::from(self.spread.proxies)
    }

    /// Decides whether tunnels move to a proxy with fewer nodes. A move that found no place is over.
    pub(super) fn even_out(&mut self, chance: f64) -> Option<&ProxyId> {
        let mut ours: BTreeSet<_> = self.claims.values().map(|claim| &claim.proxy).collect();
        ours.retain(|proxy| !self.invited.contains(*proxy));
        self.moving = evening::to_leave(self.addresses.proxies(), &ours, chance);
        self.moving.as_ref()
    }
}

/// An address that a slot may dial.
struct Candidate<'a> {
    address: &'a HostPort,
    rank: Rank,
}

/// The best is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// So many other slots dial it.
    Dialled(usize),
    Expected,
    /// A proxy that has more nodes than the mean.
    Full,
    Look,
}

#[cfg(test)]
mod tests;
