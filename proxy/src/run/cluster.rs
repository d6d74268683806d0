//! The Kubernetes cluster that the proxy is a part of.

use culvert_daemon::{Readiness, Supervisor};
use tokio::sync::watch;

use super::{Proxy, forwards};
use crate::advertise::PeerAdvertise;
use crate::cluster::{Cluster, Events, OwnLease, SharedAuthority};
use crate::directory::ClusterWriter;
use crate::peers::follow_contact;

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
        let drain = supervisor.drain();
        let (registry, trust) = (self.registry.clone(), self.trust.clone());
        let gone = move |node: &_| {
            trust.departed(node);
            registry.close(node);
        };
        let nodes = cluster.clone().follow_nodes(
            writer.clone(),
            self.metrics.clone(),
            readiness.gate("cluster"),
            gone,
            drain,
        );
        supervisor.spawn("cluster nodes", nodes);
        let gate = readiness.gate("revocations");
        let shared =
            cluster
                .clone()
                .share_revocations(self.trust.clone(), gate, supervisor.drain());
        supervisor.spawn("cluster revocations", shared);
        let (events, told) = Events::channel();
        let ports_tx = watch::Sender::default();
        let named = cluster.clone().keep_name_service(
            ports_tx.subscribe(),
            self.name_service_tx.clone(),
            self.state.clone(),
            supervisor.drain(),
        );
        supervisor.spawn("Service of names", named);
        let forwards = cluster.clone().follow_forwards(
            forwards::own_ports(&self.args),
            self.state.clone(),
            events.clone(),
            self.forwards_tx.clone(),
            supervisor.drain(),
        );
        supervisor.spawn("cluster forwards", forwards);
        let ports = cluster.clone().follow_ports(
            writer.clone(),
            self.state.clone(),
            events,
            ports_tx,
            supervisor.drain(),
        );
        supervisor.spawn("cluster ports", ports);
        let hosts = cluster.clone().write_hosts(
            self.directory.clone(),
            self.name_service_tx.subscribe(),
            supervisor.drain(),
        );
        supervisor.spawn("cluster hosts", hosts);
        supervisor.spawn(
            "Events",
            cluster
                .clone()
                .write_events(self.directory.clone(), told, supervisor.drain()),
        );
        if let Some(authority) = authority {
            supervisor.spawn(
                "cluster authority",
                authority.clone().follow(supervisor.drain()),
            );
        }
        let told = cluster.clone().tell_agents(
            self.trust.clone(),
            self.advertised.clone(),
            self.metrics.clone(),
            supervisor.drain(),
        );
        supervisor.spawn("agents' ConfigMap", told);
        self.spawn_leases(cluster, supervisor, readiness);
    }

    /// Makes this proxy known to the cluster's others, and them to this one.
    fn spawn_leases(&self, cluster: &Cluster, supervisor: &mut Supervisor, readiness: &Readiness) {
        let contact = follow_contact(
            readiness.gate("peers"),
            self.listed_tx.subscribe(),
            self.registry.clone(),
        );
        supervisor.spawn_observer("contact with peers", contact);
        let given = self.args.peers.peer_advertise.as_ref();
        let address = PeerAdvertise::address(given, self.args.peers.peer_listen);
        if address.is_none() {
            tracing::error!(
                "this host has no address that other proxies could dial: start the proxy with \
                 --peer-advertise HOST:PORT"
            );
        }
        let own = address.map(|address| OwnLease {
            instance: self.instance.clone(),
            address,
        });
        let (tunnels, drain) = (self.metrics.tunnels.clone(), supervisor.drain());
        let leases = cluster.clone().follow_leases(
            own,
            move || u32::try_from(tunnels.get()).unwrap_or(0),
            self.listed_tx.clone(),
            self.metrics.clone(),
            async move { drain.begun().await },
        );
        supervisor.spawn("cluster leases", leases);
    }
}
