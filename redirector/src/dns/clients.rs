//! Who may ask.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use parking_lot::Mutex;

use crate::config::addresses_of_this_host;

/// For how long the list of this host's addresses is used. Reading it costs more than an answer,
/// and strangers can ask at any rate.
const LIST_AGE: Duration = Duration::from_secs(1);

/// This host itself, by any of its addresses, and the ranges of `--dns-client`.
pub(super) struct Clients {
    ranges: Vec<IpNet>,
    own: Mutex<OwnAddresses>,
}

#[derive(Default)]
struct OwnAddresses {
    list: BTreeSet<IpAddr>,
    /// When the list was read.
    read: Option<Instant>,
}

impl Clients {
    pub(super) fn new(ranges: Vec<IpNet>) -> Self {
        Self {
            ranges,
            own: Mutex::default(),
        }
    }

    /// Whether a client may ask. Another host that sends from an address of this one gets no answer:
    /// this host does.
    pub(super) fn admit(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        client.is_loopback()
            || self.ranges.iter().any(|range| range.contains(&client))
            || self.is_this_host(client)
    }

    fn is_this_host(&self, client: IpAddr) -> bool {
        let mut own = self.own.lock();
        if own.read.is_none_or(|read| read.elapsed() >= LIST_AGE) {
            own.list = addresses_of_this_host();
            own.read = Some(Instant::now());
        }
        own.list.contains(&client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_may_ask_whatever_the_ranges_and_nobody_else() {
        let clients = Clients::new(vec!["192.0.2.0/25".parse().unwrap()]);
        for own in addresses_of_this_host() {
            assert!(clients.admit(own), "{own}");
        }
        for admitted in ["127.0.0.5", "::1", "192.0.2.7", "::ffff:192.0.2.7"] {
            assert!(clients.admit(admitted.parse().unwrap()), "{admitted}");
        }
        for stranger in ["192.0.2.200", "2001:db8::1"] {
            assert!(!clients.admit(stranger.parse().unwrap()), "{stranger}");
        }
    }
}
