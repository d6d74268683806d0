//! Who gets a permit when all are taken. Pure: the clock is an argument.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

/// A host with an IPv6 address has its /64, and often a /48.
const HOST_BITS: (u8, u8) = (32, 64);
const SITE_BITS: (u8, u8) = (24, 48);

/// The share of an address is one in so many permits. No address loses permits within its share:
/// agents at many sites would only evict each other.
const SHARE: usize = 32;

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// An IPv4 address or an IPv6 /64.
    pub(super) host: IpNet,
    /// The network around it.
    site: IpNet,
}

impl Origin {
    pub(super) fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self {
            host: network(address, HOST_BITS),
            site: network(address, SITE_BITS),
        }
    }
}

/// The network of so many bits around an address.
fn network(address: IpAddr, (v4, v6): (u8, u8)) -> IpNet {
    let bits = if address.is_ipv4() { v4 } else { v6 };
    match IpNet::new(address, bits) {
        Ok(network) => network.trunc(),
        Err(_) => address.into(),
    }
}

/// What a pool may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) permits: usize,
    /// A permit that is younger is not lost to an address with as many: honest clients that come at
    /// once would only evict each other.
    pub(super) spared: Duration,
}

impl Limits {
    pub(super) fn new(permits: usize, spared: Duration) -> Self {
        Self { permits, spared }
    }
}

/// The permits of one phase.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Keyed by numbers that rise: the first is the oldest.
    holders: BTreeMap<u64, Holder>,
    /// How many of them are of each host, by site: to turn a client away must not cost a count of all.
    sites: HashMap<IpNet, Hosts>,
}

/// The hosts of a site that have permits.
#[derive(Debug, Default)]
struct Hosts(HashMap<IpNet, usize>);

impl Hosts {
    fn permits(&self) -> usize {
        self.0.values().sum()
    }

    fn permits_of(&self, host: IpNet) -> usize {
        self.0.get(&host).copied().unwrap_or_default()
    }

    /// The one with most.
    fn fullest(&self) -> Option<IpNet> {
        let (host, _) = self.0.iter().max_by_key(|(_, permits)| **permits)?;
        Some(*host)
    }

    fn add(&mut self, host: IpNet) {
        *self.0.entry(host).or_default() += 1;
    }

    fn remove(&mut self, host: IpNet) {
        let left = self.permits_of(host).saturating_sub(1);
        if left == 0 {
            self.0.remove(&host);
        } else {
            self.0.insert(host, left);
        }
    }
}

#[derive(Debug)]
struct Holder {
    origin: Origin,
    since: Instant,
    evicted: CancellationToken,
}

impl Pool {
    /// Gives out a permit. If all are taken it evicts a holder, whose `evicted` is cancelled.
    /// `false`: there is none.
    pub(super) fn admit(
        &mut self,
        number: u64,
        origin: Origin,
        evicted: &CancellationToken,
        limits: Limits,
        now: Instant,
    ) -> bool {
        if self.holders.len() >= limits.permits {
            let Some(victim) = self.victim(origin, limits, now) else {
                return false;
            };
            if let Some(evicted) = self.remove(victim) {
                evicted.cancel();
            }
        }
        self.sites.entry(origin.site).or_default().add(origin.host);
        self.holders.insert(
            number,
            Holder {
                origin,
                since: now,
                evicted: evicted.clone(),
            },
        );
        true
    }

    /// How many are taken.
    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    /// Whether at least `count` holders came before that number, or before now.
    pub(super) fn has_before(&self, number: Option<u64>, count: usize) -> bool {
        let before = self.holders.range(..number.unwrap_or(u64::MAX));
        before.take(count).count() == count
    }

    /// Returns the permit of this number.
    pub(super) fn leave(&mut self, number: u64) {
        self.remove(number);
    }

    /// Removes a holder, and returns what tells it so.
    fn remove(&mut self, number: u64) -> Option<CancellationToken> {
        let Holder {
            origin, evicted, ..
        } = self.holders.remove(&number)?;
        if let Some(hosts) = self.sites.get_mut(&origin.site) {
            hosts.remove(origin.host);
            if hosts.0.is_empty() {
                self.sites.remove(&origin.site);
            }
        }
        Some(evicted)
    }

    /// The oldest permit of the address with most, if these are more than a share and more than
    /// twice what the newcomer then has; otherwise the oldest of all, once it is no longer spared.
    fn victim(&self, origin: Origin, limits: Limits, now: Instant) -> Option<u64> {
        let fullest = self.sites.iter().max_by_key(|(_, hosts)| hosts.permits());
        let (site, hosts) = fullest?;
        let host = hosts.fullest()?;
        // Two of one site are compared by their hosts.
        let [own, most] = if origin.site == *site {
            [hosts.permits_of(origin.host), hosts.permits_of(host)]
        } else {
            let own = self.sites.get(&origin.site);
            [own.map_or(0, Hosts::permits), hosts.permits()]
        };
        if most > limits.permits / SHARE && 2 * (own + 1) < most {
            return self.oldest_of(host);
        }
        let (number, oldest) = self.holders.first_key_value()?;
        if now.saturating_duration_since(oldest.since) < limits.spared {
            return None;
        }
        Some(*number)
    }

    fn oldest_of(&self, host: IpNet) -> Option<u64> {
        let mut holders = self.holders.iter();
        let (number, _) = holders.find(|(_, holder)| holder.origin.host == host)?;
        Some(*number)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.sites.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        permits: 8,
        spared: Duration::from_secs(2),
    };

    /// A pool, the clock, and what became of each who got a permit.
    struct World {
        pool: Pool,
        now: Instant,
        tokens: Vec<CancellationToken>,
    }

    impl World {
        fn new() -> Self {
            Self {
                pool: Pool::default(),
                now: Instant::now(),
                tokens: Vec::new(),
            }
        }

        fn enters(&mut self, address: &str) -> bool {
            let token = CancellationToken::new();
            let origin = Origin::of(address.parse().unwrap());
            let entered =
                self.pool
                    .admit(self.tokens.len() as u64, origin, &token, LIMITS, self.now);
            self.tokens.push(token);
            entered
        }

        fn evicted(&self) -> Vec<usize> {
            let evicted = |(number, token): (usize, &CancellationToken)| {
                token.is_cancelled().then_some(number)
            };
            self.tokens.iter().enumerate().filter_map(evicted).collect()
        }
    }

    #[test]
    fn one_silent_64_locks_nobody_out() {
        let mut world = World::new();
        for host in 0..8 {
            assert!(world.enters(&format!("2001:db8::{host}")));
        }
        assert!(
            world.enters("2001:db8:1::1")
                && world.enters("192.0.2.1")
                && world.enters("2001:db8:0:9::1")
        );
        assert_eq!(world.evicted(), [0, 1, 2], "its oldest went, however young");
        assert!(!world.enters("2001:db8::99"), "itself it gets no more");
    }

    #[test]
    fn a_network_of_many_64s_counts_as_one_too() {
        let mut world = World::new();
        for subnet in 0..8 {
            assert!(world.enters(&format!("2001:db8:0:{subnet}::1")));
        }
        assert!(world.enters("2001:db8:1::1"));
        assert_eq!(world.evicted().len(), 1);
    }

    #[test]
    fn behind_one_forwarder_the_oldest_gives_way_once_it_had_its_time() {
        let mut world = World::new();
        for _ in 0..8 {
            assert!(world.enters("192.0.2.1"));
        }
        assert!(
            !world.enters("192.0.2.1"),
            "no honest crowd throws itself out"
        );
        world.now += LIMITS.spared;
        assert!(world.enters("192.0.2.1"));
        assert_eq!(world.evicted(), [0]);
    }

    #[test]
    fn those_with_a_share_each_are_spared() {
        let mut world = World::new();
        for site in 0..8 {
            assert!(world.enters(&format!("198.51.{site}.1")));
        }
        assert!(!world.enters("203.0.113.1"));
        assert!(world.evicted().is_empty());
        world.now += LIMITS.spared;
        assert!(world.enters("203.0.113.1"));
        assert_eq!(world.evicted(), [0]);
    }

    #[test]
    fn honest_sites_of_about_one_size_throw_nobody_out() {
        let mut world = World::new();
        for site in [1, 1, 1, 2, 2, 3, 4, 4] {
            assert!(world.enters(&format!("198.51.{site}.1")));
        }
        assert!(!world.enters("198.51.3.1"), "it would have two of three");
        assert!(world.enters("198.51.5.1"), "it has none, and one has three");
        assert_eq!(world.evicted(), [0]);
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_one() {
        assert_eq!(
            Origin::of("::ffff:192.0.2.1".parse().unwrap()).host,
            Origin::of("192.0.2.1".parse().unwrap()).host
        );
    }
}
