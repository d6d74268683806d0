//! The running hub: builds its parts and keeps them going until a signal.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_daemon::{
    Admin, Drain, Gate, Listeners, Logs, Readiness, Supervisor, VERSION, chain,
    raise_open_file_limit, report_to_systemd,
};
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::authority::{KUBELET_PORT, LocalAuthority};
use crate::budget::Budget;
use crate::config::Config;
use crate::copy::Copies;
use crate::endpoints::learn_servers;
use crate::event_sender::send_events;
use crate::filters::Filters;
use crate::guests::Guests;
use crate::hub::Hub;
use crate::identity::NodeCertificates;
use crate::limits::Limits;
use crate::memory::{DiskStatus, Memory, MemoryWriter, forget_while_up};
use crate::metrics::{Metrics, PREFIX};
use crate::refill::refill;
use crate::reviews::Reviews;
use crate::server::port::Port;
use crate::status::{self, Pages, Scraped};
use crate::turns::Turns;
use crate::upstream::cloud_identity::CloudIdentity;
use crate::upstream::watcher::watch_link;
use crate::upstream::{Credential, Upstream};

/// Runs the hub.
///
/// # Errors
/// A taken port, or a state directory that cannot be used. An unreachable API server is no error,
/// nor is a certificate that has expired or is missing.
pub(crate) async fn run(config: Config, logs: Logs) -> Result<()> {
    let mut registry = Registry::default();
    let Parts {
        hub,
        port,
        pod_ports,
        writer,
    } = Parts::open(&config, &mut registry).await?;
    let readiness = Readiness::default();
    let link = readiness.gate("link");
    let pages = Pages {
        hub: hub.clone(),
        disk: writer.status(),
    };
    let scraped = Box::new(Scraped(pages.clone()));
    registry
        .sub_registry_with_prefix(PREFIX)
        .register_collector(scraped);
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
    let mut supervisor = Supervisor::new(config.grace)?;
    let drain = supervisor.drain();
    supervisor.spawn_observer("admin", admin.serve());
    // A node boots without a link too.
    let systemd = report_to_systemd(readiness, &["link"], drain.clone());
    supervisor.spawn_observer("systemd", systemd);
    supervisor.spawn_observer("link status", report_link(hub.clone(), link));
    let disk = writer.status();
    supervisor.spawn_observer("disk status", report_disk(hub.clone(), disk));
    spawn_link_tasks(&mut supervisor, &hub);
    spawn_memory_tasks(&mut supervisor, &hub, writer, config.state.servers());
    for pods in pod_ports {
        supervisor.spawn("pod port", serve(pods, hub.clone(), drain.clone()));
    }
    supervisor.spawn("kubelet port", serve(port, hub, drain));
    supervisor.run().await
}

fn spawn_link_tasks(supervisor: &mut Supervisor, hub: &Arc<Hub>) {
    let drain = supervisor.drain();
    supervisor.spawn("link", watch_link(hub.upstream.clone(), drain.clone()));
    let certificate = hub.upstream.clone().follow_certificate(drain.clone());
    supervisor.spawn("certificate", certificate);
    let recovery = hub.upstream.clone().ask_failed_servers(drain);
    supervisor.spawn("servers", recovery);
}

/// `servers` is the file with the addresses that the cluster has named.
fn spawn_memory_tasks(
    supervisor: &mut Supervisor,
    hub: &Arc<Hub>,
    writer: MemoryWriter,
    servers: PathBuf,
) {
    let drain = supervisor.drain();
    let forgetting = forget_while_up(
        hub.memory.clone(),
        hub.upstream.link.subscribe(Credential::Node),
        drain.clone(),
    );
    supervisor.spawn("forgetting", forgetting);
    supervisor.spawn("disk", writer.run(drain.clone()));
    let learning = learn_servers(hub.clone(), servers, drain.clone());
    supervisor.spawn("endpoints", learning);
    supervisor.spawn("refill", refill(hub.clone(), drain.clone()));
    supervisor.spawn("events", send_events(hub.clone(), drain));
}

/// The hub before it serves.
pub(crate) struct Parts {
    pub(crate) hub: Arc<Hub>,
    pub(crate) port: Port,
    pub(crate) pod_ports: Vec<Port>,
    pub(crate) writer: MemoryWriter,
}

impl Parts {
    /// Reads the state directory and takes the ports.
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
        let upstream = Upstream::new(config, cloud.clone(), Box::new(memory.clone()))?;
        let upstream = Arc::new(upstream);
        let certificates = Arc::new(NodeCertificates::new(authority.certificate(), cloud)?);
        let serving = authority.serving(&KUBELET_PORT)?;
        let port = Port::bind_for_kubelet(config.listen, serving, certificates).await?;
        let pod_ports = bind_for_pods(config, &authority)?;
        let pod_addresses = pod_ports.iter().map(Port::local_addr);
        let metrics = Arc::new(Metrics::register(registry));
        let filters = Filters::new(
            pod_addresses.collect::<Result<_>>()?,
            authority.pem(),
            metrics.clone(),
        );
        let hub = Arc::new(Hub {
            upstream,
            memory,
            limits: Limits::default(),
            guests: Guests::default(),
            budget: Budget::default(),
            reviews: Reviews::default(),
            turns: Turns::default(),
            metrics,
            copies: Copies::default(),
            filters,
        });
        Ok(Self {
            hub,
            port,
            pod_ports,
            writer,
        })
    }
}

/// Binds the pod ports. One that cannot be bound is only a warning: kubelet's port must open all
/// the same.
fn bind_for_pods(config: &Config, authority: &LocalAuthority) -> Result<Vec<Port>> {
    let mut ports = Vec::new();
    for address in &config.pod_listen {
        match Port::bind_for_pods(*address, authority.serving(&[address.ip()])?) {
            Ok(port) => ports.push(port),
            Err(error) => {
                let error = chain(&*error);
                tracing::warn!(error, pods.addr = %address, "pods are not served here");
            }
        }
    }
    Ok(ports)
}

async fn serve(port: Port, hub: Arc<Hub>, drain: Drain) -> Result<()> {
    port.serve(hub, drain).await.context("serve a port")
}

/// Reports changes of the link to metrics, readiness and the log.
async fn report_link(hub: Arc<Hub>, gate: Gate) -> Result<()> {
    let mut link = hub.upstream.link.subscribe(Credential::Node);
    let mut others = hub.upstream.link.subscribe(Credential::Bearer);
    loop {
        let status = link.borrow_and_update().clone();
        hub.metrics.link_is(&status);
        hub.metrics.link_of_pods_is(&others.borrow_and_update());
        if status.is_up() {
            gate.open();
        } else {
            gate.close(status.reason);
            hub.memory.write_soon();
        }
        let changed = tokio::select! {
            changed = link.changed() => changed,
            changed = others.changed() => changed,
        };
        changed.context("the link is watched no more")?;
    }
}

/// Reports each write to the metrics.
async fn report_disk(hub: Arc<Hub>, mut disk: watch::Receiver<DiskStatus>) -> Result<()> {
    loop {
        hub.metrics.disk_is(&disk.borrow_and_update());
        disk.changed()
            .await
            .context("the disk is watched no more")?;
    }
}
