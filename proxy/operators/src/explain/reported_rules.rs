//! An agent's allow-list as the agent reported it. The agent alone decides by its list; this is
//! for operators. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use culvert_api::{AllowList, Candidates, Forbidden, NodeName};
use culvert_proxy_core::directory::Target;
use culvert_tunnel::proto::tunnel::DescribeResponse;

/// What an agent says that it dials.
#[derive(Debug)]
pub(crate) struct ReportedRules {
    list: AllowList,
    own: BTreeSet<IpAddr>,
}

impl ReportedRules {
    /// `None`: the agent did not report its list.
    pub(crate) fn of(agent: &DescribeResponse) -> Option<Self> {
        let allowed = agent.allowed.as_ref()?;
        Some(Self {
            list: AllowList {
                ports: ports(&allowed.ports),
                localhost_ports: ports(&allowed.localhost_ports),
                further: parsed(&allowed.further),
                denied: ports(&allowed.denied_ports),
            },
            own: parsed(&agent.addresses),
        })
    }

    /// What the agent would dial for a target of its node.
    pub(crate) fn decide(&self, target: &Target) -> Result<Candidates, Forbidden> {
        let Target {
            address,
            instead,
            port,
            ..
        } = target;
        self.list.decide_node(&self.own, *address, instead, *port)
    }
}

/// What would make the agent of `node` dial it.
pub(super) fn fix(forbidden: Forbidden, node: &NodeName) -> String {
    let flag = forbidden.flag();
    match forbidden {
        Forbidden::Port(_) | Forbidden::OwnAddress(_) => format!(
            "`{flag}` on the agent of {node}, or the same with --only-port if it has that; in a \
             cluster: ConfigMap culvert-ports"
        ),
        Forbidden::OtherAddress(_) => format!("`{flag}` on the agent of {node}"),
        Forbidden::Denied(_) => format!("take `{flag}` from the agent of {node}"),
    }
}

/// What is no port is left out.
fn ports(numbers: &[u32]) -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    for number in numbers {
        ports.extend(u16::try_from(*number));
    }
    ports
}

/// What cannot be parsed is left out.
fn parsed<T: FromStr + Ord>(texts: &[String]) -> BTreeSet<T> {
    let mut parsed = BTreeSet::new();
    for text in texts {
        parsed.extend(text.parse::<T>());
    }
    parsed
}

impl fmt::Display for ReportedRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it allows ports {}", listed(&self.list.ports))?;
        if !self.list.localhost_ports.is_empty() {
            write!(f, ", on loopback {}", listed(&self.list.localhost_ports))?;
        }
        if !self.list.further.is_empty() {
            write!(f, ", and {}", listed(&self.list.further))?;
        }
        Ok(())
    }
}

fn listed<T: ToString>(items: &BTreeSet<T>) -> String {
    let texts: Vec<String> = items.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use culvert_tunnel::proto::tunnel::Allowed;

    use super::*;

    fn target(address: &str, port: u16) -> Target {
        Target {
            node: "edge-1".parse().unwrap(),
            address: address.parse().ok(),
            instead: Vec::new(),
            port,
        }
    }

    #[test]
    fn the_list_is_read_as_the_agent_reads_it() {
        let agent = DescribeResponse {
            addresses: vec!["127.0.0.1".into(), "10.0.3.7".into()],
            allowed: Some(Allowed {
                ports: vec![9100],
                localhost_ports: vec![7429],
                further: vec!["10.9.9.9:502".into(), "192.168.1.0/24:80".into()],
                denied_ports: vec![23],
            }),
            ..Default::default()
        };
        let rules = ReportedRules::of(&agent).unwrap();
        for (address, port, dialled) in [
            ("10.0.3.7", 9100, "10.0.3.7:9100"),
            ("", 9100, "127.0.0.1:9100"),
            ("127.0.0.2", 9100, "127.0.0.2:9100"),
            ("10.0.3.7", 7429, "127.0.0.1:7429"),
            ("10.9.9.9", 502, "10.9.9.9:502"),
            ("192.168.1.20", 80, "192.168.1.20:80"),
        ] {
            let candidates = rules.decide(&target(address, port)).unwrap();
            assert_eq!(candidates.first.to_string(), dialled);
        }
        for (address, port, flag) in [
            ("10.0.3.7", 22, "--port 22"),
            ("", 22, "--port 22"),
            ("", 23, "--deny-port 23"),
            ("10.0.3.8", 9100, "--allow 10.0.3.8:9100"),
        ] {
            let forbidden = rules.decide(&target(address, port)).unwrap_err();
            assert_eq!(forbidden.flag(), flag);
        }
        assert_eq!(
            rules.to_string(),
            "it allows ports 9100, on loopback 7429, and 10.9.9.9:502, 192.168.1.0/24:80"
        );
        assert!(ReportedRules::of(&DescribeResponse::default()).is_none());
    }
}
