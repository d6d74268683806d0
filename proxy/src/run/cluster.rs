//! The Kubernetes cluster that the proxy is a part of.

use culvert_api::HostPort;
use culvert_daemon::{Readiness, Supervisor};
use culvert_proxy_cluster::{Cluster, Parts, SharedAuthority};
use culvert_proxy_core::advertise::PeerAdvertise;
use culvert_proxy_core::directory::ClusterWriter;
use culvert_proxy_peers::follow_contact;

use super::Proxy;

/// A Kubernetes cluster as the source of nodes.
pub(super) struct JoinedCluster {
    pub(super) cluster: Cluster,
    pub(super) writer: ClusterWriter,
    /// The authority that the cluster's proxies share, unless the operator's own files are used.
    pub(super) authority: Option<SharedAuthority>,
}

impl Proxy {
    /// Follows the cluster's changes.
    pub(super) fn spawn_cluster(&self, supervisor: &mut Supervisor, readiness: &Readiness) {
        let Some(JoinedCluster {
            cluster,
            writer,
            authority,
        }) = &self.cluster
        else {
            return;
        };
        let contact = follow_contact(
            readiness.gate("peers"),
            self.listed_tx.subscribe(),
            self.registry.clone(),
        );
        supervisor.spawn_observer("contact with peers", contact);
        let parts = Parts {
            writer: writer.clone(),
            directory: self.directory.clone(),
            trust: self.trust.clone(),
            metrics: self.metrics.clone(),
            state: self.state.clone(),
            advertised: self.advertised.clone(),
            own_ports: self.config.own_ports.clone(),
            authority: authority.clone(),
            name_service_tx: self.name_service_tx.clone(),
            forwards_tx: self.forwards_tx.clone(),
            daemon_set_tx: self.daemon_set_tx.clone(),
            listed_tx: self.listed_tx.clone(),
            instance: self.instance.clone(),
            peer_address: self.peer_address(),
            gone: Box::new(self.remove_gone()),
        };
        cluster.spawn(parts, supervisor, readiness);
    }

    /// Where the cluster's other proxies reach this one.
    fn peer_address(&self) -> Option<HostPort> {
        let given = self.config.peers.peer_advertise.as_ref();
        let address = PeerAdvertise::address(given, self.config.peers.peer_listen);
        if address.is_none() {
            tracing::error!(
                "this host has no address that other proxies could dial: start the proxy with \
                 --peer-advertise HOST:PORT"
            );
        }
        address
    }
}
