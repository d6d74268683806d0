//! Follows the DaemonSet of redirectors, so that they can remove what they installed when it is
//! deleted.

use anyhow::Result;
use culvert_daemon::Drain;
use culvert_proxy_core::daemon_set::DaemonSetStatus;
use futures_util::StreamExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use tokio::sync::watch;

use super::Cluster;
use super::follow::follow_object;

/// The name of the DaemonSet in the manifests and in the chart.
const REDIRECTORS: &str = "culvert-redirector";

impl Cluster {
    /// Keeps `status_tx` equal to the state of the DaemonSet until the drain begins.
    pub(crate) async fn follow_daemon_set(
        self,
        status_tx: watch::Sender<DaemonSetStatus>,
        drain: Drain,
    ) -> Result<()> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut changes = std::pin::pin!(follow_object(api, REDIRECTORS, report));
        loop {
            let found = tokio::select! {
                found = changes.next() => found,
                () = drain.begun() => return Ok(()),
            };
            let Some(found) = found else {
                anyhow::bail!("the watch of DaemonSet {REDIRECTORS} has ended")
            };
            let before = *status_tx.borrow();
            let status = match found {
                Some(found) if found.metadata.deletion_timestamp.is_none() => {
                    DaemonSetStatus::Exists
                }
                None if before == DaemonSetStatus::NotSeen => before,
                _ => DaemonSetStatus::Deleted,
            };
            if status_tx.send_replace(status) != status {
                tracing::info!(
                    daemon_set = REDIRECTORS,
                    ?status,
                    "DaemonSet of redirectors"
                );
            }
        }
    }
}

fn report(reason: &str) {
    tracing::warn!(
        daemon_set = REDIRECTORS,
        reason,
        "not known whether the redirectors are being uninstalled"
    );
}
