//! Which destinations an agent dials. The agent decides with this code, and the proxy uses it to
//! tell operators what the agent would decide. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::AllowedRange;

/// The rules of an agent. Addresses are canonical: never v4-mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList {
    /// Allowed on the node's own addresses and on loopback.
    pub ports: BTreeSet<u16>,
    /// Dialled on 127.0.0.1, whatever address was asked for.
    pub localhost_ports: BTreeSet<u16>,
    /// Further destinations that the operator named.
    pub further: BTreeSet<AllowedRange>,
    /// Ports of `--deny-port`: neither set has them. For diagnosis.
    pub denied: BTreeSet<u16>,
}

/// The addresses to try for a stream, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// Tried first.
    pub first: SocketAddr,
    /// Tried if those before failed; at most [`INSTEAD_MAX`].
    pub then: Vec<SocketAddr>,
}

/// Limit of the addresses that are tried after the first.
pub const INSTEAD_MAX: usize = 4;

/// Why a destination is not dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// The port is not allowed on the node's loopback.
    #[error("port {0} is not in the agent's allow-list; `--port {0}` on the agent would allow it")]
    Port(u16),
    /// The port is not allowed on the node's own addresses.
    #[error(
        "{0}: the port is not in the agent's allow-list; `--port {port}` on the agent would allow \
         it",
        port = .0.port()
    )]
    OwnAddress(SocketAddr),
    /// The address is not the node's and not in the list.
    #[error(
        "{0} is not an address of the agent's node and not in its allow-list; `--allow {0}` on the \
         agent would allow it"
    )]
    OtherAddress(SocketAddr),
    /// The operator has ruled the port out.
    #[error(
        "the agent has `--deny-port {0}`, which rules port {0} out; without it {0} is possible"
    )]
    Denied(u16),
}

const LOOPBACK4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

impl AllowList {
    /// What to dial for a client of `address` (`None`: the node itself) and `port`; `own` are the
    /// node's own addresses.
    ///
    /// # Errors
    /// Which flag of the agent would allow it.
    pub fn decide(
        &self,
        own: &BTreeSet<IpAddr>,
        address: Option<IpAddr>,
        port: u16,
    ) -> Result<Candidates, Forbidden> {
        let is_allowed = self.ports.contains(&port);
        let Some(address) = address else {
            return match (self.localhost_ports.contains(&port), is_allowed) {
                (true, _) => Ok(only(LOOPBACK4, port)),
                (false, true) => Ok(Candidates {
                    then: vec![SocketAddr::new(LOOPBACK6, port)],
                    ..only(LOOPBACK4, port)
                }),
                (false, false) => Err(self.forbidden(port, Forbidden::Port(port))),
            };
        };
        let target = SocketAddr::new(address, port);
        let is_own = address.is_loopback() || own.contains(&address);
        if self.further.iter().any(|range| range.contains(target)) {
            Ok(only(address, port))
        } else if self.localhost_ports.contains(&port) {
            Ok(only(LOOPBACK4, port))
        } else if !is_own {
            Err(Forbidden::OtherAddress(target))
        } else if is_allowed {
            Ok(only(address, port))
        } else {
            Err(self.forbidden(port, Forbidden::OwnAddress(target)))
        }
    }

    /// What to dial for a client of the node, whose addresses are `address` and `instead`. Those of
    /// `instead` count only if `address` is the node's own, so that an agent of another host, as a
    /// copied disk makes it, does not answer for the node.
    ///
    /// # Errors
    /// Which flag of the agent would allow `address`.
    pub fn decide_node(
        &self,
        own: &BTreeSet<IpAddr>,
        address: Option<IpAddr>,
        instead: &[IpAddr],
        port: u16,
    ) -> Result<Candidates, Forbidden> {
        let mut candidates = self.decide(own, address, port)?;
        if !address.is_some_and(|address| own.contains(&address)) {
            return Ok(candidates);
        }
        for ip in instead.iter().take(INSTEAD_MAX) {
            let Ok(Candidates { first, .. }) = self.decide(own, Some(*ip), port) else {
                continue;
            };
            if first != candidates.first && !candidates.then.contains(&first) {
                candidates.then.push(first);
            }
        }
        Ok(candidates)
    }

    fn forbidden(&self, port: u16, otherwise: Forbidden) -> Forbidden {
        if self.denied.contains(&port) {
            Forbidden::Denied(port)
        } else {
            otherwise
        }
    }
}

impl Forbidden {
    /// The requested destination.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::Port(port) | Self::Denied(port) => format!("port {port}"),
            Self::OwnAddress(target) | Self::OtherAddress(target) => target.to_string(),
        }
    }

    /// The flag of the agent that would allow it, or forbids it.
    #[must_use]
    pub fn flag(&self) -> String {
        match self {
            Self::Port(port) => format!("--port {port}"),
            Self::OwnAddress(target) => format!("--port {}", target.port()),
            Self::OtherAddress(target) => format!("--allow {target}"),
            Self::Denied(port) => format!("--deny-port {port}"),
        }
    }
}

fn only(address: IpAddr, port: u16) -> Candidates {
    Candidates {
        first: SocketAddr::new(address, port),
        then: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(address: &str, port: u16) -> Result<Vec<String>, Forbidden> {
        decide_node(address, [], port)
    }

    fn decide_node<const N: usize>(
        address: &str,
        instead: [&str; N],
        port: u16,
    ) -> Result<Vec<String>, Forbidden> {
        let list = AllowList {
            ports: [9100, 10250].into(),
            localhost_ports: [10255].into(),
            further: [
                "10.9.9.9:502".parse().unwrap(),
                "[2001:db8::9]:443".parse().unwrap(),
                "192.168.1.0/24:502".parse().unwrap(),
            ]
            .into(),
            denied: [23].into(),
        };
        let own = ["10.0.3.7".parse().unwrap(), "2001:db8::7".parse().unwrap()].into();
        let instead = instead.map(|text| text.parse().unwrap());
        let Candidates { first, then } =
            list.decide_node(&own, address.parse().ok(), &instead, port)?;
        let all = [vec![first], then].concat();
        Ok(all.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_client_of_the_node_gets_its_other_addresses_but_not_from_another_host() {
        let node = |address: &str, port| {
            decide_node(address, ["2001:db8::7", "127.0.0.1", "10.0.3.7"], port).unwrap()
        };
        assert_eq!(
            node("10.0.3.7", 9100),
            ["10.0.3.7:9100", "[2001:db8::7]:9100", "127.0.0.1:9100"]
        );
        assert_eq!(node("10.0.3.7", 10255), ["127.0.0.1:10255"]);
        assert_eq!(node("10.9.9.9", 502), ["10.9.9.9:502"]);
        assert_eq!(node("", 9100), ["127.0.0.1:9100", "[::1]:9100"]);
        // Not the agent's own: it may run on a copy of the node's disk.
        let copied = decide_node("10.0.3.9", ["127.0.0.1"], 9100);
        assert!(matches!(copied, Err(Forbidden::OtherAddress(_))));
        // An address that is not the agent's is left out.
        assert_eq!(
            decide_node("10.0.3.7", ["10.0.3.9", "::1"], 9100).unwrap(),
            ["10.0.3.7:9100", "[::1]:9100"]
        );
    }

    #[test]
    fn own_addresses_and_loopback_are_dialled_on_allowed_ports() {
        assert_eq!(decide("10.0.3.7", 9100).unwrap(), ["10.0.3.7:9100"]);
        assert_eq!(
            decide("2001:db8::7", 10250).unwrap(),
            ["[2001:db8::7]:10250"]
        );
        assert_eq!(decide("127.0.0.1", 9100).unwrap(), ["127.0.0.1:9100"]);
        assert_eq!(
            decide("127.0.0.2", 9100).unwrap(),
            ["127.0.0.2:9100"],
            "loopback is more than its interface says"
        );
        assert_eq!(decide("", 9100).unwrap(), ["127.0.0.1:9100", "[::1]:9100"]);
    }

    #[test]
    fn localhost_ports_are_dialled_on_loopback_whatever_the_address() {
        for address in ["", "10.0.3.7", "192.0.2.1"] {
            assert_eq!(decide(address, 10255).unwrap(), ["127.0.0.1:10255"]);
        }
    }

    #[test]
    fn further_destinations_are_of_one_address_or_of_a_range() {
        assert_eq!(decide("192.168.1.20", 502).unwrap(), ["192.168.1.20:502"]);
        assert!(decide("192.168.1.20", 80).is_err());
        assert_eq!(decide("10.9.9.9", 502).unwrap(), ["10.9.9.9:502"]);
        assert_eq!(decide("2001:db8::9", 443).unwrap(), ["[2001:db8::9]:443"]);
        for (address, port) in [("10.9.9.9", 503), ("10.9.9.8", 502)] {
            assert!(matches!(
                decide(address, port),
                Err(Forbidden::OtherAddress(_))
            ));
        }
    }

    #[test]
    fn all_else_is_forbidden_with_the_flag_that_would_allow_it() {
        for (address, port, flag) in [
            ("10.0.3.7", 22, "--port 22"),
            ("127.0.0.1", 22, "--port 22"),
            ("", 22, "--port 22"),
            ("", 23, "--deny-port 23"),
            ("10.0.3.8", 9100, "--allow 10.0.3.8:9100"),
            ("0.0.0.0", 9100, "--allow 0.0.0.0:9100"),
            ("::", 9100, "--allow [::]:9100"),
            ("169.254.169.254", 80, "--allow 169.254.169.254:80"),
        ] {
            let forbidden = decide(address, port).unwrap_err();
            assert_eq!(forbidden.flag(), flag);
            let said = forbidden.to_string();
            assert!(
                said.contains(flag) && said.contains(address) && said.contains(&forbidden.target()),
                "{said}"
            );
        }
    }
}
