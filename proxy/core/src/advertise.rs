//! The names under which agents reach this proxy, as join commands print them, and the address
//! under which other proxies do.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use culvert_api::{Host, HostPort, InvalidHostPort};
use culvert_daemon::{host_addresses, source_address};

/// Documentation addresses (RFC 5737, RFC 3849): the route to them is the default route. No packet
/// is sent.
const ANYWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// The facts for join commands.
#[derive(Clone, Debug)]
pub struct Advertised {
    /// `--advertise`, the preferred one first.
    pub given: Vec<HostPort>,
    /// The address on which the proxy accepts agents.
    pub agent_listen: SocketAddr,
}

impl Advertised {
    /// The proxies for a join command, and a note for the operator if they are a guess.
    pub fn proxies(&self) -> (Vec<HostPort>, Option<String>) {
        if !self.given.is_empty() {
            return (self.given.clone(), None);
        }
        let Some(host) = assumed_host(self.agent_listen.ip()) else {
            let note = "this host has no address that agents could dial: start the proxy with \
                --advertise HOST:PORT";
            return (Vec::new(), Some(note.to_owned()));
        };
        let assumed = HostPort::from(SocketAddr::new(host, self.agent_listen.port()));
        let note = format!(
            "agents are told to dial {assumed}, as no --advertise is given: if they reach this \
             proxy by another name or address, start it with --advertise HOST:PORT"
        );
        (vec![assumed], Some(note))
    }
}

/// `--peer-advertise`: where other proxies reach this one. Without a port it is that of
/// `--peer-listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAdvertise {
    host: Host,
    port: Option<u16>,
}

impl FromStr for PeerAdvertise {
    type Err = InvalidHostPort;

    /// A bare IPv6 address has no port: Kubernetes gives a pod its node's address in this form.
    fn from_str(text: &str) -> Result<Self, InvalidHostPort> {
        match text.parse() {
            Ok(host) => Ok(Self { host, port: None }),
            Err(_) => {
                let HostPort { host, port } = text.parse()?;
                let port = Some(port);
                Ok(Self { host, port })
            }
        }
    }
}

impl PeerAdvertise {
    /// The address that other proxies dial: as given, or else an address of this host. `None`: it
    /// has none that others could dial.
    pub fn address(given: Option<&Self>, peer_listen: SocketAddr) -> Option<HostPort> {
        let listening = peer_listen.port();
        let Some(Self { host, port }) = given else {
            let host = assumed_host(peer_listen.ip())?;
            return Some(SocketAddr::new(host, listening).into());
        };
        Some(HostPort {
            host: host.clone(),
            port: port.unwrap_or(listening),
        })
    }
}

/// The address of this host under which others most likely reach what listens on `listen`.
fn assumed_host(listen: IpAddr) -> Option<IpAddr> {
    if !listen.is_unspecified() {
        return Some(listen);
    }
    let by_default_route = ANYWHERE
        .iter()
        .find_map(|anywhere| source_address(anywhere.parse().ok()?));
    if let Some(ip) = by_default_route
        && is_dialable(ip)
    {
        return Some(ip);
    }
    host_addresses()
        .ok()?
        .into_iter()
        .find(|ip| is_dialable(*ip))
}

fn is_dialable(ip: IpAddr) -> bool {
    crate::directory::never_a_nodes(ip).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_peer_address_has_the_port_that_is_listened_on_unless_it_names_one() {
        let listen = "[::]:7401".parse().unwrap();
        let address = |text: &str| {
            let given = text.parse::<PeerAdvertise>().unwrap();
            PeerAdvertise::address(Some(&given), listen)
                .unwrap()
                .to_string()
        };
        assert_eq!(address("10.0.0.1"), "10.0.0.1:7401");
        assert_eq!(address("10.0.0.1:443"), "10.0.0.1:443");
        assert_eq!(address("fd00::1"), "[fd00::1]:7401");
        assert_eq!(address("[fd00::1]:443"), "[fd00::1]:443");
        assert_eq!(address("proxy-1.example"), "proxy-1.example:7401");
        assert!("proxy 1".parse::<PeerAdvertise>().is_err());
        let bound = PeerAdvertise::address(None, "10.0.0.9:7401".parse().unwrap());
        assert_eq!(bound.unwrap().to_string(), "10.0.0.9:7401");
    }
}
