//! The allow-list: what the agent dials for whom. A taken-over proxy must not be able to look around in the edge's network.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use culvert_tunnel::DialFailure;
use culvert_tunnel::proto::tunnel::{Allowed, DialCode, Open};

/// A list longer than this is not told to the proxy: its answer would be too long a message.
const TOLD_MAX: usize = 1024;
/// An agent is at most one proxy away from the one that the client reached.
const MAX_HOPS: u32 = 1;

/// What may be dialled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllowList {
    /// On the node's own addresses and on loopback.
    pub(crate) ports: BTreeSet<u16>,
    /// Always dialled on 127.0.0.1.
    pub(crate) localhost_ports: BTreeSet<u16>,
    /// Whatever else the operator named.
    pub(crate) explicit: BTreeSet<SocketAddr>,
    /// The node's own addresses, if the operator named them; else those of its interfaces.
    pub(crate) node_addresses: BTreeSet<IpAddr>,
}

/// The node's own addresses, canonical: never v4-mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnAddresses(pub(crate) BTreeSet<IpAddr>);

/// Where a backend listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackendAddr(pub(crate) SocketAddr);

/// The addresses to try for a stream, in this order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidates {
    pub(crate) first: BackendAddr,
    pub(crate) second: Option<BackendAddr>,
}

impl AllowList {
    /// What to dial for `open`, or why nothing.
    ///
    /// # Errors
    /// `Invalid` for what makes no sense, `Forbidden` with the flag that would allow it.
    pub(crate) fn decide(&self, open: &Open, own: &OwnAddresses) -> Result<Candidates, DialFailure> {
        if open.hops > MAX_HOPS {
            return Err(invalid(format!("the stream passed {} proxies; at most {MAX_HOPS} may relay it", open.hops)));
        }
        let port = u16::try_from(open.port).ok().filter(|port| *port != 0);
        let port = port.ok_or_else(|| invalid(format!("{} is no TCP port", open.port)))?;
        let address = match open.address.as_str() {
            "" => None,
            text => {
                Some(text.parse::<IpAddr>().map_err(|_| invalid(format!("{text:?} is no IP address")))?.to_canonical())
            }
        };
        self.candidates(address, port, own).ok_or_else(|| self.forbidden(address, port, own))
    }

    /// The list as the proxy shows it to operators, unless it is very long.
    pub(crate) fn told(&self) -> Option<Allowed> {
        let rules = self.ports.len() + self.localhost_ports.len() + self.explicit.len();
        (rules <= TOLD_MAX).then(|| Allowed {
            ports: self.ports.iter().copied().map(u32::from).collect(),
            localhost_ports: self.localhost_ports.iter().copied().map(u32::from).collect(),
            further: self.explicit.iter().map(ToString::to_string).collect(),
        })
    }

    fn candidates(&self, address: Option<IpAddr>, port: u16, own: &OwnAddresses) -> Option<Candidates> {
        match address {
            Some(address) if self.explicit.contains(&SocketAddr::new(address, port)) => Some(only(address, port)),
            _ if self.localhost_ports.contains(&port) => Some(only(LOOPBACK4, port)),
            Some(address) if self.ports.contains(&port) && is_own(address, own) => Some(only(address, port)),
            None if self.ports.contains(&port) => {
                Some(Candidates { second: Some(backend(LOOPBACK6, port)), ..only(LOOPBACK4, port) })
            }
            Some(_) | None => None,
        }
    }

    fn forbidden(&self, address: Option<IpAddr>, port: u16, own: &OwnAddresses) -> DialFailure {
        let message = match address {
            None => {
                format!("port {port} is not in the agent's allow-list; `--port {port}` on the agent would allow it")
            }
            Some(address) if is_own(address, own) => format!(
                "{}: the port is not in the agent's allow-list; `--port {port}` on the agent would allow it",
                SocketAddr::new(address, port)
            ),
            Some(address) => format!(
                "{0} is no address of the agent's node and not in its allow-list; `--allow {0}` on the agent would allow it",
                SocketAddr::new(address, port)
            ),
        };
        DialFailure { code: DialCode::Forbidden, message }
    }
}

const LOOPBACK4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

fn backend(address: IpAddr, port: u16) -> BackendAddr {
    BackendAddr(SocketAddr::new(address, port))
}

fn only(address: IpAddr, port: u16) -> Candidates {
    Candidates { first: backend(address, port), second: None }
}

fn is_own(address: IpAddr, own: &OwnAddresses) -> bool {
    address.is_loopback() || own.0.contains(&address)
}

fn invalid(message: String) -> DialFailure {
    DialFailure { code: DialCode::Invalid, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(address: &str, port: u32) -> Result<Vec<String>, (DialCode, String)> {
        let list = AllowList {
            ports: [9100, 10250].into(),
            localhost_ports: [10255].into(),
            explicit: ["10.9.9.9:502".parse().unwrap(), "[2001:db8::9]:443".parse().unwrap()].into(),
            ..AllowList::default()
        };
        let own = OwnAddresses(["10.0.3.7".parse().unwrap(), "2001:db8::7".parse().unwrap()].into());
        let open = Open { address: address.to_owned(), port, ..Open::default() };
        let decided = list.decide(&open, &own).map_err(|failure| (failure.code, failure.message))?;
        Ok([Some(decided.first), decided.second].into_iter().flatten().map(|backend| backend.0.to_string()).collect())
    }

    #[test]
    fn own_addresses_and_loopback_are_dialled_on_allowed_ports() {
        assert_eq!(decide("10.0.3.7", 9100).unwrap(), ["10.0.3.7:9100"]);
        assert_eq!(decide("::ffff:10.0.3.7", 9100).unwrap(), ["10.0.3.7:9100"]);
        assert_eq!(decide("2001:db8::7", 10250).unwrap(), ["[2001:db8::7]:10250"]);
        assert_eq!(decide("127.0.0.1", 9100).unwrap(), ["127.0.0.1:9100"]);
        assert_eq!(decide("", 9100).unwrap(), ["127.0.0.1:9100", "[::1]:9100"]);
    }

    #[test]
    fn localhost_ports_are_dialled_on_loopback_whatever_the_address() {
        for address in ["", "10.0.3.7", "192.0.2.1"] {
            assert_eq!(decide(address, 10255).unwrap(), ["127.0.0.1:10255"]);
        }
    }

    #[test]
    fn explicit_entries_are_exact() {
        assert_eq!(decide("10.9.9.9", 502).unwrap(), ["10.9.9.9:502"]);
        assert_eq!(decide("2001:db8::9", 443).unwrap(), ["[2001:db8::9]:443"]);
        for (address, port) in [("10.9.9.9", 503), ("10.9.9.8", 502)] {
            assert_eq!(decide(address, port).unwrap_err().0, DialCode::Forbidden);
        }
    }

    #[test]
    fn all_else_is_forbidden_with_the_flag_that_would_allow_it() {
        for (address, port, flag) in [
            ("10.0.3.7", 22, "--port 22"),
            ("127.0.0.1", 22, "--port 22"),
            ("", 22, "--port 22"),
            ("10.0.3.8", 9100, "--allow 10.0.3.8:9100"),
            ("0.0.0.0", 9100, "--allow 0.0.0.0:9100"),
            ("::", 9100, "--allow [::]:9100"),
            ("169.254.169.254", 80, "--allow 169.254.169.254:80"),
        ] {
            let (code, message) = decide(address, port).unwrap_err();
            assert_eq!(code, DialCode::Forbidden, "{address} {port}");
            assert!(message.contains(flag) && message.contains(address), "{message}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_invalid() {
        for (address, port) in [("10.0.3.7", 0), ("10.0.3.7", 65_536), ("edge-1", 9100), ("10.0.3.7:1", 9100)] {
            assert_eq!(decide(address, port).unwrap_err().0, DialCode::Invalid, "{address} {port}");
        }
        let hops = Open { port: 9100, hops: 2, ..Open::default() };
        let failure = AllowList::default().decide(&hops, &OwnAddresses::default()).unwrap_err();
        assert_eq!(failure.code, DialCode::Invalid);
    }
}
