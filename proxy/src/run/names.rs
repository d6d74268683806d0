//! The listeners of clients that name their node: those of `--name-listen`, and in a cluster those
//! that the Service of `--name-service` leads to.

use anyhow::{Context, Result, bail, ensure};
use culvert_daemon::{SocketUse, Supervisor};
use culvert_proxy_clients::admitted::Admitted;
use culvert_proxy_clients::names::Names;
use culvert_proxy_clients::refusals::Refusals;
use culvert_proxy_cluster::{HostsAddress, NameService};
use culvert_proxy_core::metrics::OpenPort;
use culvert_proxy_streams::sockets::listen;
use culvert_proxy_streams::sockets::strangers::Strangers;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::Proxy;
use crate::args::{RunArgs, listen as any_address};

/// A listener, bound and not yet served.
pub(super) struct NameListener {
    listener: TcpListener,
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

/// Refuses flags that contradict each other.
pub(super) fn check(args: &RunArgs) -> Result<()> {
    let kubernetes = &args.kubernetes;
    if kubernetes.name_service.is_none() {
        ensure!(
            kubernetes.hosts_address == HostsAddress::Vip,
            "--hosts-address service: give --name-service too, the Service whose address it is"
        );
        return Ok(());
    }
    ensure!(
        kubernetes.is_in_cluster(),
        "--name-service: there is a Service only in a cluster: give --kubernetes, or --name-listen \
         instead"
    );
    for given in &args.names.name_listen {
        if kubernetes.name_ports.contains(given.address.port()) {
            bail!(
                "--name-listen {given}: its port is one of --name-ports, which --name-service \
                 leads to: choose another one"
            );
        }
    }
    Ok(())
}

impl Proxy {
    pub(super) fn bind_names(&self) -> Result<Vec<NameListener>> {
        let bind = |address| listen::bind(&self.listeners, address, SocketUse::Clients);
        let mut bound = Vec::new();
        for given in &self.args.names.name_listen {
            bound.push(NameListener {
                listener: bind(given.address).context("--name-listen")?,
                leads_to: LeadsTo::Port(given.node_port.get()),
            });
        }
        let kubernetes = &self.args.kubernetes;
        if kubernetes.name_service.is_some() {
            // All of them now: what each one means may change at any time.
            for own in kubernetes.name_ports.all() {
                bound.push(NameListener {
                    listener: bind(any_address(own))
                        .context("--name-ports: choose a range that nothing else uses")?,
                    leads_to: LeadsTo::Service(own, self.name_service_tx.subscribe()),
                });
            }
        }
        Ok(bound)
    }

    pub(super) fn spawn_names(&self, supervisor: &mut Supervisor, listeners: Vec<NameListener>) {
        let args = &self.args;
        let names = Names {
            router: self.router.clone(),
            workers: self.workers.clone(),
            admitted: Admitted::new(
                &args.names.name_client,
                &args.kubernetes.pod_range,
                self.directory.clone(),
            ),
            strangers: Strangers::new(args.listen.max_handshakes),
            drain: supervisor.drain(),
            refusals: Refusals::new(self.metrics.refused_clients(OpenPort::Name)),
        };
        for NameListener { listener, leads_to } in listeners {
            let names = names.clone();
            let serve_one = move |client, connections: &TaskTracker| {
                names.serve(leads_to.port(), client, connections);
            };
            let served = listen::serve(listener, "names", supervisor.drain(), serve_one);
            supervisor.spawn("name-routed port", self.clients.track_future(served));
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn checked(flags: &[&str]) -> Result<()> {
        let args = Args::try_parse_from([&["culvert-proxy"], flags].concat())?;
        check(&args.run)
    }

    #[test]
    fn flags_that_contradict_each_other_are_named() {
        let service = ["--name-service", "culvert-edge"];
        let in_cluster = [&["--kubernetes"][..], &service].concat();
        checked(&in_cluster).unwrap();
        checked(&["--name-listen", "[::]:7450=10250"]).unwrap();
        let hosts = ["--hosts-configmap", "a/b", "--hosts-address", "service"];
        for (flags, words) in [
            (service.to_vec(), "give --kubernetes"),
            (hosts.to_vec(), "give --name-service"),
            (
                [&in_cluster[..], &["--name-listen", "[::]:7450=10250"]].concat(),
                "--name-listen [::]:7450=10250: its port is one of --name-ports",
            ),
        ] {
            let error = checked(&flags).unwrap_err().to_string();
            assert!(error.contains(words), "{flags:?}: {error}");
        }
    }
}
