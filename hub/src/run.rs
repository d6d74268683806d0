//! The running hub: builds its parts and keeps them going until a signal.

use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_daemon::{
    Admin, Drain, Gate, Listeners, Logs, Readiness, Supervisor, VERSION, chain,
    raise_open_file_limit, report_to_systemd, use_small_pages,
};
use prometheus_client::registry::Registry;

use crate::answers::copy::Copies;
use crate::authority::LocalAuthority;
use crate::config::Config;
use crate::memory::{Memory, MemoryWriter};
use crate::metrics::Metrics;
use crate::server::Hub;
use crate::server::identity::NodeCertificates;
use crate::server::limits::Limits;
use crate::server::node_port::NodePort;
use crate::status::{self, Pages};
use crate::upstream::Upstream;
use crate::upstream::cloud_identity::CloudIdentity;
use crate::upstream::watcher::watch_link;

/// Runs the hub.
///
/// # Errors
/// A taken port, or a state directory that cannot be used. An unreachable API server is none, nor
/// is a certificate that has expired or is missing.
pub(crate) async fn run(config: Config, logs: Logs) -> Result<()> {
    let mut registry = Registry::default();
    let Parts { hub, port, writer } = Parts::open(&config, &mut registry).await?;
    let readiness = Readiness::default();
    let link = readiness.gate("link");
    let pages = Pages {
        hub: hub.clone(),
        disk: writer.status(),
    };
    let admin = Admin::bind(
        &config.admin,
        &Listeners::default(),
        readiness.clone(),
        registry,
        logs,
        status::routes(pages),
    )?;
    let node_addr = port.local_addr()?;
    let admin_addr = admin.local_addr();
    tracing::info!(version = VERSION, node.addr = %node_addr, admin.addr = %admin_addr, "hub started");

    raise_open_file_limit();
    use_small_pages();
    let mut supervisor = Supervisor::new(config.grace)?;
    let drain = supervisor.drain();
    supervisor.spawn_observer("admin", admin.serve());
    // A node boots without a link too.
    let systemd = report_to_systemd(readiness, &["link"], drain.clone());
    supervisor.spawn_observer("systemd", systemd);
    supervisor.spawn_observer("link status", tell_link(hub.clone(), link));
    supervisor.spawn("link", watch_link(hub.upstream.clone(), drain.clone()));
    let certificate = hub.upstream.clone().follow_certificate(drain.clone());
    supervisor.spawn("certificate", certificate);
    supervisor.spawn("disk", writer.run(drain.clone()));
    supervisor.spawn("node port", serve(port, hub, drain));
    supervisor.run().await
}

/// The hub before it serves.
pub(crate) struct Parts {
    pub(crate) hub: Arc<Hub>,
    pub(crate) port: NodePort,
    pub(crate) writer: MemoryWriter,
}

impl Parts {
    /// Reads the state directory and takes the node port.
    pub(crate) async fn open(config: &Config, registry: &mut Registry) -> Result<Self> {
        let authority = LocalAuthority::open(&config.state)?;
        let (memory, writer) = Memory::open(&config.state);
        let cloud = CloudIdentity::new(&config.cloud, authority.certificate().clone());
        let cloud = Arc::new(cloud);
        if let Err(error) = cloud.reload() {
            tracing::warn!(
                error = chain(&error),
                "the node has no certificate for the API server"
            );
        }
        let upstream = Arc::new(Upstream::new(config, cloud.clone())?);
        let certificates = Arc::new(NodeCertificates::new(authority.certificate(), cloud)?);
        let port = NodePort::bind(config.listen, authority.serving()?, certificates).await?;
        let hub = Arc::new(Hub {
            upstream,
            memory,
            limits: Limits::default(),
            metrics: Arc::new(Metrics::register(registry)),
            copies: Copies::default(),
        });
        Ok(Self { hub, port, writer })
    }
}

async fn serve(port: NodePort, hub: Arc<Hub>, drain: Drain) -> Result<()> {
    port.serve(hub, drain).await.context("serve the node port")
}

/// Tells the rest of the program when the link changes.
async fn tell_link(hub: Arc<Hub>, gate: Gate) -> Result<()> {
    let mut link = hub.upstream.link.subscribe();
    loop {
        let status = link.borrow_and_update().clone();
        hub.metrics.link_is(status.is_up());
        if status.is_up() {
            gate.open();
        } else {
            gate.close(status.reason);
            hub.memory.write_soon();
        }
        link.changed()
            .await
            .context("the link is watched no more")?;
    }
}
