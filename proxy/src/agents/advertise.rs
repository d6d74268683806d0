//! Under which names agents reach this proxy: what join commands tell them to dial.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::str::FromStr;

use crate::directory::host_addresses;

/// Documentation addresses (RFC 5737, RFC 3849): a route to them is a route to anywhere. No packet
/// is sent.
const ANYWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// A proxy as agents dial it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advertise {
    host: String,
    port: u16,
}

impl Advertise {
    /// The DNS name or IP address, without brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }
}

impl FromStr for Advertise {
    type Err = String;

    /// `host:port`, with an IPv6 address in brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not HOST:PORT: write a DNS name or an IP address, such as \
                 proxy.example:7400"
            )
        };
        if let Ok(address) = text.parse::<SocketAddr>() {
            let port = Some(address.port())
                .filter(|port| *port != 0)
                .ok_or_else(wrong)?;
            return Ok(Self {
                host: address.ip().to_string(),
                port,
            });
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(wrong)?;
        let lower = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        lower
            .parse::<culvert_api::NodeName>()
            .map_err(|_| wrong())?;
        Ok(Self { host: lower, port })
    }
}

impl fmt::Display for Advertise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse() {
            Ok(ip) => SocketAddr::new(ip, self.port).fmt(f),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// What join commands say.
#[derive(Clone, Debug)]
pub(crate) struct Advertised {
    /// `--advertise`, the preferred one first.
    pub(crate) given: Vec<Advertise>,
    /// Where the proxy takes agents.
    pub(crate) agent_listen: SocketAddr,
}

impl Advertised {
    /// The proxies for a join command, and a note for the operator if they had to be assumed.
    pub(crate) fn proxies(&self) -> (Vec<Advertise>, Option<String>) {
        if !self.given.is_empty() {
            return (self.given.clone(), None);
        }
        let Some(host) = self.assumed_host() else {
            let note = "this host has no address that agents could dial: start the proxy with \
                --advertise HOST:PORT";
            return (Vec::new(), Some(note.to_owned()));
        };
        let assumed = Advertise {
            host: host.to_string(),
            port: self.agent_listen.port(),
        };
        let note = format!(
            "agents are told to dial {assumed}, as no --advertise is given: if they reach this \
             proxy by another name or address, start it with --advertise HOST:PORT"
        );
        (vec![assumed], Some(note))
    }

    fn assumed_host(&self) -> Option<IpAddr> {
        let listen = self.agent_listen.ip();
        if !listen.is_unspecified() {
            return Some(listen);
        }
        let dialable = |ip: &IpAddr| crate::directory::never_a_nodes(*ip).is_none();
        let interfaces = || host_addresses().ok()?.into_iter().find(dialable);
        ANYWHERE
            .iter()
            .find_map(|anywhere| local_address(anywhere))
            .filter(dialable)
            .or_else(interfaces)
    }
}

/// The address from which this host would dial `destination`.
fn local_address(destination: &str) -> Option<IpAddr> {
    let local = if destination.starts_with('[') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(local).ok()?;
    socket.connect(destination).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_written_as_agents_dial_them() {
        for (text, written) in [
            ("Proxy.Example.:443", "proxy.example:443"),
            ("[fd00::1]:7400", "[fd00::1]:7400"),
            ("10.0.0.1:7400", "10.0.0.1:7400"),
        ] {
            assert_eq!(text.parse::<Advertise>().unwrap().to_string(), written);
        }
        for bad in [
            "proxy",
            "proxy:0",
            "proxy:x",
            ":7400",
            "fd00::1:7400",
            "a b:1",
            "-x:1",
            "10.0.0.1:0",
            "$(id):1",
        ] {
            assert!(bad.parse::<Advertise>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_given_is_taken_and_what_is_assumed_is_said() {
        let listen = "[::]:7400".parse().unwrap();
        let given = vec!["proxy.example:443".parse().unwrap()];
        assert_eq!(
            Advertised {
                given: given.clone(),
                agent_listen: listen
            }
            .proxies(),
            (given, None)
        );
        let bound = Advertised {
            given: Vec::new(),
            agent_listen: "10.0.0.1:7400".parse().unwrap(),
        }
        .proxies();
        assert_eq!(bound.0[0].to_string(), "10.0.0.1:7400");
        assert!(bound.1.unwrap().contains("--advertise"));
    }
}
