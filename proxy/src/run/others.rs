//! The other proxies of the installation, if there may be any: the peer port, the connections to
//! them, and without a cluster the primary that this proxy follows.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_api::proto::control::control_server::ControlServer;
use culvert_daemon::{OptionalPort, Readiness, SocketUse, Supervisor, TakenPorts};
use culvert_proxy_core::state::StateDir;
use culvert_proxy_operators::stream_list::StreamList;
use culvert_proxy_peers::{
    Calls, ConnectedPeers, Grpc, PeerAddresses, PeerPort, Peers, Primary, PrimaryClient,
};
use culvert_proxy_streams::sockets::listen;
use culvert_proxy_trust::TrustSource;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tower::util::BoxCloneSyncService;

use super::Proxy;
use super::optional_port::serve_optional;
use crate::config::Config;

/// The time that a start waits for the API server to list the revoked certificates.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that a start waits for another proxy to report what was revoked meanwhile.
const PEERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks that a follower has the primary's authority.
pub(super) fn check_follower(config: &Config, state: &StateDir) -> Result<()> {
    let Some(primary) = &config.peers.follow else {
        return Ok(());
    };
    let cert = state.join("ca.crt");
    let key = state.join("ca.key");
    ensure!(
        config.trust.source != TrustSource::Embedded || (cert.exists() && key.exists()),
        "--follow: this proxy needs the authority of {primary}: copy ca.crt and ca.key of that \
         proxy's state directory to {} and {}, or give both proxies the same --ca-cert and --ca-key",
        cert.display(),
        key.display()
    );
    Ok(())
}

impl Proxy {
    pub(super) fn may_have_peers(&self) -> bool {
        let given = &self.config.peers;
        !given.peer.is_empty() || given.follow.is_some() || self.cluster.is_some()
    }

    pub(super) fn bind_peers(&self, taken: &TakenPorts) -> Result<Option<OptionalPort>> {
        if !self.may_have_peers() {
            return Ok(None);
        }
        let listeners = self.listeners.clone();
        let address = self.config.peers.peer_listen;
        let segment_limit = self.config.listen.tunnel_tcp.tunnel_mss;
        let port = OptionalPort::bind(address, "--peer-listen", taken, move || {
            let listener = listen::bind(&listeners, address, SocketUse::Programs)?;
            if let Some(bytes) = segment_limit {
                culvert_tunnel::limit_segments(&listener, bytes);
            }
            Ok(listener)
        })?;
        Ok(Some(port))
    }

    /// What reaches the other proxies; `None`: there are none.
    pub(super) fn peers(
        &self,
        supervisor: &Supervisor,
        readiness: &Readiness,
    ) -> Result<Option<Arc<Peers>>> {
        if !self.may_have_peers() {
            return Ok(None);
        }
        self.trust.check_proxy_role()?;
        Ok(Some(Arc::new(Peers {
            own: self.own_info(),
            trust: self.trust.clone(),
            registry: self.registry.clone(),
            streams: self.streams.clone(),
            workers: self.workers.clone(),
            budget: self.config.budget.clone(),
            stream_window: self.config.stream_window,
            agents: self.departure.agents(),
            drain: supervisor.drain(),
            connected: ConnectedPeers::default(),
            primary: self.primary(readiness),
        })))
    }

    /// The proxy that this one follows, if any.
    fn primary(&self, readiness: &Readiness) -> Option<Arc<Primary>> {
        let host = self.config.peers.follow.clone()?;
        let followed = (self.directory.clone(), self.facts.clone()?);
        let gate = readiness.gate("primary");
        let primary = Primary::new(host, followed, self.registry.clone(), gate);
        Some(Arc::new(primary))
    }

    /// Listens for other proxies and follows them.
    pub(super) fn spawn_peers(
        &self,
        supervisor: &mut Supervisor,
        peers: Option<&Arc<Peers>>,
        port: Option<OptionalPort>,
        streams: StreamList,
    ) {
        let Some(peers) = peers else {
            return;
        };
        let Some(listened) = port else {
            return;
        };
        if self.cluster.is_none() {
            self.trust.require_peer_sync();
        }
        let port = PeerPort::new(peers.clone(), self.calls(peers, streams));
        let workers = self.workers.clone();
        let served = serve_optional(
            listened,
            "peers",
            supervisor.drain(),
            move |peer, connections: &TaskTracker| port.serve(&workers.next(), peer, connections),
        );
        supervisor.spawn("peer port", served);
        let addresses = PeerAddresses {
            given: self.config.peers.peer.clone(),
            primary: self.config.peers.follow.clone(),
            listed: self.listed_tx.subscribe(),
        };
        // While this proxy drains, its clients still need the peers.
        supervisor.spawn_observer("peers", addresses.follow_all(peers.clone()));
    }

    /// What other proxies may call. A follower answers no operators.
    fn calls(&self, peers: &Peers, streams: StreamList) -> Calls {
        let mut control: Option<Grpc> = None;
        if peers.primary.is_none() {
            let server = ControlServer::new(self.control(None, streams));
            control = Some(BoxCloneSyncService::new(server));
        }
        Calls {
            control,
            enroll: BoxCloneSyncService::new(self.enroll_service(None)),
        }
    }

    /// Waits a moment for what was revoked elsewhere while this proxy was away. Until it is known,
    /// no node is admitted that this proxy has not seen before.
    pub(super) async fn wait_for_others(&self) {
        if timeout(CLUSTER_TIMEOUT, self.trust.revocations_shared())
            .await
            .is_err()
        {
            tracing::warn!(
                "starting without the cluster's revocations: agents that are new to this proxy have \
                 to wait"
            );
        }
        if timeout(PEERS_TIMEOUT, self.trust.wait_for_peer_sync())
            .await
            .is_err()
        {
            tracing::warn!(
                "starting before another proxy has reported its revocations: nodes that are new to \
                 this proxy have to wait, and a certificate that was revoked elsewhere meanwhile is \
                 valid here"
            );
        }
    }

    /// The client that passes on to the primary what operators ask.
    pub(super) fn primary_client(peers: Option<&Arc<Peers>>) -> Option<PrimaryClient> {
        peers.and_then(PrimaryClient::of)
    }
}
