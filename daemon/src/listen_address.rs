//! The address to listen on, where the port may be left out.

use std::net::{AddrParseError, IpAddr, SocketAddr};

/// Reads `IP:PORT`, or `IP` for this port. A bare IPv6 address has no port: Kubernetes gives a pod
/// the address of its node in this form.
///
/// # Errors
/// The text is neither.
pub fn listen_address(text: &str, port: u16) -> Result<SocketAddr, AddrParseError> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    text.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_either_family_may_leave_the_port_out() {
        let read = |text: &str| listen_address(text, 7408).map(|address| address.to_string());
        assert_eq!(read("10.0.0.1").unwrap(), "10.0.0.1:7408");
        assert_eq!(read("10.0.0.1:1").unwrap(), "10.0.0.1:1");
        assert_eq!(read("fd00::1").unwrap(), "[fd00::1]:7408");
        assert_eq!(read("[fd00::1]:1").unwrap(), "[fd00::1]:1");
        assert!(read("localhost:1").is_err());
    }
}
