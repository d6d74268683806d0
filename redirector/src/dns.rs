//! The DNS server: authoritative for the nodes' names and for the reverse names of VIPs, straight from the directory.

mod answer;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod handler;
mod tcp;

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_daemon::Drain;
use hickory_proto::rr::Name;
use hickory_server::Server;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::{DnsConfig, NodeIps};
use crate::directory::Feed;
use crate::metrics::DnsMetrics;
use handler::{Handler, Shared};

/// The zone of node names, such as `edge.internal.`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Zone(Name);

/// A text that is no zone.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a DNS zone: write a name such as edge.internal")]
pub(crate) struct InvalidZone(String);

impl FromStr for Zone {
    type Err = InvalidZone;

    fn from_str(text: &str) -> Result<Self, InvalidZone> {
        let invalid = || InvalidZone(text.chars().take(300).collect());
        let mut name = Name::from_ascii(text.trim_end_matches('.')).map_err(|_why| invalid())?.to_lowercase();
        name.set_fqdn(true);
        if name.is_root() { Err(invalid()) } else { Ok(Self(name)) }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_ascii().trim_end_matches('.'))
    }
}

impl TryFrom<String> for Zone {
    type Error = InvalidZone;

    fn try_from(text: String) -> Result<Self, InvalidZone> {
        text.parse()
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.to_string()
    }
}

impl Zone {
    /// Whether `name` is the zone's own or below it.
    fn contains(&self, name: &Name) -> bool {
        self.0.zone_of(name)
    }
}

/// The server, bound but not yet answering.
pub(crate) struct Dns {
    udp: Server<Shared>,
    tcp: Vec<TcpListener>,
    handler: Arc<Handler>,
    addresses: Vec<SocketAddr>,
}

impl Dns {
    /// Takes the addresses, UDP and TCP.
    pub(crate) async fn bind(
        config: DnsConfig,
        node: NodeIps,
        feed: watch::Receiver<Feed>,
        metrics: DnsMetrics,
    ) -> Result<Self> {
        let handler = Arc::new(Handler::new(config.zone, config.clients, node, feed, metrics));
        let (mut udp, mut tcp) = (Server::new(Shared(Arc::clone(&handler))), Vec::new());
        for address in &config.listen {
            let explained = || {
                format!(
                    "answer DNS on {address}; if another server is there, choose another address by --dns-listen, \
                     or `--dns-listen none`"
                )
            };
            udp.register_socket(UdpSocket::bind(address).await.with_context(explained)?);
            tcp.push(TcpListener::bind(address).await.with_context(explained)?);
        }
        Ok(Self { udp, tcp, handler, addresses: config.listen })
    }

    /// Answers until the drain begins.
    pub(crate) async fn run(mut self, drain: Drain) -> Result<()> {
        tracing::info!(addresses = ?self.addresses, "answering DNS");
        let mut listeners = JoinSet::new();
        for listener in self.tcp {
            listeners.spawn(tcp::serve(listener, Arc::clone(&self.handler)));
        }
        tokio::select! {
            ended = self.udp.block_until_done() => ended.context("answer DNS over UDP"),
            Some(ended) = listeners.join_next() => ended.context("answer DNS over TCP")?,
            () = drain.begun() => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_a_name_with_or_without_its_last_dot() {
        for text in ["edge.internal", "Edge.Internal."] {
            assert_eq!(text.parse::<Zone>().unwrap().to_string(), "edge.internal");
        }
        for bad in ["", ".", "a..b", &"a".repeat(64)] {
            assert!(bad.parse::<Zone>().is_err(), "{bad:?}");
        }
    }
}
