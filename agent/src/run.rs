//! The running agent: builds its parts and keeps them going until a signal.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use culvert_daemon::{Admin, Drain, Logs, Readiness, Supervisor, VERSION, raise_open_file_limit};
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;

use crate::admin;
use crate::certificates::{Certificates, Source};
use crate::config::Config;
use crate::metrics::{Metrics, RoundTrips};
use crate::outbound::Outbound;
use crate::proxy_address::ProxyAddress;
use crate::renewal::Renewal;
use crate::slot::{Shared, Slot};
use crate::tunnels::{SlotName, Tunnels};

/// Runs the agent.
///
/// # Errors
/// No usable certificate, a taken admin port, or settings that cannot be used. An unreachable proxy is none.
pub(crate) async fn run(config: Config, logs: Logs) -> Result<()> {
    let outbound = Arc::new(Outbound::from_environment(|name| std::env::var(name).ok())?);
    let proxies = proxies(&config)?;
    let certificates = Arc::new(Certificates::load(config.source)?);
    let readiness = Readiness::default();
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::register(&mut registry));
    let tunnels = Tunnels::new(readiness.gate("tunnel"));
    RoundTrips(tunnels.clone()).register(&mut registry);
    let renewal = Renewal {
        certificates: certificates.clone(),
        outbound: outbound.clone(),
        proxies: proxies.clone(),
        metrics: metrics.clone(),
        gate: readiness.gate("certificate"),
    };
    let admin = Admin::bind(config.admin_listen, readiness, registry, logs, admin::routes(tunnels.clone())).await?;
    let node = certificates.current().node.clone();
    tracing::info!(%node, version = VERSION, admin.addr = %admin.local_addr(), proxies = proxies.len(), "agent started");
    let shared = Arc::new(Shared {
        certificates,
        outbound,
        allow: Arc::new(config.allow),
        metrics,
        stream_window: config.stream_window,
        instance: format!("{:016x}", rand::random::<u64>()),
    });

    raise_open_file_limit();
    let mut supervisor = Supervisor::new(config.grace)?;
    let drain = supervisor.drain();
    supervisor.spawn_observer("admin", admin.serve());
    supervisor.spawn_observer("idle streams", tunnels.clone().watch_idle());
    supervisor.spawn("certificate", renewal.run(drain.clone()));
    supervisor.spawn("tunnels", keep_tunnels(slots(&proxies, config.tunnels, &shared, &tunnels), drain));
    supervisor.run().await
}

fn proxies(config: &Config) -> Result<Vec<ProxyAddress>> {
    match &config.source {
        Source::Joined { state, .. } if config.proxies.is_empty() => {
            let proxies = distinct(state.joined()?.proxies);
            ensure!(
                !proxies.is_empty(),
                "the join in {} names no proxy: give --proxy HOST:PORT",
                state.path().display()
            );
            Ok(proxies)
        }
        Source::Joined { .. } | Source::Ready(_) => Ok(distinct(config.proxies.clone())),
    }
}

/// Two equal slots would supersede each other at the proxy for ever.
fn distinct(mut proxies: Vec<ProxyAddress>) -> Vec<ProxyAddress> {
    let mut seen = std::collections::HashSet::new();
    proxies.retain(|proxy| seen.insert(proxy.clone()));
    proxies
}

fn slots(proxies: &[ProxyAddress], tunnels: u8, shared: &Arc<Shared>, all: &Tunnels) -> Vec<Slot> {
    let names = proxies.iter().flat_map(|proxy| (0..tunnels).map(|number| SlotName { proxy: proxy.clone(), number }));
    names.map(|name| Slot { place: all.place(name.clone()), name, shared: shared.clone() }).collect()
}

async fn keep_tunnels(slots: Vec<Slot>, drain: Drain) -> Result<()> {
    let mut tasks = JoinSet::new();
    for slot in slots {
        tasks.spawn(slot.run(drain.clone()));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a tunnel's task panicked")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_named_twice_gets_its_tunnels_once() {
        let named = ["p:1", "P:1", "[::1]:1", "q:1", "[0:0::1]:1"].map(|text| text.parse().unwrap());
        let distinct: Vec<_> = distinct(named.into()).iter().map(ToString::to_string).collect();
        assert_eq!(distinct, ["p:1", "[::1]:1", "q:1"]);
    }
}
