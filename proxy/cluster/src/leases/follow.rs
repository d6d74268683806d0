//! Follows the Leases of all proxies: those that are alive are published, those of hosts that are
//! gone for long are deleted.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Instant;

use culvert_daemon::{LogBudget, Problem};
use culvert_proxy_core::listed_peer::ListedPeer;
use culvert_proxy_core::metrics::{Metrics, ProxyCap};
use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch::Sender;

use super::OwnLease;
use super::record::LABEL;
use super::seen::{Listed, MAX_LISTED, SeenLeases};
use crate::WATCH_SECONDS;
use crate::follow::in_words;
use crate::request::ask;

pub(super) struct Follower {
    leases: Api<Lease>,
    seen: SeenLeases,
    listed_tx: Sender<BTreeSet<ListedPeer>>,
    metrics: Metrics,
    /// Whether the watch works.
    problem: Problem,
    /// Whether there are too many proxies.
    crowd: Problem,
    garbage: LogBudget,
}

impl Follower {
    pub(super) fn new(
        leases: Api<Lease>,
        own: Option<&OwnLease>,
        listed_tx: Sender<BTreeSet<ListedPeer>>,
        metrics: Metrics,
    ) -> Self {
        Self {
            leases,
            seen: SeenLeases::new(own),
            listed_tx,
            metrics,
            problem: Problem::default(),
            crowd: Problem::default(),
            garbage: LogBudget::default(),
        }
    }

    /// Follows them until it is dropped.
    pub(super) async fn follow(mut self) -> Infallible {
        let (key, value) = LABEL;
        let config = watcher::Config::default()
            .labels(&format!("{key}={value}"))
            .timeout(WATCH_SECONDS);
        let events = watcher::watcher(self.leases.clone(), config).default_backoff();
        let mut events = pin!(events);
        loop {
            match events.next().await {
                Some(Ok(event)) => {
                    self.problem.record(None);
                    self.apply(event);
                }
                Some(Err(error)) => self.lost(&error),
                None => return std::future::pending().await,
            }
            if let Some((name, version)) = self.seen.abandoned() {
                self.delete(&name, version).await;
            }
        }
    }

    fn apply(&mut self, event: watcher::Event<Lease>) {
        if let Some((lease, bad)) = self.seen.apply(event, Instant::now())
            && let Some(suppressed) = self.garbage.spend()
        {
            let reason = bad.to_string();
            tracing::warn!(
                lease,
                reason,
                suppressed,
                "Lease left out: it describes no proxy"
            );
        }
        if let Some(listed) = self.seen.listed() {
            self.publish(listed);
        }
    }

    fn lost(&mut self, error: &watcher::Error) {
        self.seen.lost();
        if let Some(reason) = self.problem.record(Some(in_words(error))) {
            tracing::warn!(
                reason,
                "Leases of the other proxies not readable, keeping what is known of them"
            );
        }
    }

    fn publish(&mut self, Listed { peers, left_out }: Listed) {
        self.metrics.capped_proxies(ProxyCap::Leases, left_out);
        let crowd = if left_out > 0 {
            Some(format!("more than {MAX_LISTED} other proxies"))
        } else {
            None
        };
        if let Some(reason) = self.crowd.record(crowd) {
            tracing::warn!(
                reason,
                left_out,
                "this proxy knows only a part of the others"
            );
        }
        self.listed_tx.send_if_modified(|known| {
            if *known == peers {
                return false;
            }
            report(known, &peers);
            *known = peers;
            true
        });
    }

    async fn delete(&self, name: &str, version: Preconditions) {
        let params = DeleteParams::default().preconditions(version);
        match ask(self.leases.delete(name, &params)).await {
            Ok(_) => tracing::info!(
                lease = name,
                "Lease deleted: its proxy has not renewed it for a day"
            ),
            Err(error) => {
                let reason = culvert_daemon::chain(&error);
                tracing::debug!(lease = name, reason, "Lease of a host that is gone stays");
            }
        }
    }
}

/// Logs which proxies are new and which are gone. Their tunnels do not matter here.
fn report(known: &BTreeSet<ListedPeer>, now: &BTreeSet<ListedPeer>) {
    for peer in now {
        if !has(known, peer) {
            tracing::info!(peer = %peer.instance, peer.addr = %peer.address, "proxy listed");
        }
    }
    for peer in known {
        if !has(now, peer) {
            tracing::info!(peer = %peer.instance, peer.addr = %peer.address, "proxy no longer listed");
        }
    }
}

fn has(peers: &BTreeSet<ListedPeer>, one: &ListedPeer) -> bool {
    peers
        .iter()
        .any(|peer| peer.instance == one.instance && peer.address == one.address)
}
