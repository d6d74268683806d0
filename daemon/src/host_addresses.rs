//! The addresses of this host.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::net::if_::InterfaceFlags;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface, such as `eth0`.
    pub interface: String,
    /// Kind and state of the interface, netdevice(7).
    pub flags: InterfaceFlags,
    /// Never an IPv4-mapped IPv6 address.
    pub ip: IpAddr,
}

/// The addresses of all interfaces, including loopback.
///
/// # Errors
/// The kernel does not list them, getifaddrs(3).
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let addresses = nix::ifaddrs::getifaddrs()?.filter_map(|address| {
        let storage = address.address.as_ref()?;
        let v4 = || storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        Some(InterfaceAddress {
            ip: v4().or_else(v6)?.to_canonical(),
            interface: address.interface_name,
            flags: address.flags,
        })
    });
    Ok(addresses.collect())
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
    fn a_host_dials_itself_from_an_address_that_is_its_own() {
        let source = source_address("127.0.0.1:9".parse().unwrap()).unwrap();
        assert!(host_addresses().unwrap().contains(&source));
    }
}
