//! Follows the nodes that a label selector selects. The API server does the selection, so the proxy
//! keeps no labels.

use std::collections::BTreeSet;

use culvert_api::NodeName;
use culvert_daemon::Problem;
use culvert_proxy_core::selector::NodeSelector;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;

use super::follow::in_words;
use super::{Cluster, WATCH_SECONDS};

impl Cluster {
    /// The names of the nodes that `selector` selects, and the future that follows them. It ends
    /// when the receiver is dropped. While the API server does not answer, the names stay.
    pub fn selected(
        &self,
        selector: &NodeSelector,
    ) -> (
        watch::Receiver<BTreeSet<NodeName>>,
        impl Future<Output = ()> + Send + use<>,
    ) {
        let (names_tx, names_rx) = watch::channel(BTreeSet::new());
        let nodes = Api::all(self.client.clone());
        (names_rx, follow(nodes, selector.to_string(), names_tx))
    }
}

async fn follow(
    nodes: Api<PartialObjectMeta<Node>>,
    selector: String,
    names_tx: watch::Sender<BTreeSet<NodeName>>,
) {
    let config = watcher::Config::default()
        .labels(&selector)
        .timeout(WATCH_SECONDS);
    let mut events = std::pin::pin!(watcher::watcher(nodes, config).default_backoff());
    let mut problem = Problem::default();
    let mut listed = BTreeSet::new();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = names_tx.closed() => return,
        };
        let Some(event) = event else { return };
        if event.is_ok() {
            problem.record(None);
        }
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(node)) => listed.extend(name(&node)),
            Ok(Event::InitDone) => {
                names_tx.send_replace(std::mem::take(&mut listed));
            }
            Ok(Event::Apply(node)) => names_tx.send_modify(|names| names.extend(name(&node))),
            Ok(Event::Delete(node)) => names_tx.send_modify(|names| {
                if let Some(name) = name(&node) {
                    names.remove(&name);
                }
            }),
            Err(error) => {
                if let Some(reason) = problem.record(Some(in_words(&error))) {
                    tracing::warn!(
                        selector,
                        reason,
                        "nodes not readable, keeping those selected last"
                    );
                }
            }
        }
    }
}

/// `None`: no node of the directory can have this name.
fn name(node: &PartialObjectMeta<Node>) -> Option<NodeName> {
    node.metadata.name.as_deref()?.parse().ok()
}
