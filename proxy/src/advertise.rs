//! The names under which agents reach this proxy, as join commands print them.

use std::net::{IpAddr, SocketAddr};

use culvert_api::HostPort;
use culvert_daemon::{host_addresses, source_address};

/// Documentation addresses (RFC 5737, RFC 3849): the route to them is the default route. No packet
/// is sent.
const ANYWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// The facts for join commands.
#[derive(Clone, Debug)]
pub(crate) struct Advertised {
    /// `--advertise`, the preferred one first.
    pub(crate) given: Vec<HostPort>,
    /// The address on which the proxy accepts agents.
    pub(crate) agent_listen: SocketAddr,
}

impl Advertised {
    /// The proxies for a join command, and a note for the operator if they are a guess.
    pub(crate) fn proxies(&self) -> (Vec<HostPort>, Option<String>) {
        if !self.given.is_empty() {
            return (self.given.clone(), None);
        }
        let Some(host) = self.assumed_host() else {
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

    fn assumed_host(&self) -> Option<IpAddr> {
        let listen = self.agent_listen.ip();
        if !listen.is_unspecified() {
            return Some(listen);
        }
        let dialable = |ip: &IpAddr| crate::directory::never_a_nodes(*ip).is_none();
        let interfaces = || host_addresses().ok()?.into_iter().find(dialable);
        ANYWHERE
            .iter()
            .find_map(|anywhere| source_address(anywhere.parse().ok()?))
            .filter(dialable)
            .or_else(interfaces)
    }
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
}
