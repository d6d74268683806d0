//! Where a proxy takes agents: a host, by name or address, and a port.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest DNS name, RFC 1035.
const MAX_HOST: usize = 253;

/// `host:port` of a proxy as agents reach it, written one way. Resolved anew for each connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ProxyAddress {
    host: String,
    port: u16,
}

/// A text that names no proxy.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not HOST:PORT: write a DNS name or an IP address and a port, as in \
     `proxy.example:7400` or `[2001:db8::1]:7400`"
)]
pub(crate) struct InvalidProxyAddress(String);

impl ProxyAddress {
    /// DNS name or IP address, without brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The form that HTTP wants, for a forward proxy's CONNECT.
    pub(crate) fn to_uri(&self) -> http::Uri {
        format!("https://{self}")
            .parse()
            .expect("a checked host and a port make a URI")
    }
}

impl FromStr for ProxyAddress {
    type Err = InvalidProxyAddress;

    fn from_str(text: &str) -> Result<Self, InvalidProxyAddress> {
        parse(text).ok_or_else(|| InvalidProxyAddress(text.chars().take(MAX_HOST).collect()))
    }
}

fn parse(text: &str) -> Option<ProxyAddress> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let host = match host.strip_prefix('[') {
        Some(bracketed) => {
            let address = bracketed.strip_suffix(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?.to_string()
        }
        None => Some(host)
            .filter(|host| is_name(host))?
            .to_ascii_lowercase(),
    };
    Some(ProxyAddress { host, port })
}

fn is_name(host: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_HOST).contains(&host.len()) && host.bytes().all(inner) && !host.starts_with('.')
}

impl fmt::Display for ProxyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse() {
            Ok(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            Ok(IpAddr::V4(_)) | Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl TryFrom<String> for ProxyAddress {
    type Error = InvalidProxyAddress;

    fn try_from(text: String) -> Result<Self, InvalidProxyAddress> {
        text.parse()
    }
}

impl From<ProxyAddress> for String {
    fn from(address: ProxyAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_of_both_families_name_a_proxy() {
        for good in [
            "proxy.example:7400",
            "10.0.0.1:443",
            "[2001:db8::1]:7400",
            "lb:1",
            "a_b:1",
            "a..b.:1",
            "-:1",
        ] {
            let address: ProxyAddress = good.parse().unwrap();
            assert_eq!(address.to_string(), good);
            assert_eq!(address.to_uri().authority().unwrap().as_str(), good);
        }
    }

    #[test]
    fn a_missing_port_or_a_strange_host_is_refused() {
        for bad in [
            "",
            "proxy",
            "proxy:",
            ":7400",
            "proxy:0",
            "proxy:70000",
            "a b:1",
            "2001:db8::1:7400",
            "[::1]",
            "[x]:1",
            "http://proxy:1",
            "u@proxy:1",
        ] {
            assert!(bad.parse::<ProxyAddress>().is_err(), "{bad:?}");
        }
    }
}
