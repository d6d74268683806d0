//! The destinations of HTTP CONNECT without a tunnel: cloud nodes, and the ranges of `--direct`.
//! With kube-apiserver's egress selector, all its connections into the cluster come here. Edge
//! addresses are never among them, because callers look for an edge node first.

mod relay;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use culvert_api::{NodeName, Routing};
use culvert_proxy_core::directory::{Destination, Directory, ResolveError};
use culvert_proxy_core::metrics::Metrics;
use culvert_tunnel::proto::tunnel::DialCode;
use culvert_tunnel::{DIAL_TIMEOUT, DialFailure, Socket, dial_code, dial_reason};
use ipnet::IpNet;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::RouteError;
pub use relay::relay;

/// Dials from the proxy itself. Clones share it.
#[derive(Clone)]
pub struct Direct {
    directory: Directory,
    ranges: Arc<[IpNet]>,
    metrics: Metrics,
    for_whom: Clients,
}

/// The clients that a set of direct destinations is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    /// They can reach everything that this proxy can dial.
    Trusted,
    /// They can reach edge nodes only.
    EdgesOnly,
}

/// A destination that the proxy itself can dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectTarget {
    /// The address.
    pub address: SocketAddr,
    /// The reason, in words.
    pub reason: Reason,
}

/// The reason why the proxy can dial it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is an address of this cloud node.
    CloudNode(NodeName),
    /// It is in this range of `--direct`.
    Range(IpNet),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CloudNode(node) => write!(f, "cloud node {node}"),
            Self::Range(range) => write!(f, "--direct {range}"),
        }
    }
}

impl Direct {
    /// `ranges` are those of `--direct`.
    pub fn new(directory: Directory, ranges: &[IpNet], metrics: Metrics) -> Self {
        Self {
            directory,
            ranges: ranges.into(),
            metrics,
            for_whom: Clients::Trusted,
        }
    }

    /// For clients that reach nothing without a tunnel.
    pub fn for_edges_only(self) -> Self {
        Self {
            for_whom: Clients::EdgesOnly,
            ..self
        }
    }

    /// The address to dial for a destination that leads to no edge node because of `error`.
    pub fn target(&self, destination: &Destination, error: &ResolveError) -> Option<DirectTarget> {
        match error {
            ResolveError::UnknownAddress { .. }
            | ResolveError::UnknownName { .. }
            | ResolveError::Protected { .. }
            | ResolveError::Behind {
                routing: Routing::Protected,
                ..
            } => {}
            // The address belongs to two edge nodes, or to one that was just removed.
            ResolveError::Shared { .. }
            | ResolveError::Contested { .. }
            | ResolveError::Behind { .. }
            | ResolveError::OtherMeaning { .. }
            | ResolveError::UnassignedVip { .. } => return None,
        }
        if self.for_whom == Clients::EdgesOnly {
            return None;
        }
        if let Some((node, address)) = self.directory.cloud(destination) {
            return Some(DirectTarget {
                address,
                reason: Reason::CloudNode(node),
            });
        }
        let Destination::Address(dialled) = destination else {
            return None;
        };
        let address = SocketAddr::new(dialled.ip().to_canonical(), dialled.port());
        let range = self
            .ranges
            .iter()
            .find(|range| range.contains(&address.ip()))?;
        Some(DirectTarget {
            address,
            reason: Reason::Range(*range),
        })
    }

    /// Dials it. Dropping the future cancels the dial.
    pub async fn dial(&self, target: &DirectTarget) -> Result<Socket, RouteError> {
        let dial = self.metrics.dial();
        let address = target.address;
        let dialled = match timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await {
            // TCP_USER_TIMEOUT is not set: it would also end a backend that takes nothing for a
            // while.
            Ok(Ok(socket)) => tuned(socket),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match dialled {
            Ok(socket) => {
                dial.ended(dial_reason(DialCode::Ok));
                Ok(socket)
            }
            Err(error) => {
                let failure = DialFailure {
                    code: dial_code(&error),
                    message: error.to_string(),
                };
                let error = RouteError::Direct { address, failure };
                dial.ended(error.reason());
                Err(error)
            }
        }
    }
}

fn tuned(socket: TcpStream) -> io::Result<Socket> {
    culvert_tunnel::tune_relayed(&socket)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct(ranges: &[&str]) -> (Direct, tempfile::TempDir) {
        let path = tempfile::tempdir().unwrap();
        let directory = Directory::for_tests(path.path(), &["edge-1".parse().unwrap()]);
        directory
            .editor()
            .put(
                &"edge-1".parse().unwrap(),
                vec!["10.96.0.9".parse().unwrap()],
                vec![9100],
            )
            .unwrap();
        let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        (Direct::new(directory, &ranges, Metrics::default()), path)
    }

    fn target(direct: &Direct, text: &str) -> Option<String> {
        let destination: Destination = text.parse().unwrap();
        let error = direct.directory.resolve(&destination).err()?;
        let target = direct.target(&destination, &error)?;
        Some(format!("{} {}", target.address, target.reason))
    }

    #[test]
    fn ranges_are_dialled_but_nothing_that_is_an_edge_node_s() {
        let (direct, _path) = direct(&["10.96.0.0/12", "198.18.0.0/15", "fd01::/64"]);
        assert_eq!(
            target(&direct, "10.96.0.1:443").as_deref(),
            Some("10.96.0.1:443 --direct 10.96.0.0/12")
        );
        assert_eq!(
            target(&direct, "[::ffff:10.96.0.1]:443").as_deref(),
            Some("10.96.0.1:443 --direct 10.96.0.0/12")
        );
        assert_eq!(
            target(&direct, "[fd01::1]:443").as_deref(),
            Some("[fd01::1]:443 --direct fd01::/64")
        );
        for other in [
            "10.96.0.9:9100",
            "198.18.9.9:80",
            "192.0.2.1:443",
            "webhook.example:443",
            "edge-1:1",
        ] {
            assert_eq!(target(&direct, other), None, "{other}");
        }
    }

    #[test]
    fn who_is_here_for_edge_nodes_gets_nothing_else() {
        let (direct, _path) = direct(&["10.96.0.0/12"]);
        assert!(target(&direct, "10.96.0.1:443").is_some());
        assert_eq!(target(&direct.for_edges_only(), "10.96.0.1:443"), None);
    }

    #[test]
    fn without_a_cluster_and_ranges_nothing_is_dialled() {
        let (direct, _path) = direct(&[]);
        for any in ["10.96.0.1:443", "master:10250", "127.0.0.1:80"] {
            assert_eq!(target(&direct, any), None, "{any}");
        }
    }

    #[tokio::test]
    async fn a_backend_that_vanishes_from_an_idle_connection_is_noticed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (direct, _path) = direct(&["127.0.0.0/8"]);
        let reason = Reason::Range("127.0.0.0/8".parse().unwrap());
        let target = DirectTarget {
            address: listener.local_addr().unwrap(),
            reason,
        };
        let Socket::Tcp(dialled) = direct.dial(&target).await.unwrap() else {
            panic!("it is TCP")
        };
        let socket = socket2::SockRef::from(&dialled);
        assert!(socket.keepalive().unwrap());
        let probes =
            socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert_eq!(
            (socket.tcp_keepalive_time().unwrap() + probes).as_secs(),
            60
        );
    }

    #[tokio::test]
    async fn a_dial_that_fails_says_how() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let (direct, _path) = direct(&["127.0.0.0/8"]);
        let target = DirectTarget {
            address,
            reason: Reason::Range("127.0.0.0/8".parse().unwrap()),
        };
        let error = direct.dial(&target).await.err().unwrap();
        assert_eq!(error.reason(), "refused");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
