//! The port of agents.

use std::sync::Arc;

use anyhow::Result;
use culvert_api::proto::enroll::enroll_server::EnrollServer;
use culvert_daemon::{SocketUse, Supervisor};
use culvert_proxy_agents::admissions::Admissions;
use culvert_proxy_agents::enroll;
use culvert_proxy_agents::enroll::Enroll;
use culvert_proxy_agents::port::{Agents, Parts};
use culvert_proxy_agents::proxy_list::ProxyList;
use culvert_proxy_cluster::ServiceAccounts;
use culvert_proxy_peers::Peers;
use culvert_proxy_streams::limits::MAX_STREAMS_PER_AGENT;
use culvert_proxy_streams::sockets::listen::{self, Accepting};
use culvert_proxy_streams::sockets::proxy_protocol::Balancers;
use culvert_proxy_streams::sockets::strangers::{Clients, Strangers};
use culvert_tunnel::{Congestion, FarEnd, ProxyTunnel, STREAMS_IN_LIFE};
use socket2::Protocol;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::Proxy;

impl Proxy {
    pub(super) fn bind_agents(&self) -> Result<TcpListener> {
        let listen = &self.config.listen;
        let protocol = if listen.mptcp && culvert_tunnel::has_mptcp() {
            Protocol::MPTCP
        } else {
            Protocol::TCP
        };
        let agents = listen::bind_protocol(
            &self.listeners,
            listen.agent_listen,
            SocketUse::Agents,
            protocol,
        )?;
        if let Some(bytes) = listen.tunnel_tcp.tunnel_mss {
            culvert_tunnel::limit_segments(&agents, bytes);
        }
        Ok(agents)
    }

    pub(super) fn spawn_agents(
        &self,
        supervisor: &mut Supervisor,
        listener: TcpListener,
        peers: Option<Arc<Peers>>,
    ) {
        let drain = supervisor.drain();
        let listen = &self.config.listen;
        let Ok(congestion) = listen.tunnel_tcp.tunnel_congestion.parse::<Congestion>();
        let admissions = Admissions::default();
        supervisor.spawn(
            "tunnels' certificates",
            admissions.clone().run(self.trust.clone(), drain.clone()),
        );
        let proxies = ProxyList::new(
            self.own_info(),
            self.registry.clone(),
            self.departure.agents(),
        );
        supervisor.spawn("list of proxies", proxies.clone().run(drain.clone()));
        let agents = Agents::new(Parts {
            admissions,
            trust: self.trust.clone(),
            registry: self.registry.clone(),
            enroll: self.enroll_service(peers),
            tunnel: ProxyTunnel {
                far_end: FarEnd::Agent,
                stream_window: self.config.stream_window,
                max_streams: MAX_STREAMS_PER_AGENT,
                streams_in_life: STREAMS_IN_LIFE,
                budget: self.config.budget.clone(),
            },
            congestion: congestion.or_system(),
            metrics: self.metrics.clone(),
            strangers: Strangers::of(Clients::Agents, listen.max_handshakes),
            balancers: Balancers::new(&listen.proxy_protocol),
            instance: self.instance.clone(),
            proxies,
            drain: drain.clone(),
            streams: self.streams.clone(),
            clients: self.clients.clone(),
        });
        let accepting = Accepting::agents(drain, self.departure.agents());
        // Not for the tunnels' tasks to hold, which end with them.
        let workers = self.workers.clone();
        let served = listen::serve(
            listener,
            "agents",
            accepting,
            move |agent, connections: &TaskTracker| {
                agents.serve(&workers.next(), agent, connections)
            },
        );
        supervisor.spawn("agent port", served);
    }

    pub(super) fn enroll_service(&self, peers: Option<Arc<Peers>>) -> EnrollServer<Enroll> {
        let accounts = self.cluster.as_ref();
        let accounts = accounts.map(|joined| ServiceAccounts::new(joined.cluster.clone()));
        enroll::service(
            self.trust.clone(),
            self.tokens.clone(),
            accounts,
            self.metrics.clone(),
            peers,
        )
    }
}
