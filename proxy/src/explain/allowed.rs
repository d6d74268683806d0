//! What an agent's allow-list, as it told it, says to a dial. The agent alone decides; this is for operators. Pure.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

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

/// What the agent would do with a dial of `address` (none: its own host) and `port`.
pub(super) fn verdict(agent: &DescribeResponse, address: Option<IpAddr>, port: u16) -> Verdict {
    let Some(allowed) = &agent.allowed else { return Verdict::Untold };
    let target = address.map(|address| SocketAddr::new(address, port));
    let named = |target: SocketAddr| allowed.further.iter().any(|entry| entry.parse() == Ok(target));
    let own = |address: IpAddr| agent.addresses.iter().any(|text| text.parse() == Ok(address));
    match target {
        Some(target) if named(target) => Verdict::Dials(target.to_string()),
        _ if allowed.localhost_ports.contains(&port.into()) => Verdict::Dials(format!("127.0.0.1:{port}")),
        None if allowed.ports.contains(&port.into()) => Verdict::Dials(format!("127.0.0.1:{port}")),
        Some(target) if own(target.ip()) && allowed.ports.contains(&port.into()) => Verdict::Dials(target.to_string()),
        Some(target) if own(target.ip()) => {
            Verdict::Forbids { what: target.to_string(), flag: format!("--port {port}") }
        }
        None => Verdict::Forbids { what: format!("port {port}"), flag: format!("--port {port}") },
        Some(target) => Verdict::Forbids { what: target.to_string(), flag: format!("--allow {target}") },
    }
}

/// Whether the agent says that it would not dial this.
pub(crate) fn forbids(agent: &DescribeResponse, address: Option<IpAddr>, port: u16) -> bool {
    matches!(verdict(agent, address, port), Verdict::Forbids { .. })
}

/// The list in words.
pub(super) struct InWords<'a>(pub(super) &'a DescribeResponse);

impl fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(allowed) = &self.0.allowed else { return f.write_str("it does not tell what it allows") };
        let numbers = |ports: &[u32]| ports.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
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
        assert_eq!(InWords(&agent).to_string(), "it allows ports 9100, on loopback 7429, and 10.9.9.9:502");
        assert_eq!(super::verdict(&DescribeResponse::default(), None, 22), Verdict::Untold);
    }
}
