//! The allow-list: which addresses and ports the agent dials. An attacker who controls a proxy must
//! not be able to explore the edge's network.

use std::collections::BTreeSet;
use std::net::IpAddr;

use culvert_api::named_ports::NamedPorts;
use culvert_api::{AllowList, Candidates, INSTEAD_MAX};
use culvert_tunnel::DialFailure;
use culvert_tunnel::proto::tunnel::{Allowed, DialCode, Open};
use tokio::sync::watch;

/// The agent does not report a list with more rules to the proxy: the message would be too long.
const REPORTED_MAX: usize = 1024;
/// The proxy that the client reached may pass a stream on to one other proxy, no further.
const MAX_HOPS: u32 = 1;

/// What may be dialled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DialRules {
    pub(crate) list: AllowList,
    /// The node's own addresses. If the operator named none, those of its interfaces are used.
    pub(crate) node_addresses: BTreeSet<IpAddr>,
}

/// The rules of this moment: ConfigMap `culvert-ports` changes them.
pub(crate) type CurrentRules = watch::Receiver<DialRules>;

/// The node's own addresses, canonical: never v4-mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnAddresses(pub(crate) BTreeSet<IpAddr>);

impl DialRules {
    /// These rules, with further ports of ConfigMap culvert-ports. What is denied stays so.
    pub(crate) fn with(&self, named: &NamedPorts) -> Self {
        let mut rules = self.clone();
        let AllowList {
            ports,
            localhost_ports,
            further: _,
            denied,
        } = &mut rules.list;
        ports.extend(named.all());
        localhost_ports.extend(&named.localhost_ports);
        ports.retain(|port| !denied.contains(port));
        localhost_ports.retain(|port| !denied.contains(port));
        rules
    }

    /// The addresses to dial for `open`.
    ///
    /// # Errors
    /// `Invalid` if the request is malformed, `Forbidden` with the flag that would allow it.
    pub(crate) fn decide(
        &self,
        open: &Open,
        own: &OwnAddresses,
    ) -> Result<Candidates, DialFailure> {
        if open.hops > MAX_HOPS {
            return Err(invalid(format!(
                "the stream passed {} proxies; at most {MAX_HOPS} may relay it",
                open.hops
            )));
        }
        let port = match u16::try_from(open.port) {
            Ok(0) | Err(_) => return Err(invalid(format!("{} is not a TCP port", open.port))),
            Ok(port) => port,
        };
        let address = match open.address.as_str() {
            "" => None,
            text => Some(parsed(text)?),
        };
        let mut instead = Vec::new();
        for text in open.instead.iter().take(INSTEAD_MAX) {
            instead.push(parsed(text)?);
        }
        self.list
            .decide_node(&own.0, address, &instead, port)
            .map_err(|forbidden| DialFailure {
                code: DialCode::Forbidden,
                message: forbidden.to_string(),
            })
    }

    /// The list as the proxy shows it to operators; `None` if it has more than [`REPORTED_MAX`]
    /// rules.
    pub(crate) fn reported(&self) -> Option<Allowed> {
        let AllowList {
            ports,
            localhost_ports,
            further,
            denied,
        } = &self.list;
        let rules = ports.len() + localhost_ports.len() + further.len() + denied.len();
        if rules > REPORTED_MAX {
            return None;
        }
        Some(Allowed {
            ports: numbers(ports),
            localhost_ports: numbers(localhost_ports),
            further: further.iter().map(ToString::to_string).collect(),
            denied_ports: numbers(denied),
        })
    }

    #[cfg(test)]
    pub(crate) fn for_port(port: u16) -> Self {
        Self {
            list: AllowList {
                ports: [port].into(),
                ..AllowList::default()
            },
            ..Self::default()
        }
    }

    /// Rules that nothing changes.
    #[cfg(test)]
    pub(crate) fn fixed(self) -> CurrentRules {
        watch::Sender::new(self).subscribe()
    }
}

fn numbers(ports: &BTreeSet<u16>) -> Vec<u32> {
    ports.iter().copied().map(u32::from).collect()
}

fn parsed(text: &str) -> Result<IpAddr, DialFailure> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok(ip.to_canonical()),
        Err(_) => Err(invalid(format!("{text:?} is not an IP address"))),
    }
}

fn invalid(message: String) -> DialFailure {
    DialFailure {
        code: DialCode::Invalid,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(address: &str, port: u32) -> Result<std::net::SocketAddr, (DialCode, String)> {
        let rules = DialRules::for_port(9100);
        let own = OwnAddresses(["10.0.3.7".parse().unwrap()].into());
        let open = Open {
            address: address.to_owned(),
            port,
            ..Open::default()
        };
        let decided = rules
            .decide(&open, &own)
            .map_err(|failure| (failure.code, failure.message))?;
        Ok(decided.first)
    }

    #[test]
    fn a_mapped_address_is_the_one_that_it_maps() {
        assert_eq!(
            decide("::ffff:10.0.3.7", 9100).unwrap(),
            "10.0.3.7:9100".parse().unwrap()
        );
    }

    #[test]
    fn what_is_not_allowed_is_forbidden_with_the_flag_that_would_allow_it() {
        let (code, message) = decide("10.0.3.8", 9100).unwrap_err();
        assert!(
            code == DialCode::Forbidden && message.contains("--allow 10.0.3.8:9100"),
            "{message}"
        );
    }

    #[test]
    fn what_makes_no_sense_is_invalid() {
        for (address, port) in [
            ("10.0.3.7", 0),
            ("10.0.3.7", 65_536),
            ("edge-1", 9100),
            ("10.0.3.7:1", 9100),
        ] {
            assert_eq!(
                decide(address, port).unwrap_err().0,
                DialCode::Invalid,
                "{address} {port}"
            );
        }
        let hops = Open {
            port: 9100,
            hops: 2,
            ..Open::default()
        };
        let failure = DialRules::default()
            .decide(&hops, &OwnAddresses::default())
            .unwrap_err();
        assert_eq!(failure.code, DialCode::Invalid);
    }
}
