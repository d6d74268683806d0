//! The listeners of clients that name their node: those of `--name-listen`, and in a cluster those
//! that the Service of `--name-service` leads to.

use std::net::SocketAddr;

use anyhow::Result;
use culvert_daemon::{OptionalPort, SocketUse, Supervisor, TakenPorts};
use culvert_proxy_clients::admitted::Admitted;
use culvert_proxy_clients::names::Names;
use culvert_proxy_clients::refusals::Refusals;
use culvert_proxy_cluster::NameService;
use culvert_proxy_core::metrics::OpenPort;
use culvert_proxy_streams::sockets::strangers::Strangers;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::Proxy;
use super::optional_port::serve_optional;
use crate::args::any_address;

/// A listener, bound and not yet served.
pub(super) struct NameListener {
    port: OptionalPort,
    leads_to: LeadsTo,
}

/// The port of the nodes that a listener stands for.
#[derive(Clone)]
enum LeadsTo {
    /// This one.
    Port(u16),
    /// What the Service says of this own port.
    Service(u16, watch::Receiver<NameService>),
}

impl LeadsTo {
    /// `None`: no entry of the Service leads here.
    fn port(&self) -> Option<u16> {
        match self {
            Self::Port(port) => Some(*port),
            Self::Service(own, service) => service.borrow().ports.get(own).copied(),
        }
    }
}

impl Proxy {
    pub(super) fn bind_names(&self, taken: &TakenPorts) -> Result<Vec<NameListener>> {
        let mut bound = Vec::new();
        for given in &self.config.names.name_listen {
            bound.push(NameListener {
                port: self.bind_name(given.address, "--name-listen", taken)?,
                leads_to: LeadsTo::Port(given.node_port.get()),
            });
        }
        let kubernetes = &self.config.kubernetes;
        if kubernetes.name_service.is_some() {
            // All of them now: what each one means may change at any time.
            for own in kubernetes.name_ports.all() {
                bound.push(NameListener {
                    port: self.bind_name(any_address(own), "--name-ports", taken)?,
                    leads_to: LeadsTo::Service(own, self.name_service_tx.subscribe()),
                });
            }
        }
        Ok(bound)
    }

    fn bind_name(
        &self,
        address: SocketAddr,
        flag: &'static str,
        taken: &TakenPorts,
    ) -> Result<OptionalPort> {
        self.bind_optional(address, flag, SocketUse::Clients, taken)
    }

    pub(super) fn spawn_names(&self, supervisor: &mut Supervisor, listeners: Vec<NameListener>) {
        let config = &self.config;
        let names = Names {
            router: self.router.clone(),
            workers: self.workers.clone(),
            admitted: Admitted::new(
                &config.names.name_client,
                &config.kubernetes.pod_range,
                self.directory.clone(),
            ),
            strangers: Strangers::new(config.listen.max_handshakes),
            drain: supervisor.drain(),
            refusals: Refusals::new(self.metrics.refused_clients(OpenPort::Name)),
        };
        for NameListener { port, leads_to } in listeners {
            let names = names.clone();
            let served = serve_optional(
                port,
                "names",
                supervisor.drain(),
                move |client, connections: &TaskTracker| {
                    names.serve(leads_to.port(), client, connections);
                },
            );
            supervisor.spawn("name-routed port", self.clients.track_future(served));
        }
    }
}
