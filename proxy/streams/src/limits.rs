//! Shares a node's streams among its clients, so that no client takes what the others need.

use std::net::{IpAddr, SocketAddr};

use culvert_api::NodeName;
use culvert_daemon::Permit;
use culvert_proxy_core::directory::Target;
use culvert_tunnel::DEFAULT_MAX_STREAMS;

/// Streams that one agent relays concurrently over all its tunnels. This bounds the memory that
/// stream windows can take.
pub const MAX_STREAMS_PER_AGENT: u32 = DEFAULT_MAX_STREAMS;
/// Streams to one node for one client address: a quarter of all.
pub(crate) const SHARE: u32 = MAX_STREAMS_PER_AGENT / 4;
/// Streams of a node that pods cannot take. They are reserved for this host's programs that connect
/// to the node's kubelet, and for clients of CONNECT. kube-apiserver is one of these two.
const RESERVED: u32 = 16;
/// The ports of the kubelet and of KubeEdge's.
const KUBELET: [u16; 2] = [10250, 10350];

/// The kind of client that asks for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// A client of CONNECT. The socket's mode or a certificate has admitted it.
    Connect,
    /// A program of this host.
    Host,
    /// Any other address: it is a pod's.
    Address(IpAddr),
}

impl ClientKind {
    /// The kind of a steered client. `local` is the proxy's end, `dialled` is the client's original
    /// destination. A program of this host connects from loopback, from the same address that it
    /// connects to, or from the VIP that it dials.
    pub fn steered(client: IpAddr, local: Option<IpAddr>, dialled: SocketAddr) -> Self {
        let client = client.to_canonical();
        let is_host = client.is_loopback()
            || local.is_some_and(|local| local.to_canonical() == client)
            || dialled.ip().to_canonical() == client;
        if is_host {
            Self::Host
        } else {
            Self::Address(client)
        }
    }

    /// The number of the node's streams below which this client gets another one.
    pub(super) fn limit(self, target: &Target) -> u32 {
        let may_take_all = match self {
            Self::Connect => true,
            Self::Host => KUBELET.contains(&target.port),
            Self::Address(_) => false,
        };
        if may_take_all {
            MAX_STREAMS_PER_AGENT
        } else {
            MAX_STREAMS_PER_AGENT - RESERVED
        }
    }
}

/// One stream of an address's share of a node. Dropping it gives the stream back. Other clients
/// need none.
pub(crate) type Share = Option<Permit<(NodeName, IpAddr)>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(last: u8) -> ClientKind {
        ClientKind::Address(IpAddr::from([10, 244, 0, last]))
    }

    #[test]
    fn the_last_streams_are_for_connect_and_for_hosts_that_ask_the_kubelet() {
        let limit = |client: ClientKind, port| {
            client.limit(&Target {
                node: "edge-1".parse().unwrap(),
                address: None,
                instead: Vec::new(),
                port,
            })
        };
        for port in [9100, 10250, 10350] {
            assert_eq!(
                limit(pod(1), port),
                MAX_STREAMS_PER_AGENT - RESERVED,
                "four pods have a share each: all there are"
            );
            assert_eq!(limit(ClientKind::Connect, port), MAX_STREAMS_PER_AGENT);
        }
        assert_eq!(
            limit(ClientKind::Host, 9100),
            MAX_STREAMS_PER_AGENT - RESERVED
        );
        for port in KUBELET {
            assert_eq!(limit(ClientKind::Host, port), MAX_STREAMS_PER_AGENT);
        }
    }

    #[test]
    fn a_host_that_dials_itself_is_no_pod() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let dialled = "198.18.0.2:9100".parse().unwrap();
        for (client, local) in [
            ("203.0.113.1", "203.0.113.1"),
            ("127.0.0.1", "203.0.113.1"),
            ("198.18.0.2", "203.0.113.1"),
            ("::1", "::1"),
        ] {
            assert_eq!(
                ClientKind::steered(address(client), Some(address(local)), dialled),
                ClientKind::Host,
                "{client}"
            );
        }
        let mapped = ClientKind::steered(
            address("::ffff:10.244.0.1"),
            Some(address("::ffff:203.0.113.1")),
            dialled,
        );
        assert_eq!(mapped, pod(1));
    }
}
