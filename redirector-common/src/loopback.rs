//! The loopback addresses that connections are steered to, one for each destination.
//!
//! The kernel tells connections apart by addresses and ports. If all went to one address, all
//! destinations together would have the source ports of one. Any loopback address is the host's own
//! without a route, so nothing has to be installed and nothing is missing after an uninstall.

use crate::{Addr, Endpoint, Prefix};

/// The first of these addresses, in host order.
const FIRST: u32 = u32::from_be_bytes([127, 64, 0, 0]);
/// The bits in which they differ.
const HOST_BITS: u32 = 0x003f_ffff;

/// All of these addresses: 127.64.0.0/10. They are far from the few that other programs use, and
/// none is a broadcast address.
pub const LOOPBACK: Prefix = Prefix {
    addr: Addr::from_v4_word(FIRST.to_be()),
    mask: Addr::from_words([u32::MAX, u32::MAX, u32::MAX, (!HOST_BITS).to_be()]),
};

/// [`LOOPBACK`] as people write it.
pub const LOOPBACK_CIDR: &str = "127.64.0.0/10";

/// Which addresses of its host a client's socket can be steered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketReach {
    /// Loopback addresses too.
    Loopback,
    /// The node's own address alone.
    Node,
}

impl SocketReach {
    /// The reach of a socket of the host's network namespace that is bound to the interface with
    /// this index, and to this IPv4 address in network order; 0 if to none.
    ///
    /// Packets of other interfaces do not reach loopback addresses. Packets from other addresses do,
    /// but kubelet and kube-proxy drop them (`KUBE-FIREWALL`).
    #[inline(always)]
    #[must_use]
    pub const fn of_host_socket(interface: u32, source4: u32) -> Self {
        /// `LOOPBACK_IFINDEX` of the kernel.
        const LO: u32 = 1;
        let is_free = (interface == 0 || interface == LO)
            && (source4 == 0 || u32::from_be(source4) >> 24 == 127);
        if is_free { Self::Loopback } else { Self::Node }
    }
}

/// The loopback address of an IPv4 destination. On one port, no two addresses share it that differ
/// in their last 22 bits alone, as VIPs do. Other destinations rarely share one.
#[inline(always)]
#[must_use]
pub const fn loopback(dst: Endpoint) -> Addr {
    let address = u32::from_be(dst.addr.as_words()[3]);
    let rest = mix(dst.port as u32 | address >> 22 << 16);
    Addr::from_v4_word((FIRST | (address ^ rest) & HOST_BITS).to_be())
}

/// MurmurHash3's finalizer: every bit of the input affects every bit of the result.
#[inline(always)]
pub(crate) const fn mix(word: u32) -> u32 {
    let word = (word ^ (word >> 16)).wrapping_mul(0x85eb_ca6b);
    let word = (word ^ (word >> 13)).wrapping_mul(0xc2b2_ae35);
    word ^ (word >> 16)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use super::*;

    fn of(address: impl Into<IpAddr>, port: u16) -> IpAddr {
        loopback(SocketAddr::new(address.into(), port).into()).ip()
    }

    fn word(address: [u8; 4]) -> u32 {
        u32::from_ne_bytes(address)
    }

    #[test]
    fn each_vip_has_a_loopback_address_of_its_own_on_a_port() {
        let first = u32::from(Ipv4Addr::new(198, 18, 0, 0));
        let vips = first..first + (1 << 17);
        let distinct: HashSet<IpAddr> = vips.map(|vip| of(Ipv4Addr::from(vip), 9100)).collect();
        assert_eq!(distinct.len(), 1 << 17);
        let inside = |ip: &IpAddr| LOOPBACK.contains(&Addr::from(*ip));
        assert!(distinct.iter().all(inside));
    }

    #[test]
    fn ports_and_networks_rarely_share_a_loopback_address() {
        let mut distinct = HashSet::new();
        for port in 1..=10_000 {
            distinct.insert(of([198, 18, 0, 1], port));
            distinct.insert(of([10, 0, 3, 7], port));
        }
        assert!(distinct.len() > 19_900, "{}", distinct.len());
    }

    #[test]
    fn the_loopback_addresses_are_a_part_of_those_that_every_host_has() {
        let (network, length) = LOOPBACK_CIDR.split_once('/').unwrap();
        let parsed = Prefix::new(network.parse().unwrap(), length.parse().unwrap());
        assert_eq!(parsed, LOOPBACK);
        for (ip, inside) in [
            ("127.64.0.0", true),
            ("127.127.255.255", true),
            ("127.0.0.1", false),
            ("127.63.255.255", false),
            ("127.128.0.0", false),
            ("10.64.0.1", false),
            ("::1", false),
        ] {
            let address: IpAddr = ip.parse().unwrap();
            assert_eq!(LOOPBACK.contains(&address.into()), inside, "{ip}");
        }
    }

    #[test]
    fn a_socket_bound_to_another_interface_or_address_cannot_reach_loopback() {
        let own = word([10, 9, 0, 1]);
        assert_eq!(SocketReach::of_host_socket(0, 0), SocketReach::Loopback);
        assert_eq!(
            SocketReach::of_host_socket(1, word([127, 0, 0, 1])),
            SocketReach::Loopback
        );
        assert_eq!(SocketReach::of_host_socket(2, 0), SocketReach::Node);
        assert_eq!(SocketReach::of_host_socket(0, own), SocketReach::Node);
    }
}
