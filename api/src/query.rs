//! What an operator can ask about: anything that a client could dial, with or without a port.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::host_port::{Host, HostPort, InvalidHostPort};

/// A destination. Without a port, any of its ports is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The host that is asked about.
    pub host: Host,
    /// 1 to 65535.
    pub port: Option<u16>,
}

impl FromStr for Query {
    type Err = InvalidHostPort;

    /// Parses `HOST` or `HOST:PORT`. An IPv6 address without a port needs no brackets.
    fn from_str(text: &str) -> Result<Self, InvalidHostPort> {
        let text = text.trim();
        let is_ipv6 = text.matches(':').count() > 1 && !text.contains("]:");
        if is_ipv6 || !text.contains(':') {
            return Ok(Self {
                host: text.parse()?,
                port: None,
            });
        }
        let HostPort { host, port } = text.parse()?;
        Ok(Self {
            host,
            port: Some(port),
        })
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (host, None) => write!(f, "{host}, any port"),
            (Host::Address(ip), Some(port)) => SocketAddr::new(*ip, port).fmt(f),
            (Host::Name(name), Some(port)) => write!(f, "{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_be_left_out() {
        for (text, shown, port) in [
            ("10.0.3.7:9100", "10.0.3.7:9100", Some(9100)),
            ("10.0.3.7", "10.0.3.7, any port", None),
            ("::ffff:10.0.3.7", "10.0.3.7, any port", None),
            ("[::ffff:10.0.3.7]:9100", "10.0.3.7:9100", Some(9100)),
            ("[fd00::7]:80", "[fd00::7]:80", Some(80)),
            ("[fd00::7]", "fd00::7, any port", None),
            ("fd00::7", "fd00::7, any port", None),
            (
                "Edge-1.edge.internal.",
                "edge-1.edge.internal, any port",
                None,
            ),
            (" edge-1:22\n", "edge-1:22", Some(22)),
        ] {
            let query: Query = text.parse().unwrap();
            assert_eq!(
                (query.to_string().as_str(), query.port),
                (shown, port),
                "{text}"
            );
        }
    }

    #[test]
    fn what_nobody_could_dial_is_refused() {
        for bad in [
            "",
            "edge-1:",
            "edge-1:0",
            "edge-1:http",
            "a b",
            "a b:80",
            "10.0.3.7:99999",
            "10.0.3.7:0",
            "fd00::x",
        ] {
            assert!(bad.parse::<Query>().is_err(), "{bad:?}");
        }
    }
}
