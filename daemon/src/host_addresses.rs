//! The addresses of this host.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface, such as `eth0`.
    pub interface: String,
    /// Kind and state of the interface, netdevice(7).
    pub flags: InterfaceFlags,
    /// Never an IPv4-mapped IPv6 address.
    pub ip: IpAddr,
    /// Length of the prefix of its network, in bits; all of them if the kernel names no network.
    pub prefix: u8,
}

/// The addresses of all interfaces, including loopback.
///
/// # Errors
/// The kernel does not list them, getifaddrs(3).
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut addresses = Vec::new();
    for address in nix::ifaddrs::getifaddrs()? {
        let Some(ip) = ip_of(address.address.as_ref()) else {
            continue;
        };
        let prefix = match ip_of(address.netmask.as_ref()) {
            Some(mask) => ones(mask),
            None => bits(ip),
        };
        addresses.push(InterfaceAddress {
            ip,
            prefix,
            interface: address.interface_name,
            flags: address.flags,
        });
    }
    Ok(addresses)
}

fn ip_of(storage: Option<&SockaddrStorage>) -> Option<IpAddr> {
    let storage = storage?;
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(IpAddr::V4(v4.ip()));
    }
    let v6 = storage.as_sockaddr_in6()?;
    Some(IpAddr::V6(v6.ip()).to_canonical())
}

/// How many bits an address of this family has.
fn bits(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// How many bits of a mask are set.
fn ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(v4) => v4.to_bits().count_ones(),
        IpAddr::V6(v6) => v6.to_bits().count_ones(),
    };
    u8::try_from(ones).unwrap_or(bits(mask))
}

/// All addresses of this host, including loopback.
///
/// # Errors
/// As [`interface_addresses`].
pub fn host_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let addresses = interface_addresses()?;
    Ok(addresses.into_iter().map(|address| address.ip).collect())
}

/// The address from which this host would dial `destination`, by its routes. No packet is sent.
#[must_use]
pub fn source_address(destination: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if destination.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(destination).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_of_loopback_has_eight_bits() {
        let addresses = interface_addresses().unwrap();
        let loopback = addresses
            .iter()
            .find(|address| address.ip == Ipv4Addr::LOCALHOST);
        assert_eq!(loopback.unwrap().prefix, 8);
    }

    #[test]
    fn a_host_dials_itself_from_an_address_that_is_its_own() {
        let source = source_address("127.0.0.1:9".parse().unwrap()).unwrap();
        assert!(host_addresses().unwrap().contains(&source));
    }
}
