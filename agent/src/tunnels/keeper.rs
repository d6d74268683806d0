//! Keeps the tunnel slots going, and passes changes on to them: the listed addresses, the
//! certificate, and the loads of the proxies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_api::HostPort;
use culvert_daemon::{Drain, Workers, jittered};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use crate::tunnels::demand::{Counted, Demand};
use crate::tunnels::placement::{ProxyId, SlotNumber, Spread};
use crate::tunnels::slot::{Shared, TunnelSlot};
use crate::tunnels::states::Tunnels;

/// Longest time between two looks at the loads of the proxies. Tunnels that moved after the last
/// look have to be counted before the next one.
const EVEN_OUT_EVERY: Duration = Duration::from_secs(300);

/// How often the tunnels are looked at for bulk data.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What the agent needs to keep tunnels.
pub(crate) struct TunnelKeeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) all: Tunnels,
    pub(crate) spread: Spread,
    /// Each tunnel runs on one of these threads, with its streams.
    pub(crate) workers: Arc<Workers>,
}

impl TunnelKeeper {
    /// Keeps tunnels until the drain begins, then waits until they end. `proxies` are the listed
    /// addresses.
    pub(crate) async fn run(
        self,
        mut proxies: watch::Receiver<Vec<HostPort>>,
        drain: Drain,
    ) -> Result<()> {
        self.list(&proxies.borrow_and_update());
        let mut slots = JoinSet::new();
        self.start(&mut slots, self.spread.slots(), &drain);
        let mut demand = Demand::new(self.spread);
        let mut look = tokio::time::interval(CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut certificates = self.shared.certificates.changes();
        let mut even_out_at = Instant::now() + jittered(EVEN_OUT_EVERY);
        while !drain.has_begun() {
            tokio::select! {
                Ok(()) = proxies.changed() => self.list(&proxies.borrow_and_update()),
                Ok(()) = certificates.changed() => self.shared.placement.forgive(),
                () = tokio::time::sleep_until(even_out_at) => {
                    self.shared.placement.even_out(rand::random());
                    even_out_at = Instant::now() + jittered(EVEN_OUT_EVERY);
                }
                asked = self.shared.placement.requests() => {
                    let extra = demand.after_requests(&asked, &self.counted());
                    self.set_extra(extra, &mut slots, &drain);
                }
                _ = look.tick() => {
                    let extra = demand.after(&self.counted());
                    self.set_extra(extra, &mut slots, &drain);
                }
                Some(ended) = slots.join_next() => ended.context("a tunnel's task panicked")?,
                () = drain.begun() => {}
            }
        }
        while let Some(ended) = slots.join_next().await {
            ended.context("a tunnel's task panicked")?;
        }
        Ok(())
    }

    /// The tunnels to each proxy that has some or is invited.
    fn counted(&self) -> BTreeMap<ProxyId, Counted> {
        let mut counted = self.all.counted();
        for proxy in self.shared.placement.invited() {
            counted.entry(proxy).or_default().is_invited = true;
        }
        counted
    }

    /// Proxies get this many extra tunnels from now on.
    fn set_extra(&self, extra: BTreeMap<ProxyId, u8>, slots: &mut JoinSet<()>, drain: &Drain) {
        let more = extra.values().copied().map(u16::from).sum::<u16>();
        self.start(slots, self.spread.slots() + more, drain);
        self.shared.placement.set_extra(extra);
    }

    /// Starts slots until there are `wanted` of them. They stay.
    fn start(&self, slots: &mut JoinSet<()>, wanted: u16, drain: &Drain) {
        for number in (0..wanted).skip(slots.len()).map(SlotNumber) {
            let slot = TunnelSlot {
                number,
                shared: self.shared.clone(),
                entry: self.all.entry(number),
            };
            slots.spawn_on(slot.run(drain.clone()), self.workers.next().handle());
        }
    }

    fn list(&self, proxies: &[HostPort]) {
        for proxy in self
            .shared
            .placement
            .list(proxies.iter().cloned().collect())
        {
            tracing::info!(
                %proxy,
                "the proxy was removed from the list: its tunnels end with their streams, once \
                 another proxy has taken their place"
            );
        }
    }
}

#[cfg(test)]
mod tests;
