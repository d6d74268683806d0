//! The other proxies of the installation, if there may be any: the peer port, the connections to
//! them, and without a cluster the primary that this proxy follows.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_api::proto::control::control_server::ControlServer;
use culvert_daemon::{Readiness, Supervisor};
use culvert_proxy_core::state::StateDir;
use culvert_proxy_operators::stream_list::StreamList;
use culvert_proxy_peers::{
    Calls, Grpc, PeerAddresses, PeerPort, Peers, Primary, PrimaryClient, Reached,
};
use culvert_proxy_streams::sockets::listen;
use culvert_proxy_trust::TrustSource;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tower::util::BoxCloneSyncService;

use super::Proxy;
use crate::args::RunArgs;

/// The time that a start waits for the API server to list the revoked certificates.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time that a start waits for another proxy to tell what was revoked meanwhile.
const PEERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks what clap cannot: a follower has the primary's authority, and is in no cluster.
pub(super) fn check_follower(args: &RunArgs, source: &TrustSource, state: &StateDir) -> Result<()> {
    let Some(primary) = &args.peers.follow else {
        return Ok(());
    };
    ensure!(
        !args.kubernetes.is_in_cluster(),
        "--follow: in a cluster all proxies have its Nodes: leave out --follow or --kubernetes"
    );
    let cert = state.join("ca.crt");
    let key = state.join("ca.key");
    ensure!(
        *source != TrustSource::Embedded || (cert.exists() && key.exists()),
        "--follow: this proxy needs the authority of {primary}: copy ca.crt and ca.key of that \
         proxy's state directory to {} and {}, or give both proxies the same --ca-cert and --ca-key",
        cert.display(),
        key.display()
    );
    Ok(())
}

impl Proxy {
    pub(super) fn may_have_peers(&self) -> bool {
        let args = &self.args.peers;
        !args.peer.is_empty() || args.follow.is_some() || self.cluster.is_some()
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
        let args = &self.args.peers;
        self.trust.check_proxy_role()?;
        let primary = args.follow.clone().zip(self.facts.clone());
        let primary = primary.map(|(host, writer)| {
            let followed = (self.directory.clone(), writer);
            let gate = readiness.gate("primary");
            Arc::new(Primary::new(host, followed, self.registry.clone(), gate))
        });
        Ok(Some(Arc::new(Peers {
            own: self.own_info(),
            trust: self.trust.clone(),
            registry: self.registry.clone(),
            streams: self.streams.clone(),
            workers: self.workers.clone(),
            budget: self.budget.clone(),
            stream_window: self.args.stream_window,
            agents: self.departure.agents(),
            drain: supervisor.drain(),
            reached: Reached::default(),
            primary,
        })))
    }

    /// Listens for other proxies and follows them.
    pub(super) fn spawn_peers(
        &self,
        supervisor: &mut Supervisor,
        peers: Option<&Arc<Peers>>,
        listener: Option<TcpListener>,
        streams: StreamList,
    ) {
        let (Some(peers), Some(listener)) = (peers, listener) else {
            return;
        };
        if self.cluster.is_none() {
            self.trust.await_peers();
        }
        let follows = peers.primary.is_some();
        let control = || -> Grpc {
            BoxCloneSyncService::new(ControlServer::new(self.control(None, streams)))
        };
        let calls = Calls {
            control: (!follows).then(control),
            enroll: BoxCloneSyncService::new(self.enroll_service(None)),
        };
        let port = PeerPort::new(peers.clone(), calls);
        let workers = self.workers.clone();
        let serve_one =
            move |peer, connections: &TaskTracker| port.serve(&workers.next(), peer, connections);
        supervisor.spawn(
            "peer port",
            listen::serve(listener, "peers", supervisor.drain(), serve_one),
        );
        let addresses = PeerAddresses {
            given: self.args.peers.peer.clone(),
            primary: self.args.peers.follow.clone(),
            listed: self.listed_tx.subscribe(),
        };
        // While this proxy drains, its clients still need the peers.
        supervisor.spawn_observer("peers", addresses.follow_all(peers.clone()));
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
        if timeout(PEERS_TIMEOUT, self.trust.peers_have_told())
            .await
            .is_err()
        {
            tracing::warn!(
                "starting without a word from another proxy: nodes that are new to this proxy have \
                 to wait, and a certificate that was revoked elsewhere meanwhile is valid here"
            );
        }
    }

    /// What passes on to the primary what operators want.
    pub(super) fn primary_client(peers: Option<&Arc<Peers>>) -> Option<PrimaryClient> {
        peers.and_then(PrimaryClient::of)
    }
}
