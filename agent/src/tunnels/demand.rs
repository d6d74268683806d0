//! How many tunnels a proxy gets: one more than bulk data keeps busy, so that a new connection need
//! not wait for it, or as many as it asks for. An invited proxy gets none but these.

use std::collections::BTreeMap;

use crate::tunnels::placement::{ProxyId, Spread};

/// Looks in a row after which there are more tunnels: a scrape makes a tunnel busy for two.
const MORE_AFTER: u32 = 3;
/// Looks in a row after which there are fewer.
const FEWER_AFTER: u32 = 60;

/// The tunnels to one proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) up: u8,
    pub(super) busy: u8,
    pub(super) is_invited: bool,
}

impl Counted {
    /// How many there are without bulk data.
    fn always(self, spread: Spread) -> u8 {
        if self.is_invited { 0 } else { spread.tunnels }
    }
}

/// What the proxies get beside what they always get. It is looked at once a second.
#[derive(Debug)]
pub(super) struct Demand {
    spread: Spread,
    proxies: BTreeMap<ProxyId, ProxyDemand>,
}

#[derive(Debug, Default)]
struct ProxyDemand {
    extra: u8,
    /// Looks in a row that wanted more, and that wanted fewer.
    more: u32,
    fewer: u32,
    /// The most extra tunnels that one of the latter wanted.
    enough: u8,
}

impl Demand {
    pub(super) fn new(spread: Spread) -> Self {
        Self {
            spread,
            proxies: BTreeMap::new(),
        }
    }

    /// The extra tunnels of each proxy, after a look at the tunnels that are up.
    pub(super) fn after(&mut self, tunnels: &BTreeMap<ProxyId, Counted>) -> BTreeMap<ProxyId, u8> {
        self.proxies.retain(|proxy, _| tunnels.contains_key(proxy));
        for (proxy, counted) in tunnels {
            let demand = self.proxies.entry(proxy.clone()).or_default();
            demand.look(self.spread, *counted);
        }
        self.extra()
    }

    /// The same after proxies have asked for further tunnels: each gets so many more than are up.
    pub(super) fn after_requests(
        &mut self,
        asked: &BTreeMap<ProxyId, u32>,
        tunnels: &BTreeMap<ProxyId, Counted>,
    ) -> BTreeMap<ProxyId, u8> {
        for (proxy, count) in asked {
            if let Some(counted) = tunnels.get(proxy) {
                let demand = self.proxies.entry(proxy.clone()).or_default();
                demand.ask(self.spread, *counted, *count);
            }
        }
        self.extra()
    }

    fn extra(&self) -> BTreeMap<ProxyId, u8> {
        let mut extra = BTreeMap::new();
        for (proxy, demand) in &self.proxies {
            if demand.extra > 0 {
                extra.insert(proxy.clone(), demand.extra);
            }
        }
        extra
    }
}

impl ProxyDemand {
    fn ask(&mut self, spread: Spread, counted: Counted, count: u32) {
        let all = counted.up.saturating_add(count.min(u8::MAX.into()) as u8);
        let extra = all.saturating_sub(counted.always(spread));
        let extra = extra.min(spread.extra);
        if extra > self.extra {
            *self = Self {
                extra,
                ..Self::default()
            };
        }
    }

    fn look(&mut self, spread: Spread, counted: Counted) {
        let always = counted.always(spread);
        let needed = match counted.busy {
            0 => 0,
            busy => busy + 1,
        };
        let extra = needed.saturating_sub(always).min(spread.extra);
        // One that is on its way is not busy yet.
        let all_are_up = counted.up >= always.saturating_add(self.extra);
        self.more = if extra > self.extra && all_are_up {
            self.more + 1
        } else {
            0
        };
        if extra < self.extra {
            self.fewer += 1;
            self.enough = self.enough.max(extra);
        } else {
            self.fewer = 0;
            self.enough = 0;
        }
        let extra = if self.more >= MORE_AFTER {
            extra
        } else if self.fewer >= FEWER_AFTER {
            self.enough
        } else {
            return;
        };
        *self = Self {
            extra,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Looks {
        demand: Demand,
    }

    impl Looks {
        fn new() -> Self {
            Self {
                demand: Demand::new(Spread {
                    proxies: 1,
                    tunnels: 2,
                    extra: 2,
                }),
            }
        }

        /// The extra tunnels after so many looks at a proxy with these tunnels.
        fn after(&mut self, looks: u32, up: u8, busy: u8) -> u8 {
            let proxy = ProxyId::from("a");
            let counted = Counted {
                up,
                busy,
                is_invited: false,
            };
            let tunnels = [(proxy.clone(), counted)].into();
            let all = (0..looks).map(|_| self.demand.after(&tunnels));
            let last = all.last().unwrap_or_default();
            last.get(&proxy).copied().unwrap_or_default()
        }
    }

    #[test]
    fn a_proxy_gets_the_tunnels_that_it_asks_for_at_once_up_to_a_limit_and_no_others() {
        let mut looks = Looks::new();
        let proxy = ProxyId::from("a");
        let counted = Counted {
            up: 2,
            busy: 2,
            is_invited: false,
        };
        let up = [(proxy.clone(), counted)].into();
        let mut ask = |name: &str, count| {
            let asked = [(ProxyId::from(name), count)].into();
            looks
                .demand
                .after_requests(&asked, &up)
                .get(&proxy)
                .copied()
        };
        assert_eq!(ask("a", 0), None);
        assert_eq!(ask("stranger", 9), None);
        assert_eq!(ask("a", 1), Some(1));
        assert_eq!(ask("a", 1), Some(1), "the first is on its way");
        assert_eq!(ask("a", u32::MAX), Some(2));
        assert_eq!(ask("a", 0), Some(2));
        assert_eq!(looks.after(FEWER_AFTER - 1, 4, 0), 2);
        assert_eq!(looks.after(1, 4, 0), 0, "they are no longer busy");
    }

    #[test]
    fn an_invited_proxy_has_what_it_asked_for_until_bulk_data_needs_it_no_longer() {
        let mut demand = Looks::new().demand;
        let proxy = ProxyId::from("invited");
        let mut counted = Counted {
            is_invited: true,
            ..Counted::default()
        };
        let asked = [(proxy.clone(), 2)].into();
        let tunnels = [(proxy.clone(), counted)].into();
        let extra = demand.after_requests(&asked, &tunnels);
        assert_eq!(extra.get(&proxy), Some(&2));
        assert_eq!(demand.after(&tunnels).get(&proxy), Some(&2), "on their way");
        counted.up = 2;
        counted.busy = 1;
        let busy = [(proxy.clone(), counted)].into();
        for _ in 0..2 * FEWER_AFTER {
            assert_eq!(demand.after(&busy).get(&proxy), Some(&2));
        }
        counted.busy = 0;
        let idle = [(proxy.clone(), counted)].into();
        for _ in 1..FEWER_AFTER {
            assert_eq!(demand.after(&idle).get(&proxy), Some(&2));
        }
        assert_eq!(demand.after(&idle).get(&proxy), None);
    }

    #[test]
    fn there_is_one_tunnel_more_than_are_busy_up_to_a_limit() {
        let mut looks = Looks::new();
        assert_eq!(looks.after(100, 2, 0), 0);
        assert_eq!(looks.after(100, 2, 1), 0, "the other one is free");
        assert_eq!(looks.after(MORE_AFTER - 1, 2, 2), 0);
        assert_eq!(looks.after(1, 2, 2), 1);
        assert_eq!(looks.after(100, 2, 2), 1, "one is on its way");
        assert_eq!(looks.after(MORE_AFTER, 3, 3), 2);
        assert_eq!(looks.after(100, 4, 4), 2);
    }

    #[test]
    fn bursts_change_nothing_and_a_pause_of_bulk_keeps_what_there_is() {
        let mut looks = Looks::new();
        for _ in 0..10 {
            assert_eq!(looks.after(MORE_AFTER - 1, 2, 2), 0);
            assert_eq!(looks.after(1, 2, 1), 0);
        }
        looks.after(MORE_AFTER, 2, 2);
        for _ in 0..10 {
            assert_eq!(looks.after(FEWER_AFTER - 1, 3, 0), 1);
            assert_eq!(looks.after(1, 3, 2), 1);
        }
        assert_eq!(looks.after(FEWER_AFTER, 3, 0), 0);
    }

    #[test]
    fn as_many_stay_as_were_enough_all_the_time() {
        let mut looks = Looks::new();
        looks.after(MORE_AFTER, 2, 2);
        assert_eq!(looks.after(MORE_AFTER, 3, 3), 2);
        looks.after(FEWER_AFTER - 1, 4, 2);
        assert_eq!(looks.after(1, 4, 0), 1);
        assert_eq!(looks.after(FEWER_AFTER, 3, 0), 0);
    }

    #[test]
    fn a_proxy_without_tunnels_is_forgotten() {
        let mut looks = Looks::new();
        looks.after(MORE_AFTER, 2, 2);
        assert!(looks.demand.after(&BTreeMap::new()).is_empty());
        assert_eq!(looks.after(1, 2, 2), 0);
    }
}
