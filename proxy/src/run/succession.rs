//! How this proxy takes over from its predecessor on this host, and hands over to its successor.

use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{Gate, Listeners, LocalSocket, Readiness, SocketUse, Supervisor};
use culvert_proxy_core::state::StateDir;
use culvert_proxy_streams::sockets::listen::AgentTarget;
use culvert_proxy_streams::sockets::local_socket::Access;
use tokio::time::{sleep, timeout};

use super::Proxy;
use crate::config::Config;
use crate::handover::{Giver, LastCall, Takeover};

/// The socket on which a successor asks, in the state directory: a successor
/// has the same one.
const SOCKET: &str = "handover.sock";

/// The pause between two attempts to bind it.
const BIND_PAUSE: Duration = Duration::from_secs(30);

/// The time that a start waits for the first agent, if there are nodes. Agents try again every few
/// seconds.
const FIRST_TUNNEL: Duration = Duration::from_secs(10);

/// Asks the proxy that runs on this host, and the redirector, for listening sockets.
pub(super) async fn ask_others(config: &Config) -> Takeover {
    let redirector = &config.listen.redirector_handover_socket;
    Takeover::ask(&config.state_dir.join(SOCKET), redirector).await
}

impl Proxy {
    /// The socket on which a successor asks. Where it cannot be made, as on a full disk, the proxy
    /// serves without it.
    pub(super) fn bind_handover(&self) -> Option<LocalSocket> {
        match bind(&self.listeners, &self.state) {
            Ok(socket) => Some(socket),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "no other proxy can take this one's place yet");
                None
            }
        }
    }

    /// A proxy with nodes is ready when the first agent is back, or when none comes.
    pub(super) fn spawn_first_tunnel(&self, supervisor: &mut Supervisor, readiness: &Readiness) {
        if self.directory.nodes().is_empty() {
            return;
        }
        let gate = readiness.gate("tunnels");
        let registry = self.registry.clone();
        gate.close("no agent is back yet");
        supervisor.spawn_observer("first tunnel", async move {
            if timeout(FIRST_TUNNEL, registry.has_any()).await.is_err() {
                tracing::info!("ready without a tunnel: no agent came back");
            }
            gate.open();
            std::future::pending().await
        });
    }

    fn last_call(&self) -> LastCall {
        LastCall {
            listeners: self.listeners.clone(),
            streams: self.streams.clone(),
            registry: self.registry.clone(),
            grace: self.config.grace,
            redirector: self.config.listen.redirector_handover_socket.clone(),
        }
    }

    /// Waits for a successor, and prepares the end of this proxy.
    pub(super) fn spawn_departure(
        &self,
        supervisor: &mut Supervisor,
        listening: Gate,
        handover: Option<LocalSocket>,
    ) {
        self.report_serving();
        let drain = supervisor.drain();
        let listeners = self.listeners.clone();
        let departure = self.departure.clone();
        let giver = Giver {
            listeners: listeners.clone(),
            state: self.state.clone(),
            trust: self.trust.clone(),
            registry: self.registry.clone(),
            departure: departure.clone(),
            drain: drain.clone(),
        };
        let bound_later = bind_later(listeners.clone(), self.state.clone());
        supervisor.spawn_observer("hand-over", async move {
            let socket = match handover {
                Some(socket) => socket,
                None => bound_later.await,
            };
            giver.serve(socket).await
        });
        supervisor.depart_by(departure.clone().last_call(self.last_call()));
        if self.config.kubernetes.kubernetes {
            supervisor.afterwards(departure.clone().successor_ended());
        }
        supervisor.spawn_observer("departure", async move {
            drain.leaving().await;
            listening.close("the proxy drains: it is about to end");
            departure.send_agents(AgentTarget::Others);
            listeners.release(&[SocketUse::Agents]);
            drain.begun().await;
            listeners.release(&[SocketUse::Clients, SocketUse::Programs]);
            std::future::pending().await
        });
    }
}

fn bind(listeners: &Listeners, state: &StateDir) -> Result<LocalSocket> {
    listeners.local(&state.join(SOCKET), Access::Owner, SocketUse::Admin)
}

async fn bind_later(listeners: Listeners, state: StateDir) -> LocalSocket {
    loop {
        sleep(BIND_PAUSE).await;
        if let Ok(socket) = bind(&listeners, &state) {
            return socket;
        }
    }
}
