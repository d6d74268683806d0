//! Where the tunnels go: what all slots share. The decisions are in [`plan`].

mod addresses;
mod evening;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use culvert_api::HostPort;
use culvert_tunnel::Declined;
use culvert_tunnel::proto::tunnel::Proxy;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub(super) use addresses::{Failure, Retry};
use plan::Plan;
pub(crate) use plan::Spread;
pub(super) use plan::{Choice, Leave};

/// The number of a tunnel slot. The agent sends it to the proxy in `Describe`: a later tunnel of a
/// slot supersedes an earlier one, also one to another proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotNumber(pub(crate) u16);

impl fmt::Display for SlotNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One run of a proxy: its instance, or for an older proxy, which reports none, the address that
/// led to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProxyId(Arc<str>);

impl ProxyId {
    /// The proxy that reports `instance`, met at `address`.
    fn met(instance: &str, address: &HostPort) -> Self {
        if instance.is_empty() {
            Self::at(address)
        } else {
            Self::from(instance)
        }
    }

    fn at(address: &HostPort) -> Self {
        Self::from(address.to_string().as_str())
    }
}

impl From<&str> for ProxyId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ProxyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The plan of all slots. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Placement(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    plan: Mutex<Plan>,
    /// Notified of each change.
    changes: watch::Sender<()>,
    /// Further tunnels that were asked for and are not counted yet, by proxy, and that there are some.
    asked: Mutex<BTreeMap<ProxyId, u32>>,
    are_asked: Notify,
}

impl Placement {
    pub(crate) fn new(spread: Spread) -> Self {
        Self(Arc::new(Inner {
            plan: Mutex::new(Plan::new(spread)),
            changes: watch::Sender::default(),
            asked: Mutex::default(),
            are_asked: Notify::new(),
        }))
    }

    /// Replaces the listed addresses. Returns those that tunnels have to leave.
    pub(super) fn list(&self, listed: BTreeSet<HostPort>) -> BTreeSet<HostPort> {
        self.change(|plan| plan.list(listed))
    }

    /// A new certificate may be taken where the last one was refused.
    pub(super) fn forgive(&self) {
        self.change(Plan::forgive);
    }

    /// Decides whether tunnels move to a proxy with fewer; `chance` is a random number from 0 to
    /// 1.
    pub(super) fn even_out(&self, chance: f64) {
        self.change(|plan| {
            if let Some(proxy) = plan.even_out(chance) {
                tracing::info!(
                    proxy.instance = %proxy,
                    "the proxy has many more tunnels than others: those of this agent move"
                );
            }
        });
    }

    /// Proxies get this many extra tunnels from now on.
    pub(super) fn set_extra(&self, extra: BTreeMap<ProxyId, u8>) {
        if self.0.plan.lock().set_extra(extra) {
            self.0.changes.send_replace(());
        }
    }

    /// Waits until further tunnels are asked for. Returns how many each proxy needs. Those to which
    /// there is no tunnel yet are invited.
    pub(super) async fn requests(&self) -> BTreeMap<ProxyId, u32> {
        self.0.are_asked.notified().await;
        let mut asked = std::mem::take(&mut *self.0.asked.lock());
        let mut plan = self.lock();
        asked.retain(|proxy, _| plan.invite(proxy));
        asked
    }

    /// The proxies that have only extra tunnels.
    pub(super) fn invited(&self) -> BTreeSet<ProxyId> {
        self.lock().invited().clone()
    }

    /// What the slot does next; if it dials, others take that into account.
    pub(super) fn next(&self, slot: SlotNumber, look: Look) -> Choice {
        let mut plan = self.0.plan.lock();
        let choice = plan.choose(slot, look, Instant::now());
        match &choice {
            Choice::Dial(address) => plan.dials(slot, address),
            Choice::Look(address) if look == Look::Now => plan.dials(slot, address),
            Choice::Look(_) | Choice::Wait(_) => {}
        }
        choice
    }

    /// The place of the slot's tunnel number `sequence`, by way of `address`.
    pub(super) fn seat(&self, slot: SlotNumber, sequence: u64, address: &HostPort) -> Seat {
        Seat {
            placement: self.clone(),
            slot,
            sequence,
            address: address.clone(),
            met: watch::Sender::default(),
        }
    }

    /// Records that an attempt by way of `address` failed, or that its tunnel ended.
    pub(super) fn failed(
        &self,
        slot: SlotNumber,
        address: &HostPort,
        failure: Failure,
        error: &str,
    ) -> Retry {
        self.change(|plan| plan.failed(slot, address, failure, error, Instant::now()))
    }

    /// Whether the slot has a tunnel, which another one may be about to replace.
    pub(super) fn has_tunnel(&self, slot: SlotNumber) -> bool {
        self.0.plan.lock().has_tunnel(slot)
    }

    /// Whether the slot's tunnel is to end even if the slot finds no other place.
    pub(super) fn may_end(&self, slot: SlotNumber) -> bool {
        self.0.plan.lock().may_end(slot)
    }

    /// Completes when the slot's tunnel should end.
    pub(super) async fn leaving(&self, slot: SlotNumber) -> Leave {
        let mut changes = self.changes();
        loop {
            let leave = self.0.plan.lock().should_leave(slot);
            if let Some(leave) = leave {
                return leave;
            }
            // It lives as long as this.
            if changes.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// How many reasons there were so far to look behind a shared address again.
    pub(super) fn reasons_to_look(&self) -> u64 {
        self.0.plan.lock().reasons_to_look
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    fn ask(&self, proxy: ProxyId, count: u32) {
        self.0.asked.lock().insert(proxy, count);
        self.0.are_asked.notify_one();
    }

    fn change<R>(&self, change: impl FnOnce(&mut Plan) -> R) -> R {
        let result = change(&mut self.0.plan.lock());
        self.0.changes.send_replace(());
        result
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.0.plan.lock()
    }
}

/// Whether a slot may dial an address that led to a proxy with enough tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Never,
    /// After a pause, in which the first proxy reports which others there are.
    Soon,
    Now,
}

/// What an agent says to a proxy that it has met.
#[derive(Clone, Debug)]
pub(super) enum Met {
    Claimed(ProxyId),
    Declined(ProxyId),
}

/// The place of one tunnel. Dropping it gives up the claim.
#[derive(Debug)]
pub(super) struct Seat {
    placement: Placement,
    slot: SlotNumber,
    sequence: u64,
    address: HostPort,
    met: watch::Sender<Option<Met>>,
}

impl Seat {
    /// Who was met, as soon as the proxy has introduced itself.
    pub(super) fn met(&self) -> watch::Receiver<Option<Met>> {
        self.met.subscribe()
    }

    /// The proxy introduces itself; only the first time counts.
    pub(super) fn introduced(&self, instance: &str) -> Result<(), Declined> {
        if let Some(met) = &*self.met.borrow() {
            return met.answer();
        }
        let proxy = ProxyId::met(instance, &self.address);
        let claimed = self
            .placement
            .change(|plan| plan.claim(self.slot, self.sequence, &self.address, &proxy));
        let met = match claimed {
            Ok(()) => Met::Claimed(proxy),
            Err(Declined) => Met::Declined(proxy),
        };
        self.met.send_replace(Some(met.clone()));
        met.answer()
    }

    /// The proxy reports which proxies there are. Before it has introduced itself it is not known
    /// which proxy reports that.
    pub(super) fn record_report(&self, proxies: Vec<Proxy>) {
        if let Some(Met::Claimed(by)) = &*self.met.borrow() {
            self.placement
                .change(|plan| plan.record_report(by, proxies));
        }
    }

    /// The proxy asks for so many further tunnels.
    pub(super) fn ask(&self, count: u32) {
        if let Some(Met::Claimed(by)) = &*self.met.borrow() {
            self.placement.ask(by.clone(), count);
        }
    }

    /// The proxy asks for so many tunnels to another one, of which streams come by way of it.
    pub(super) fn ask_for(&self, proxy: &str, count: u32) {
        let proxy = ProxyId::from(proxy);
        if let Some(Met::Claimed(_)) = &*self.met.borrow()
            && self.placement.lock().may_invite(&proxy)
        {
            self.placement.ask(proxy, count);
        }
    }
}

impl Met {
    fn answer(&self) -> Result<(), Declined> {
        match self {
            Self::Claimed(_) => Ok(()),
            Self::Declined(_) => Err(Declined),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let slot = self.slot;
        let sequence = self.sequence;
        self.placement.change(|plan| plan.release(slot, sequence));
    }
}
