//! The DNS server: authoritative for the nodes' names and for the reverse names of VIPs, straight
//! from the directory. Other names are refused, or forwarded where `--forward` names a server for
//! them.

mod answer;
mod clients;
mod forward;
mod framing;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod handler;
mod tcp;

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_api::Zone;
use culvert_daemon::{Drain, Gate, Problem};
use hickory_proto::ProtoError;
use hickory_proto::rr::Name;
use hickory_server::Server;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::{DnsConfig, NodeIps};
use crate::directory::Feed;
use crate::metrics::DnsMetrics;
use clients::Clients;
use forward::Forwarder;
use handler::{Handler, SharedHandler};

/// Longest datagram that every client accepts without EDNS, RFC 1035.
const MIN_PAYLOAD: u16 = 512;
/// Longest datagram sent, by DNS Flag Day 2020: larger ones are fragmented and lost.
const UDP_PAYLOAD: u16 = 1232;

/// Pause before an address that is in use is tried again.
const BIND_AGAIN: Duration = Duration::from_secs(2);

/// The zone, and as DNS writes it, such as `edge.internal.`.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    zone: Zone,
    apex: Name,
}

impl TryFrom<&Zone> for Origin {
    type Error = ProtoError;

    fn try_from(zone: &Zone) -> Result<Self, ProtoError> {
        let mut apex = Name::from_ascii(zone.as_str())?;
        apex.set_fqdn(true);
        Ok(Self {
            zone: zone.clone(),
            apex,
        })
    }
}

impl Origin {
    /// Whether `name` is the zone itself or below it.
    fn contains(&self, name: &Name) -> bool {
        self.apex.zone_of(name)
    }
}

/// Inputs that answers depend on.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) node: watch::Receiver<NodeIps>,
    pub(crate) feed: watch::Receiver<Feed>,
    pub(crate) metrics: DnsMetrics,
}

/// Answers until the drain begins. Retries an address that another server uses; the other addresses
/// do not wait for it.
pub(crate) async fn serve(
    config: DnsConfig,
    mut sources: Sources,
    gate: Gate,
    drain: Drain,
) -> Result<()> {
    let mut problem = Problem::default();
    loop {
        let node = *sources.node.borrow_and_update();
        match Dns::bind(&config, node, &sources).await {
            Ok(dns) => {
                gate.open();
                problem.record(None);
                tokio::select! {
                    ended = dns.run(drain.clone()) => return ended,
                    changed = changed(&mut sources.node, &drain) => changed?,
                }
            }
            Err(error) => {
                let reason = format!("{error:#}");
                if let Some(reason) = problem.record(Some(reason.clone())) {
                    tracing::error!(reason, "DNS is not answered; trying again");
                }
                gate.close(reason);
                tokio::select! {
                    () = drain.begun() => return Ok(()),
                    () = tokio::time::sleep(BIND_AGAIN) => {}
                }
            }
        }
    }
}

/// Completes when the node's addresses change.
///
/// # Errors
/// The steering task has ended, and the drain has not begun: that task may end before DNS.
async fn changed(node: &mut watch::Receiver<NodeIps>, drain: &Drain) -> Result<()> {
    if node.changed().await.is_err() {
        ensure!(drain.has_begun(), "the steering task has ended");
        pending::<()>().await;
    }
    Ok(())
}

/// The server, bound but not yet answering.
struct Dns {
    udp: Server<SharedHandler>,
    tcp: Vec<TcpListener>,
    handler: Arc<Handler>,
    addresses: Vec<SocketAddr>,
}

impl Dns {
    /// Takes the addresses, UDP and TCP.
    async fn bind(config: &DnsConfig, node: NodeIps, sources: &Sources) -> Result<Self> {
        let forward = if config.forward.is_empty() {
            None
        } else {
            Some(Forwarder::new(config.forward.clone()))
        };
        let origin = Origin::try_from(&config.zone).context("--dns-zone")?;
        let clients = Clients::new(config.clients.clone());
        let feed = sources.feed.clone();
        let metrics = sources.metrics.clone();
        let handler = Handler::new(origin, clients, node, feed, metrics).forwarding(forward);
        let handler = Arc::new(handler);
        let mut udp = Server::new(SharedHandler(Arc::clone(&handler)));
        let mut tcp = Vec::new();
        let addresses = config.addresses(node);
        for address in &addresses {
            let socket = UdpSocket::bind(address).await;
            udp.register_socket(socket.with_context(|| another_choice(*address))?);
            let listener = TcpListener::bind(address).await;
            tcp.push(listener.with_context(|| another_choice(*address))?);
        }
        Ok(Self {
            udp,
            tcp,
            handler,
            addresses,
        })
    }

    /// Answers until the drain begins.
    async fn run(mut self, drain: Drain) -> Result<()> {
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

fn another_choice(address: SocketAddr) -> String {
    format!(
        "answer DNS on {address}; if another server is there, choose another address by \
         --dns-listen, or `--dns-listen none`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn dns_ends_in_order_after_the_steering_task_at_the_drain() {
        let (node_tx, mut node) = watch::channel(NodeIps::default());
        drop(node_tx);
        let drain = Drain::default();
        changed(&mut node, &drain).await.unwrap_err();
        drain.start();
        tokio::select! {
            biased;
            ended = changed(&mut node, &drain) => panic!("{ended:?}"),
            () = std::future::ready(()) => {}
        }
    }
}
