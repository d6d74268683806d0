//! The addresses of this host that connections are steered to.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use culvert_daemon::{host_addresses, source_address};
use ipnet::IpNet;

use super::ConfigError;

/// Destinations whose route shows the default route's source address; no packet is sent. The
/// documentation addresses come first; a host that rejects bogons still routes the others.
const BEHIND_DEFAULT_ROUTES: [&str; 4] = [
    "192.0.2.1:9",
    "1.1.1.1:9",
    "[2001:db8::1]:9",
    "[2606:4700::1111]:9",
];
/// This host's IPv6 addresses, one a line: address, interface index, prefix length, scope, flags,
/// interface name.
const IF_INET6: &str = "/proc/net/if_inet6";
/// `IFA_F_TEMPORARY`, `IFA_F_DADFAILED`, `IFA_F_DEPRECATED` and `IFA_F_TENTATIVE` of
/// linux/if_addr.h: the address goes away soon, or cannot be used yet.
const PASSING: u32 = 0x01 | 0x08 | 0x20 | 0x40;
/// `IFA_F_TEMPORARY`.
const TEMPORARY: u32 = 0x01;

/// This host's intercept addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeIps {
    pub(crate) v4: Option<Ipv4Addr>,
    pub(crate) v6: Option<Ipv6Addr>,
}

impl NodeIps {
    /// The given addresses, or those that the host uses towards its default routes.
    pub(super) fn find(given: &[IpAddr]) -> Result<Self, ConfigError> {
        let mut found = Self::default();
        for ip in given {
            let before = match ip {
                IpAddr::V4(v4) => found.v4.replace(*v4).map(IpAddr::V4),
                IpAddr::V6(v6) => found.v6.replace(*v6).map(IpAddr::V6),
            };
            if let Some(first) = before {
                return Err(ConfigError::TwoOfAFamily { first, second: *ip });
            }
        }
        found.check()?;
        if given.is_empty() {
            found = Self::by_routing();
        }
        if found == Self::default() {
            Err(ConfigError::NoNodeIp)
        } else {
            Ok(found)
        }
    }

    /// The source addresses towards default routes. Nothing is sent.
    pub(crate) fn by_routing() -> Self {
        let mut found = Self::default();
        for towards in BEHIND_DEFAULT_ROUTES {
            let Ok(towards) = towards.parse() else {
                continue;
            };
            match source_address(towards) {
                Some(IpAddr::V4(v4)) => _ = found.v4.get_or_insert(v4),
                Some(IpAddr::V6(v6)) if found.v6.is_none() => found.v6 = lasting(v6),
                Some(IpAddr::V6(_)) | None => {}
            }
        }
        found
    }

    /// Adds those of `others` for the families that are missing here.
    pub(crate) fn or(self, others: Self) -> Self {
        Self {
            v4: self.v4.or(others.v4),
            v6: self.v6.or(others.v6),
        }
    }

    /// Whether the host still has them: a connection that is steered to a lost address would leave
    /// the host.
    pub(crate) fn check(self) -> Result<(), ConfigError> {
        // Not by binding them: `ip_nonlocal_bind` lets a program bind any.
        let own = addresses_of_this_host();
        for ip in self.all() {
            if !own.contains(&ip) {
                return Err(ConfigError::NotOurs(ip));
            }
        }
        Ok(())
    }

    pub(crate) fn all(self) -> impl Iterator<Item = IpAddr> {
        self.v4
            .map(IpAddr::V4)
            .into_iter()
            .chain(self.v6.map(IpAddr::V6))
    }
}

/// Empty if the kernel does not list them.
pub(crate) fn addresses_of_this_host() -> BTreeSet<IpAddr> {
    host_addresses().unwrap_or_default()
}

/// The address itself; for a temporary one (RFC 8981), a lasting one of the same network.
fn lasting(chosen: Ipv6Addr) -> Option<Ipv6Addr> {
    lasting_in(
        &std::fs::read_to_string(IF_INET6).unwrap_or_default(),
        chosen,
    )
}

fn lasting_in(if_inet6: &str, chosen: Ipv6Addr) -> Option<Ipv6Addr> {
    let addresses: Vec<_> = if_inet6.lines().filter_map(Ipv6Line::parse).collect();
    let Some(own) = addresses.iter().find(|address| address.ip == chosen) else {
        return Some(chosen);
    };
    if own.flags & TEMPORARY == 0 {
        return Some(chosen);
    }
    for other in &addresses {
        let is_alike = other.interface == own.interface && other.network() == own.network();
        if is_alike && other.flags & PASSING == 0 {
            return Some(other.ip);
        }
    }
    None
}

/// A line of [`IF_INET6`].
struct Ipv6Line<'a> {
    ip: Ipv6Addr,
    interface: &'a str,
    length: u8,
    flags: u32,
}

impl<'a> Ipv6Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let [ip, interface, length, _scope, flags, ..] =
            *line.split_whitespace().collect::<Vec<_>>()
        else {
            return None;
        };
        let ip = u128::from_str_radix(ip, 16).ok()?.into();
        let length = u8::from_str_radix(length, 16).ok()?;
        Some(Self {
            ip,
            interface,
            length,
            flags: u32::from_str_radix(flags, 16).ok()?,
        })
    }

    fn network(&self) -> Option<IpNet> {
        IpNet::new(self.ip.into(), self.length)
            .ok()
            .map(|net| net.trunc())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use culvert_api::installed::HookScope;

    use super::*;
    use crate::args::Args;
    use crate::config::Config;
    use crate::config::tests::config;

    #[test]
    fn a_temporary_address_gives_way_to_a_lasting_one_of_its_network() {
        let lines = "20010db8000000010000000000000077 02 40 00 01     eth0\n\
                     20010db8000000010000000000000066 02 40 00 20     eth0\n\
                     20010db8000000010000000000000055 02 40 00 80     eth0\n\
                     fe800000000000000000000000000001 02 40 20 80     eth0\n\
                     20010db8000000020000000000000044 03 40 00 01     eth1\n";
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        assert_eq!(
            lasting_in(lines, ip("2001:db8:0:1::77")),
            Some(ip("2001:db8:0:1::55"))
        );
        assert_eq!(
            lasting_in(lines, ip("2001:db8:0:1::55")),
            Some(ip("2001:db8:0:1::55"))
        );
        assert_eq!(
            lasting_in(lines, ip("2001:db8:0:2::44")),
            None,
            "it has no other"
        );
        assert_eq!(lasting_in("", ip("2001:db8::1")), Some(ip("2001:db8::1")));
    }

    #[test]
    fn one_node_ip_a_family_and_only_our_own() {
        assert!(matches!(
            config(&["--node-ip", "127.0.0.2"]),
            Err(ConfigError::TwoOfAFamily { .. })
        ));
        for foreign in ["192.0.2.77", "0.0.0.0", "::"] {
            let foreign =
                Args::try_parse_from(["culvert-redirector", "--node-ip", foreign]).unwrap();
            assert!(matches!(
                Config::new(foreign, HookScope::Host),
                Err(ConfigError::NotOurs(_))
            ));
        }
    }
}
