//! Builds the daemon's parts and runs them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::{Admin, Drain, Logs, Readiness, Supervisor, report_to_systemd};
use tokio::sync::watch;

use crate::config::Config;
use crate::directory::{Directory, Feed, Saved, Watch};
use crate::dns;
use crate::mechanisms::bpf::Pins;
use crate::mechanisms::nft;
use crate::mechanisms::vip_routes::Routes;
use crate::metrics::Metrics;
use crate::operators::debug;
use crate::operators::installed;
use crate::steering::Alone;
use crate::steering::Steering;

/// No connection passes through this process; its tasks end at once.
const GRACE: Duration = Duration::from_secs(5);
/// After a directory could not be saved, as on a full disk.
const SAVE_AGAIN: Duration = Duration::from_secs(5);

/// Runs until a signal or a failure. What is installed on the host stays.
pub(crate) async fn run(config: Config, logs: Logs) -> Result<()> {
    let alone = Alone::take(&config.state_dir, &config.bpffs)?;
    let readiness = Readiness::default();
    let metrics = Metrics::default();
    let pins = Pins::new(&config.bpffs);
    let saved = Saved::new(&config.state_dir);
    let (watch, feed) = Watch::new(config.directory_socket.clone(), load(&saved));
    let mut supervisor = Supervisor::new(GRACE)?;
    let drain = supervisor.drain();

    let steering = Steering::install(
        config.clone(),
        alone,
        feed.clone(),
        &readiness,
        metrics.steering.clone(),
    )
    .await?;
    let (node_tx, node) = watch::channel(config.intercept.node);
    let dns_gate = readiness.gate("dns");
    match config.dns.clone() {
        Some(dns) => {
            let sources = dns::Sources {
                node: node.clone(),
                feed: feed.clone(),
                metrics: metrics.dns.clone(),
            };
            supervisor.spawn("dns", dns::serve(dns, sources, dns_gate, drain.clone()));
        }
        None => dns_gate.open(),
    }
    let installed = installed::route(config.clone(), node, feed.clone(), steering.in_force());
    let routes = debug::routes(pins.clone(), feed.clone()).merge(installed);
    let admin = Admin::bind(
        &config.admin,
        readiness.clone(),
        metrics.registry(pins),
        logs,
        routes,
    )
    .await?;

    supervisor.spawn_observer("admin", admin.serve());
    // A start does not wait for the proxy: what was saved is installed.
    supervisor.spawn_observer(
        "systemd",
        report_to_systemd(readiness, &["directory"], drain.clone()),
    );
    supervisor.spawn("steering", steering.run(node_tx, drain.clone()));
    supervisor.spawn("directory", watch.run(drain.clone()));
    supervisor.spawn("saved directory", keep_saved(saved, feed, drain));
    supervisor.run().await
}

/// The saved directory. A broken one is reported and does without: the proxy sends another.
fn load(saved: &Saved) -> Option<Directory> {
    match saved.load() {
        Ok(directory) => directory,
        Err(error) => {
            tracing::error!(
                reason = culvert_daemon::chain(&error),
                "saved directory ignored"
            );
            None
        }
    }
}

/// Writes each directory that the proxy sends to disk, unless it only says who is online.
async fn keep_saved(saved: Saved, mut feed: watch::Receiver<Feed>, drain: Drain) -> Result<()> {
    let mut on_disk: Option<Arc<Directory>> = None;
    loop {
        let live = Some(feed.borrow_and_update().clone()).filter(Feed::is_live);
        let new = live.and_then(|feed| feed.directory);
        let new = new.filter(|new| on_disk.as_ref().is_none_or(|old| !old.steers_like(new)));
        let mut failed = false;
        if let Some(new) = new {
            // Waits for the disk.
            match tokio::task::block_in_place(|| saved.save(&new)) {
                Ok(()) => on_disk = Some(new),
                Err(error) => {
                    tracing::error!(
                        reason = culvert_daemon::chain(&error),
                        "directory not saved"
                    );
                    failed = true;
                }
            }
        }
        tokio::select! {
            // First: the directory's task may end first.
            biased;
            () = drain.begun() => return Ok(()),
            changed = feed.changed() => changed.context("the directory's task has ended")?,
            () = tokio::time::sleep(SAVE_AGAIN), if failed => {}
        }
    }
}

/// Removes everything from the host: what steers first.
pub(crate) async fn uninstall(bpffs: &Path, state_dir: &Path) -> Result<String> {
    let _alone = Alone::take_existing(state_dir, bpffs)?;
    let mut lines = Vec::new();
    for pin in Pins::new(bpffs).remove()? {
        lines.push(format!("removed pin {}\n", pin.display()));
    }
    if nft::remove().await? {
        lines.push("removed table inet culvert\n".to_owned());
    }
    for route in Routes::open()?.remove().await? {
        lines.push(format!("removed route {}\n", route.net));
    }
    Saved::new(state_dir).remove()?;
    if lines.is_empty() {
        lines.push("nothing was installed\n".to_owned());
    }
    Ok(lines.concat())
}
