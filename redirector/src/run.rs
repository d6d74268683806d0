//! Builds the daemon's parts and runs them.

use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{
    Admin, Drain, Listeners, LocalSocket, Logs, Readiness, RunningTasks, Runtimes, SocketAccess,
    Supervisor, TaskCounts, report_to_systemd, tasks_page,
};
use tokio::sync::watch;

use crate::config::{Config, NodeIps};
use crate::directory::{DaemonSetStatus, DaemonSetWatch, Feed, SavedDirectory, Watch};
use crate::dns;
use crate::held_sockets;
use crate::mechanisms::bpf::{self, Pins};
use crate::metrics::Metrics;
use crate::operators::uninstall::uninstall;
use crate::operators::{debug, explain, installed};
use crate::steering::{InstanceLock, Steering};

/// No connection passes through this process, so its tasks end at once, unless it keeps the sockets
/// of clients for the next proxy.
const GRACE: Duration = Duration::from_secs(held_sockets::KEEP.as_secs() + 2);

/// Runs until a signal or a failure. What is installed on the host stays, unless the cluster has
/// deleted the redirectors.
pub(crate) async fn run(config: Config, logs: Logs) -> Result<()> {
    let (daemon_set_watch, daemon_set) = DaemonSetWatch::new(config.directory_socket.clone());
    let bpffs = config.bpffs.clone();
    let state_dir = config.state_dir.clone();
    let lock = InstanceLock::acquire(&config.state_dir, &config.bpffs)?;
    let saved = SavedDirectory::new(&config.state_dir);
    let (watch, feed) = Watch::new(config.directory_socket.clone(), saved.load_or_report());
    let (node_tx, node) = watch::channel(config.intercept.node);
    let daemon = Daemon {
        config,
        readiness: Readiness::default(),
        metrics: Metrics::default(),
        feed,
        node,
    };
    let mut supervisor = Supervisor::new(GRACE)?;
    let drain = supervisor.drain();

    let steering = daemon.install(lock).await?;
    daemon.start_dns(&mut supervisor, drain.clone());
    let admin = daemon.admin(logs, &steering, supervisor.running())?;

    daemon.serve_handover(&mut supervisor, drain.clone());
    supervisor.spawn_observer("admin", admin.serve());
    // systemd does not wait for the proxy: the saved directory is installed already.
    supervisor.spawn_observer(
        "systemd",
        report_to_systemd(daemon.readiness, &["directory"], drain.clone()),
    );
    supervisor.spawn("steering", steering.run(node_tx, drain.clone()));
    supervisor.spawn("directory", watch.run(drain.clone()));
    if daemon.config.uninstall_with_daemon_set {
        supervisor.spawn("DaemonSet", daemon_set_watch.run(drain.clone()));
    }
    supervisor.spawn("saved directory", saved.follow(daemon.feed, drain));
    let ended = supervisor.run().await;
    if *daemon_set.borrow() == DaemonSetStatus::Deleted {
        match uninstall(&bpffs, &state_dir).await {
            Ok(removed) => {
                tracing::info!(removed, "the DaemonSet was deleted: everything is removed");
            }
            Err(error) => return ended.and(Err(error)),
        }
    }
    ended
}

/// What the parts of the daemon share.
struct Daemon {
    config: Config,
    readiness: Readiness,
    metrics: Metrics,
    feed: watch::Receiver<Feed>,
    node: watch::Receiver<NodeIps>,
}

impl Daemon {
    async fn install(&self, lock: InstanceLock) -> Result<Steering> {
        Steering::install(
            self.config.clone(),
            lock,
            self.feed.clone(),
            &self.readiness,
            self.metrics.steering.clone(),
        )
        .await
    }

    fn start_dns(&self, supervisor: &mut Supervisor, drain: Drain) {
        let gate = self.readiness.gate("dns");
        let Some(config) = self.config.dns.clone() else {
            gate.open();
            return;
        };
        let sources = dns::Sources {
            node: self.node.clone(),
            feed: self.feed.clone(),
            metrics: self.metrics.dns.clone(),
        };
        supervisor.spawn("dns", dns::serve(config, sources, gate, drain));
    }

    /// Without its socket the redirector works, and clients are refused between two proxies.
    fn serve_handover(&self, supervisor: &mut Supervisor, drain: Drain) {
        match LocalSocket::bind(&self.config.handover_socket, SocketAccess::Owner) {
            Ok(socket) => {
                supervisor.spawn(
                    "sockets between proxies",
                    held_sockets::serve(socket, drain),
                );
            }
            Err(error) => tracing::warn!(
                reason = format!("{error:#}"),
                "no sockets are kept between two proxies; --handover-socket names another path"
            ),
        }
    }

    fn admin(&self, logs: Logs, steering: &Steering, running: RunningTasks) -> Result<Admin> {
        let config = &self.config;
        let pins = Pins::new(&config.bpffs);
        let installed = installed::route(
            config.clone(),
            self.node.clone(),
            self.feed.clone(),
            steering,
        );
        let explained = explain::route(explain::Sources {
            bpffs: config.bpffs.clone(),
            state_dir: config.state_dir.clone(),
            zone: config.zone.clone(),
            steered_networks: config.steered_networks.clone(),
        });
        let routes = debug::routes(pins.clone(), self.feed.clone())
            .merge(installed)
            .merge(explained)
            .merge(tasks_page(Runtimes::main(), running, TaskCounts::new));
        let mut registry = self.metrics.registry();
        bpf::register_metrics(&mut registry, pins);
        Admin::bind(
            &config.admin,
            &Listeners::default(),
            self.readiness.clone(),
            registry,
            logs,
            routes,
        )
    }
}
