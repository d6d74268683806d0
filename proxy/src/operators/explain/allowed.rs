//! What an agent's allow-list, as it told it, says to a dial. The agent alone decides; this is for
//! operators. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use culvert_api::{AllowList, Candidates, Forbidden};
use culvert_tunnel::proto::tunnel::DescribeResponse;

/// What an agent would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Dials this.
    Dials(String),
    /// Refuses; the flag on the agent would allow it.
    Forbids { what: String, flag: String },
    /// The agent did not tell its list.
    Untold,
}

/// The rules that an agent told.
pub(crate) struct Told {
    ports: BTreeSet<u16>,
    localhost_ports: BTreeSet<u16>,
    further: BTreeSet<SocketAddr>,
    own: BTreeSet<IpAddr>,
}

impl Told {
    /// Those of this agent; `None`: it did not tell them.
    pub(crate) fn of(agent: &DescribeResponse) -> Option<Self> {
        let allowed = agent.allowed.as_ref()?;
        let ports = |ports: &[u32]| {
            ports
                .iter()
                .filter_map(|port| u16::try_from(*port).ok())
                .collect()
        };
        Some(Self {
            ports: ports(&allowed.ports),
            localhost_ports: ports(&allowed.localhost_ports),
            further: allowed
                .further
                .iter()
                .filter_map(|text| text.parse().ok())
                .collect(),
            own: agent
                .addresses
                .iter()
                .filter_map(|text| text.parse().ok())
                .collect(),
        })
    }

    fn decide(&self, address: Option<IpAddr>, port: u16) -> Result<Candidates, Forbidden> {
        let Self {
            ports,
            localhost_ports,
            further,
            own,
        } = self;
        AllowList {
            ports,
            localhost_ports,
            further,
            own,
        }
        .decide(address, port)
    }

    /// Whether the agent would not dial this.
    pub(crate) fn forbids(&self, address: Option<IpAddr>, port: u16) -> bool {
        self.decide(address, port).is_err()
    }
}

/// What the agent would do with a dial of `address` (none: its own host) and `port`.
pub(super) fn verdict(agent: &DescribeResponse, address: Option<IpAddr>, port: u16) -> Verdict {
    match Told::of(agent).map(|told| told.decide(address, port)) {
        None => Verdict::Untold,
        Some(Ok(candidates)) => Verdict::Dials(candidates.first.to_string()),
        Some(Err(forbidden)) => Verdict::Forbids {
            what: forbidden.target(),
            flag: forbidden.flag(),
        },
    }
}

/// The list in words.
pub(super) struct InWords<'a>(pub(super) &'a DescribeResponse);

impl fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(allowed) = &self.0.allowed else {
            return f.write_str("it does not tell what it allows");
        };
        let numbers = |ports: &[u32]| {
            ports
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        write!(f, "it allows ports {}", numbers(&allowed.ports))?;
        if !allowed.localhost_ports.is_empty() {
            write!(f, ", on loopback {}", numbers(&allowed.localhost_ports))?;
        }
        if !allowed.further.is_empty() {
            write!(f, ", and {}", allowed.further.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use culvert_tunnel::proto::tunnel::Allowed;

    use super::*;

    #[test]
    fn the_list_is_read_as_the_agent_reads_it() {
        let agent = DescribeResponse {
            addresses: vec!["127.0.0.1".into(), "10.0.3.7".into()],
            allowed: Some(Allowed {
                ports: vec![9100],
                localhost_ports: vec![7429],
                further: vec!["10.9.9.9:502".into()],
            }),
            ..Default::default()
        };
        let verdict = |address: &str, port| verdict(&agent, address.parse().ok(), port);
        let dials = |text: &str| Verdict::Dials(text.to_owned());
        assert_eq!(verdict("10.0.3.7", 9100), dials("10.0.3.7:9100"));
        assert_eq!(verdict("", 9100), dials("127.0.0.1:9100"));
        assert_eq!(verdict("10.0.3.7", 7429), dials("127.0.0.1:7429"));
        assert_eq!(verdict("10.9.9.9", 502), dials("10.9.9.9:502"));
        let flag = |verdict| match verdict {
            Verdict::Forbids { flag, .. } => flag,
            Verdict::Dials(_) | Verdict::Untold => String::new(),
        };
        assert_eq!(flag(verdict("10.0.3.7", 22)), "--port 22");
        assert_eq!(flag(verdict("", 22)), "--port 22");
        assert_eq!(flag(verdict("10.0.3.8", 9100)), "--allow 10.0.3.8:9100");
        assert_eq!(
            InWords(&agent).to_string(),
            "it allows ports 9100, on loopback 7429, and 10.9.9.9:502"
        );
        assert_eq!(
            super::verdict(&DescribeResponse::default(), None, 22),
            Verdict::Untold
        );
    }
}
