//! The listeners of clients.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_daemon::{Drain, OptionalPort, Readiness, SocketUse, Supervisor, TakenPorts};
use culvert_proxy_clients::connect::Connect;
use culvert_proxy_clients::intercept::Intercept;
use culvert_proxy_clients::original_dst::{OriginalDsts, TRIAL};
use culvert_proxy_streams::direct::Direct;
use culvert_proxy_streams::sockets::listen;
use culvert_proxy_streams::sockets::local_socket::{Access, LocalSocket};
use culvert_proxy_streams::sockets::strangers::{Phase, Strangers, say_busy};
use culvert_proxy_trust::Callers;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use super::Proxy;
use super::forwards::ForwardListeners;
use super::intercept_port;
use super::names::NameListener;
use super::optional_port::serve_optional;

/// The listeners of clients, bound and not yet served.
pub(super) struct Frontends {
    intercept: Vec<TcpListener>,
    connect_tls: Option<(OptionalPort, Callers)>,
    connect: LocalSocket,
    names: Vec<NameListener>,
    forwards: ForwardListeners,
}

impl Proxy {
    pub(super) fn bind_frontends(&self, taken: &TakenPorts) -> Result<Frontends> {
        let mut intercept = Vec::new();
        for address in &self.config.listen.intercept_listen {
            // The redirector spreads connections over all of these ports, and does not know that
            // another program has one: its share would be reset, or reach a program that listens
            // there.
            let bound = listen::bind(&self.listeners, *address, SocketUse::Clients);
            let bound = bound.map_err(|error| {
                let socket = &self.config.listen.directory_socket;
                let context = intercept_port::explain(&error, address.port(), socket);
                error.context(context)
            });
            intercept.push(bound?);
        }
        Ok(Frontends {
            intercept,
            connect_tls: self.bind_connect_tls(taken)?,
            connect: self.listeners.local(
                &self.config.listen.connect_socket,
                Access::Group,
                SocketUse::Clients,
            )?,
            names: self.bind_names(taken)?,
            forwards: self.bind_forwards(taken)?,
        })
    }

    fn bind_connect_tls(&self, taken: &TakenPorts) -> Result<Option<(OptionalPort, Callers)>> {
        let listen = &self.config.listen;
        // clap accepts --connect-listen and --connect-client-ca only together.
        let Some(address) = listen.connect_listen else {
            return Ok(None);
        };
        let Some(client_ca) = &listen.connect_client_ca else {
            return Ok(None);
        };
        let callers = self.trust.callers(client_ca);
        let callers = callers.context("--connect-client-ca")?;
        let port = self.bind_optional(address, "--connect-listen", SocketUse::Clients, taken)?;
        Ok(Some((port, callers)))
    }

    pub(super) fn spawn_frontends(
        &self,
        supervisor: &mut Supervisor,
        readiness: &Readiness,
        frontends: Frontends,
    ) {
        self.spawn_intercept(supervisor, readiness, frontends.intercept);
        self.spawn_names(supervisor, frontends.names);
        self.spawn_forwards(supervisor, frontends.forwards);
        let connect = self.connect(supervisor.drain());
        if let Some(connect_tls) = frontends.connect_tls {
            self.spawn_connect_tls(supervisor, &connect, connect_tls);
        }
        let served = listen::serve(
            frontends.connect,
            "connect_socket",
            supervisor.drain(),
            move |client, connections: &TaskTracker| {
                connect.clone().serve_unix(client, connections);
            },
        );
        supervisor.spawn("CONNECT socket", self.clients.track_future(served));
    }

    fn spawn_intercept(
        &self,
        supervisor: &mut Supervisor,
        readiness: &Readiness,
        listeners: Vec<TcpListener>,
    ) {
        let drain = supervisor.drain();
        let original_dsts = Arc::new(OriginalDsts::new(&self.config.bpffs));
        let gate = readiness.gate("original destinations");
        supervisor.spawn(
            "original destinations",
            original_dsts.clone().watch(TRIAL, gate, drain.clone()),
        );
        let intercept = Intercept {
            original_dsts,
            raw: self.raw_clients(),
            foreign: Arc::default(),
        };
        for listener in listeners {
            let intercept = intercept.clone();
            let served = listen::serve(
                listener,
                "intercept",
                drain.clone(),
                move |client, connections: &TaskTracker| intercept.serve(client, connections),
            );
            supervisor.spawn("intercept port", self.clients.track_future(served));
        }
    }

    fn spawn_connect_tls(
        &self,
        supervisor: &mut Supervisor,
        connect: &Connect,
        (listened, callers): (OptionalPort, Callers),
    ) {
        let direct = if self.config.listen.connect_listen_direct {
            self.direct()
        } else {
            self.direct().for_edges_only()
        };
        let connect = Connect {
            direct,
            ..connect.clone()
        };
        let port = ConnectPort {
            connect,
            callers,
            strangers: Strangers::new(self.config.listen.max_handshakes),
        };
        let served = serve_optional(
            listened,
            "connect_tls",
            supervisor.drain(),
            move |client, connections: &TaskTracker| port.serve(client, connections),
        );
        supervisor.spawn("CONNECT port", self.clients.track_future(served));
    }

    /// What serves CONNECT.
    pub(super) fn connect(&self, drain: Drain) -> Connect {
        Connect {
            router: self.router.clone(),
            direct: self.direct(),
            drain,
            workers: self.workers.clone(),
            refusals: Arc::default(),
        }
    }

    pub(super) fn direct(&self) -> Direct {
        Direct::new(
            self.directory.clone(),
            &self.config.listen.direct,
            self.metrics.clone(),
        )
    }
}

/// What serves the clients of `--connect-listen`.
struct ConnectPort {
    connect: Connect,
    callers: Callers,
    strangers: Strangers,
}

impl ConnectPort {
    fn serve(&self, (client, address): (TcpStream, SocketAddr), connections: &TaskTracker) {
        let Some(tls) = self.callers.server_config() else {
            return tracing::debug!(client.addr = %address, "CONNECT: no client is admitted: see the \
                error about --connect-client-ca");
        };
        match self.strangers.enter(address.ip(), Phase::Silent) {
            Ok(permit) => match client.into_std() {
                Ok(client) => {
                    let connect = self.connect.clone();
                    connect.serve_tls(tls, client, address, permit, connections);
                }
                Err(error) => self.connect.report_refusal(&address, &error),
            },
            Err(full) => {
                say_busy(&client);
                self.connect.report_refusal(&address, &full);
            }
        }
    }
}
