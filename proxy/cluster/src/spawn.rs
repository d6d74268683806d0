//! Starts the tasks that follow the cluster and write to it. They are started here, so that what
//! they do is compiled in this crate, and not in the one that puts the proxy together.

use std::collections::BTreeSet;

use culvert_api::{HostPort, NodeName};
use culvert_daemon::{Readiness, Supervisor};
use culvert_proxy_core::advertise::Advertised;
use culvert_proxy_core::daemon_set::DaemonSetStatus;
use culvert_proxy_core::directory::{ClusterWriter, Directory};
use culvert_proxy_core::forward::Forward;
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::listed_peer::ListedPeer;
use culvert_proxy_core::metrics::Metrics;
use culvert_proxy_core::state::StateDir;
use culvert_proxy_trust::Trust;
use tokio::sync::watch;

use crate::events::Events;
use crate::leases::OwnLease;
use crate::{Cluster, NameService, SharedAuthority};

/// What the tasks need of the proxy.
pub struct Parts {
    /// Where nodes, ports and VIPs of the cluster go.
    pub writer: ClusterWriter,
    /// All nodes.
    pub directory: Directory,
    /// Who is who.
    pub trust: Trust,
    /// What is counted.
    pub metrics: Metrics,
    /// Where the last state of the cluster is kept.
    pub state: StateDir,
    /// How agents reach this proxy.
    pub advertised: Advertised,
    /// The ports of this host on which the proxy listens by its flags.
    pub own_ports: BTreeSet<u16>,
    /// The authority that the cluster's proxies share, unless the operator's own files are used.
    pub authority: Option<SharedAuthority>,
    /// What the Service of `--name-service` says.
    pub name_service_tx: watch::Sender<NameService>,
    /// What ConfigMap `culvert-forwards` says.
    pub forwards_tx: watch::Sender<Vec<Forward>>,
    /// Whether the DaemonSet of redirectors has been deleted.
    pub daemon_set_tx: watch::Sender<DaemonSetStatus>,
    /// The other proxies of the cluster.
    pub listed_tx: watch::Sender<BTreeSet<ListedPeer>>,
    /// Which run of this proxy it is.
    pub instance: Instance,
    /// Where other proxies dial this one. `None`: it has no address that they could dial.
    pub peer_address: Option<HostPort>,
    /// What is done for each node that the cluster has deleted.
    pub gone: Box<dyn Fn(&NodeName) + Send>,
}

impl Cluster {
    /// Starts the tasks. They end with the drain.
    pub fn spawn(&self, parts: Parts, supervisor: &mut Supervisor, readiness: &Readiness) {
        self.spawn_settings(&parts, supervisor);
        self.spawn_proxies(&parts, supervisor);
        let drain = supervisor.drain();
        let daemon_set = self
            .clone()
            .follow_daemon_set(parts.daemon_set_tx, drain.clone());
        supervisor.spawn("DaemonSet of redirectors", daemon_set);
        let nodes = self.clone().follow_nodes(
            parts.writer,
            parts.metrics,
            readiness.gate("cluster"),
            parts.gone,
            drain.clone(),
        );
        supervisor.spawn("cluster nodes", nodes);
        let gate = readiness.gate("revocations");
        let shared = self
            .clone()
            .share_revocations(parts.trust, gate, drain.clone());
        supervisor.spawn("cluster revocations", shared);
        if let Some(authority) = parts.authority {
            supervisor.spawn("cluster authority", authority.follow(drain.clone()));
        }
    }

    /// What the cluster says of ports and names, what the proxy writes of its nodes, and Events.
    fn spawn_settings(&self, parts: &Parts, supervisor: &mut Supervisor) {
        let drain = supervisor.drain();
        let (events, told) = Events::channel();
        let ports_tx = watch::Sender::default();
        let named = self.clone().follow_name_service(
            ports_tx.subscribe(),
            parts.name_service_tx.clone(),
            parts.state.clone(),
            drain.clone(),
        );
        supervisor.spawn("Service of names", named);
        let forwards = self.clone().follow_forwards(
            parts.own_ports.clone(),
            parts.state.clone(),
            events.clone(),
            parts.forwards_tx.clone(),
            drain.clone(),
        );
        supervisor.spawn("cluster forwards", forwards);
        let ports = self.clone().follow_ports(
            parts.writer.clone(),
            parts.state.clone(),
            events,
            ports_tx,
            drain.clone(),
        );
        supervisor.spawn("cluster ports", ports);
        let hosts = self.clone().write_hosts(
            parts.directory.clone(),
            parts.name_service_tx.subscribe(),
            drain.clone(),
        );
        supervisor.spawn("cluster hosts", hosts);
        let written = self
            .clone()
            .write_events(parts.directory.clone(), told, drain);
        supervisor.spawn("Events", written);
    }

    /// What proxies know of each other, and agents of them.
    fn spawn_proxies(&self, parts: &Parts, supervisor: &mut Supervisor) {
        let drain = supervisor.drain();
        let told = self.clone().publish_for_agents(
            parts.trust.clone(),
            parts.advertised.clone(),
            parts.metrics.clone(),
            drain.clone(),
        );
        supervisor.spawn("agents' ConfigMap", told);
        let instance = parts.instance.clone();
        let own = parts
            .peer_address
            .clone()
            .map(|address| OwnLease { instance, address });
        let tunnels = parts.metrics.tunnels.clone();
        let leases = self.clone().follow_leases(
            own,
            move || u32::try_from(tunnels.get()).unwrap_or(0),
            parts.listed_tx.clone(),
            parts.metrics.clone(),
            async move { drain.begun().await },
        );
        supervisor.spawn("cluster leases", leases);
    }
}
