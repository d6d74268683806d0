//! What operators see and ask for: the admin server, the control socket and the directory socket.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use culvert_daemon::{Admin, AdminListen, AdminPages, Idle, Logs, Readiness, Supervisor};
use culvert_proxy_core::reported::Claims;
use culvert_proxy_operators::control::{self, Control};
use culvert_proxy_operators::dashboard::Dashboard;
use culvert_proxy_operators::debug;
use culvert_proxy_operators::directory_socket;
use culvert_proxy_operators::explain::Explainer;
use culvert_proxy_operators::scraped::Scraped;
use culvert_proxy_operators::stream_list::StreamList;
use culvert_proxy_peers::{Peers, PrimaryClient};
use culvert_proxy_streams::moves::Mover;
use culvert_proxy_streams::sockets::local_socket::LocalSocket;
use prometheus_client::registry::Registry as MetricsRegistry;

use super::Proxy;
use super::view::ViewSockets;

pub(super) struct OperatorSockets {
    pub(super) control: LocalSocket,
    pub(super) directory: LocalSocket,
    pub(super) view: ViewSockets,
}

impl Proxy {
    pub(super) fn spawn_stream_list(&self, supervisor: &mut Supervisor) -> StreamList {
        let idle = Idle::default();
        let streams = self.streams.clone();
        let looking = idle.clone().run(move || streams.counts());
        supervisor.spawn_observer("idle streams", looking);
        StreamList::new(self.streams.clone(), idle)
    }

    fn admin_pages(
        &self,
        supervisor: &mut Supervisor,
        readiness: &Readiness,
        streams: StreamList,
    ) -> AdminPages {
        let control = self.control(None, streams.clone());
        let dashboard = Dashboard::new(control, readiness.clone(), self.metrics.clone());
        let debug = debug::routes(
            self.claims(),
            self.directory.clone(),
            self.registry.clone(),
            streams,
        );
        let tasks = debug::tasks(
            self.workers.runtimes(),
            supervisor.running(),
            self.registry.clone(),
            self.streams.clone(),
        );
        let pages = dashboard.pages().merge(debug).merge(tasks);
        supervisor.spawn_observer("dashboard", dashboard.forget_unwatched());
        pages
    }

    pub(super) fn admin(
        &self,
        supervisor: &mut Supervisor,
        readiness: &Readiness,
        logs: Logs,
        socket: PathBuf,
        streams: StreamList,
    ) -> Result<Admin> {
        let mut metrics = MetricsRegistry::default();
        let scraped = Scraped {
            directory: self.directory.clone(),
            registry: self.registry.clone(),
            budget: self.config.budget.clone(),
        };
        self.metrics.register(&mut metrics, scraped);
        self.workers
            .register(metrics.sub_registry_with_prefix("culvert_proxy"));
        let listen = AdminListen {
            program: "culvert-proxy",
            address: self.config.listen.admin.admin_listen,
            metrics: self.config.listen.admin.metrics_listen,
            socket,
        };
        Admin::bind(
            &listen,
            &self.listeners,
            readiness.clone(),
            metrics,
            logs,
            self.admin_pages(supervisor, readiness, streams),
        )
    }

    fn claims(&self) -> Claims {
        Claims {
            edge_ranges: self.config.directory.edge_range.clone(),
            annotations: self.config.kubernetes.trust_node_annotations,
            labels_of_kubelets: self.config.kubernetes.labels_of_kubelets(),
        }
    }

    pub(super) fn spawn_admin(&self, supervisor: &mut Supervisor, admin: Admin) {
        let served = self.departure.clone().until_succeeded(admin.serve());
        supervisor.spawn_observer("admin server", served);
    }

    pub(super) fn control(&self, primary: Option<PrimaryClient>, streams: StreamList) -> Control {
        Control {
            directory: self.directory.clone(),
            editor: self.editor.clone(),
            trust: self.trust.clone(),
            tokens: self.tokens.clone(),
            registry: self.registry.clone(),
            own: self.own_info(),
            advertised: self.advertised.clone(),
            explainer: Explainer::new(
                self.directory.clone(),
                self.registry.clone(),
                self.router.clone(),
            )
            .with_direct(self.direct())
            .with_streams(streams.clone()),
            streams,
            primary,
        }
    }

    pub(super) fn spawn_operators(
        &self,
        supervisor: &mut Supervisor,
        sockets: OperatorSockets,
        peers: Option<&Arc<Peers>>,
        streams: StreamList,
    ) {
        let warning = self.registry.clone().warn_of_misplaced();
        supervisor.spawn_observer("misplaced agents", warning);
        let own = self.instance.clone();
        let mover = Mover::new(self.registry.clone(), own, self.metrics.clone());
        supervisor.spawn_observer("heavy streams", mover.run());
        let control = self.control(Self::primary_client(peers), streams);
        self.spawn_view(supervisor, sockets.view, control.clone());
        supervisor.spawn(
            "control socket",
            control::serve(sockets.control, control, supervisor.drain()),
        );
        supervisor.spawn(
            "directory socket",
            directory_socket::serve(
                sockets.directory,
                self.directory.clone(),
                self.daemon_set_tx.subscribe(),
                supervisor.drain(),
            ),
        );
    }
}
