//! Limits how many refused tokens of one address the proxy sends to the API server. Pure except for
//! its lock.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Refusals of one address within [`WINDOW`]. All agents of a site can share an address, but their
/// tokens are not refused.
const MAX_REFUSALS: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses with recent refusals. If there are more, all are forgotten. The number of concurrent
/// questions is bounded elsewhere.
const MAX_ADDRESSES: usize = 4096;

/// The addresses whose tokens were refused recently.
#[derive(Debug, Default)]
pub(crate) struct Callers(Mutex<HashMap<IpAddr, Refusals>>);

#[derive(Clone, Copy, Debug)]
struct Refusals {
    since: Instant,
    count: u32,
}

impl Callers {
    /// Whether the API server is asked about a token from this address.
    pub(crate) fn may_ask(&self, address: IpAddr, now: Instant) -> bool {
        let callers = self.0.lock();
        match callers.get(&network(address)) {
            Some(refusals) if now < refusals.since + WINDOW => refusals.count < MAX_REFUSALS,
            _ => true,
        }
    }

    /// Counts a token that the API server refused.
    pub(crate) fn record_refusal(&self, address: IpAddr, now: Instant) {
        let mut callers = self.0.lock();
        if callers.len() >= MAX_ADDRESSES {
            callers.retain(|_, refusals| now < refusals.since + WINDOW);
        }
        if callers.len() >= MAX_ADDRESSES {
            callers.clear();
        }
        let fresh = Refusals {
            since: now,
            count: 0,
        };
        let refusals = callers.entry(network(address)).or_insert(fresh);
        if refusals.since + WINDOW <= now {
            *refusals = fresh;
        }
        refusals.count += 1;
    }
}

/// The owner of one IPv6 address has the whole /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_with_many_refused_tokens_waits_and_its_neighbours_do_not() {
        let callers = Callers::default();
        let start = Instant::now();
        for host in 0..MAX_REFUSALS {
            let one = address(&format!("2001:db8::{host:x}"));
            assert!(callers.may_ask(one, start));
            callers.record_refusal(one, start);
        }
        assert!(
            !callers.may_ask(address("2001:db8::ffff"), start),
            "the same /64"
        );
        assert!(callers.may_ask(address("2001:db8:0:1::1"), start));
        assert!(callers.may_ask(address("2001:db8::1"), start + WINDOW));
    }

    #[test]
    fn the_memory_is_bounded() {
        let callers = Callers::default();
        let now = Instant::now();
        for number in 0..(3 * MAX_ADDRESSES as u32) {
            callers.record_refusal(IpAddr::from(number.to_be_bytes()), now);
        }
        assert!(callers.0.lock().len() <= MAX_ADDRESSES);
    }
}
