//! The listeners of clients.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use culvert_daemon::{Readiness, SocketUse, Supervisor};
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
use super::names::NameListener;

/// The listeners of clients, bound and not yet served.
pub(super) struct Frontends {
    intercept: Vec<TcpListener>,
    connect_tls: Option<(TcpListener, Callers)>,
    connect: LocalSocket,
    names: Vec<NameListener>,
    forwards: ForwardListeners,
}

impl Proxy {
    pub(super) fn bind_frontends(&self) -> Result<Frontends> {
        let listen = &self.args.listen;
        let tcp = |address| listen::bind(&self.listeners, address, SocketUse::Clients);
        let intercept = listen.intercept_listen.iter();
        let connect_tls = listen.connect_listen.zip(listen.connect_client_ca.as_ref());
        Ok(Frontends {
            intercept: intercept
                .map(|address| tcp(*address))
                .collect::<Result<_>>()?,
            connect_tls: connect_tls
                .map(|(address, client_ca)| {
                    let callers = self.trust.callers(client_ca)?;
                    anyhow::Ok((tcp(address)?, callers))
                })
                .transpose()?,
            connect: self.listeners.local(
                &listen.connect_socket,
                Access::Group,
                SocketUse::Clients,
            )?,
            names: self.bind_names()?,
            forwards: self.bind_forwards()?,
        })
    }

    pub(super) fn spawn_frontends(
        &self,
        supervisor: &mut Supervisor,
        readiness: &Readiness,
        frontends: Frontends,
    ) {
        let drain = supervisor.drain();
        let original_dsts = Arc::new(OriginalDsts::new(&self.args.bpffs));
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
        for listener in frontends.intercept {
            let intercept = intercept.clone();
            let serve_one =
                move |client, connections: &TaskTracker| intercept.serve(client, connections);
            let served = listen::serve(listener, "intercept", drain.clone(), serve_one);
            supervisor.spawn("intercept port", self.clients.track_future(served));
        }
        self.spawn_names(supervisor, frontends.names);
        self.spawn_forwards(supervisor, frontends.forwards);
        let connect = Connect {
            router: self.router.clone(),
            direct: self.direct(),
            drain: drain.clone(),
            workers: self.workers.clone(),
            refusals: Arc::default(),
        };
        if let Some(connect_tls) = frontends.connect_tls {
            self.spawn_connect_tls(supervisor, &connect, connect_tls);
        }
        let serve_one = move |client, connections: &TaskTracker| {
            connect.clone().serve_unix(client, connections);
        };
        let served = listen::serve(frontends.connect, "connect_socket", drain, serve_one);
        supervisor.spawn("CONNECT socket", self.clients.track_future(served));
    }

    fn spawn_connect_tls(
        &self,
        supervisor: &mut Supervisor,
        connect: &Connect,
        (listener, callers): (TcpListener, Callers),
    ) {
        let direct = if self.args.listen.connect_listen_direct {
            self.direct()
        } else {
            self.direct().for_edges_only()
        };
        let connect = Connect {
            direct,
            ..connect.clone()
        };
        let strangers = Strangers::new(self.args.listen.max_handshakes);
        let serve_one = move |(client, address): (TcpStream, SocketAddr),
                              connections: &TaskTracker| {
            let Some(tls) = callers.server_config() else {
                return tracing::debug!(client.addr = %address, "CONNECT: nobody may call: see the \
                    error about --connect-client-ca");
            };
            match strangers.enter(address.ip(), Phase::Silent) {
                Ok(permit) => match client.into_std() {
                    Ok(client) => {
                        let connect = connect.clone();
                        connect.serve_tls(tls, client, address, permit, connections);
                    }
                    Err(error) => connect.report_refusal(&address, &error),
                },
                Err(full) => {
                    say_busy(&client);
                    connect.report_refusal(&address, &full);
                }
            }
        };
        let served = listen::serve(listener, "connect_tls", supervisor.drain(), serve_one);
        supervisor.spawn("CONNECT port", self.clients.track_future(served));
    }

    pub(super) fn direct(&self) -> Direct {
        Direct::new(
            self.directory.clone(),
            &self.args.listen.direct,
            self.metrics.clone(),
        )
    }
}
