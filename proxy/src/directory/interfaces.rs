//! The addresses of this host: no edge node has them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::sys::socket::SockaddrStorage;

use super::DirectoryError;

/// Addresses of all interfaces of this host, loopback too.
pub(crate) fn host_addresses() -> Result<BTreeSet<IpAddr>, DirectoryError> {
    let interfaces =
        nix::ifaddrs::getifaddrs().map_err(|errno| DirectoryError::Interfaces(errno.into()))?;
    Ok(interfaces
        .filter_map(|interface| address_of(interface.address.as_ref()?))
        .collect())
}

fn address_of(storage: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage
        .as_sockaddr_in()
        .map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| {
        storage
            .as_sockaddr_in6()
            .map(|address| IpAddr::V6(address.ip()))
    })
}
