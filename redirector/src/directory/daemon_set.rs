//! Asks the proxy whether the DaemonSet of redirectors has been deleted.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_api::proto::directory as proto;
use culvert_daemon::{Drain, Problem};
use tokio::sync::watch;
use tonic::Streaming;

use super::connect::connect;
use super::reconnect::reconnect;

/// The time limit for the last answer, while the redirector ends.
const LAST_ANSWER: Duration = Duration::from_secs(2);

/// Whether the DaemonSet has been deleted, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DaemonSetStatus {
    #[default]
    NotDeleted,
    Deleted,
}

/// The client of `WatchDaemonSet`.
pub(crate) struct DaemonSetWatch {
    socket: PathBuf,
    status_tx: watch::Sender<DaemonSetStatus>,
}

impl DaemonSetWatch {
    pub(crate) fn new(socket: PathBuf) -> (Self, watch::Receiver<DaemonSetStatus>) {
        let (status_tx, status) = watch::channel(DaemonSetStatus::default());
        (Self { socket, status_tx }, status)
    }

    /// Follows until the drain begins, and asks once more then. What was heard last stays when the
    /// proxy ends: it often ends with the same deletion.
    pub(crate) async fn run(self, drain: Drain) -> Result<()> {
        let mut problem = Problem::default();
        let followed = reconnect(
            || self.follow(),
            |reason| {
                if let Some(reason) = problem.record(reason) {
                    tracing::info!(
                        reason,
                        "the proxy does not say whether the DaemonSet is deleted"
                    );
                }
            },
        );
        tokio::select! {
            () = drain.begun() => {}
            never = followed => match never {},
        }
        // Without an answer the last one counts.
        if let Ok(Ok(Some(status))) = tokio::time::timeout(LAST_ANSWER, self.ask()).await {
            self.record(status);
        }
        Ok(())
    }

    /// One stream, from connect to its end.
    async fn follow(&self) -> Result<()> {
        let mut statuses = self.statuses().await?;
        while let Some(status) = statuses.message().await.context("read its status")? {
            self.record(status);
        }
        Ok(())
    }

    /// The status right now.
    async fn ask(&self) -> Result<Option<proto::DaemonSetStatus>> {
        Ok(self.statuses().await?.message().await?)
    }

    async fn statuses(&self) -> Result<Streaming<proto::DaemonSetStatus>> {
        let mut client = connect(&self.socket).await?;
        let answer = client.watch_daemon_set(proto::WatchDaemonSetRequest {});
        let answer = answer.await.context("ask for the DaemonSet")?;
        Ok(answer.into_inner())
    }

    fn record(&self, status: proto::DaemonSetStatus) {
        let status = if status.deleted {
            DaemonSetStatus::Deleted
        } else {
            DaemonSetStatus::NotDeleted
        };
        if self.status_tx.send_replace(status) != status {
            tracing::warn!(?status, "DaemonSet of redirectors");
        }
    }
}
