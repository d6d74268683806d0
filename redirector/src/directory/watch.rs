//! Follows the proxy's directory over its Unix socket.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use culvert_api::proto::directory::{Update, WatchRequest};
use culvert_daemon::Drain;
use tokio::sync::watch;

use super::Directory;
use super::connect::connect;
use super::reconnect::reconnect;
use super::update::UpdateError;

/// A snapshot of ten thousand nodes takes about 3 MB.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The latest directory, and whether it is current.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feed {
    /// The last directory, from the proxy or from disk.
    pub(crate) directory: Option<Arc<Directory>>,
    /// Why the directory may be out of date; `None` while the proxy streams it.
    pub(crate) stale: Option<String>,
}

impl Feed {
    /// Whether the proxy streams the directory right now.
    pub(crate) fn is_live(&self) -> bool {
        self.directory.is_some() && self.stale.is_none()
    }
}

/// The client of the proxy's `Directory` service.
pub(crate) struct Watch {
    socket: PathBuf,
    feed_tx: watch::Sender<Feed>,
}

impl Watch {
    /// Starts from `saved`, which is stale until the proxy sends its first update.
    pub(crate) fn new(socket: PathBuf, saved: Option<Directory>) -> (Self, watch::Receiver<Feed>) {
        let stale = Some(format!("waiting for the proxy at {}", socket.display()));
        let (feed_tx, feed_rx) = watch::channel(Feed {
            directory: saved.map(Arc::new),
            stale,
        });
        (Self { socket, feed_tx }, feed_rx)
    }

    /// Follows until the drain begins.
    pub(crate) async fn run(self, drain: Drain) -> Result<()> {
        let followed = reconnect(
            || self.follow(),
            |reason| {
                self.mark_stale(reason.unwrap_or("the proxy ended the stream".to_owned()));
            },
        );
        tokio::select! {
            () = drain.begun() => Ok(()),
            never = followed => match never {},
        }
    }

    fn mark_stale(&self, reason: String) {
        self.feed_tx.send_if_modified(|feed| {
            if feed.stale.as_ref() == Some(&reason) {
                return false;
            }
            tracing::warn!(reason, socket = %self.socket.display(), "directory may be out of date");
            feed.stale = Some(reason);
            true
        });
    }

    /// One stream, from connect to its end.
    async fn follow(&self) -> Result<()> {
        let client = connect(&self.socket).await?;
        let mut client = client.max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = WatchRequest {
            version: culvert_daemon::VERSION.to_owned(),
        };
        let mut updates = client
            .watch(request)
            .await
            .context("watch the proxy's directory")?
            .into_inner();
        // Deltas make no sense before a snapshot.
        let first = updates
            .message()
            .await
            .context("read the proxy's directory")?;
        match first {
            Some(update) if update.snapshot.is_some() => self.apply(update)?,
            _ => bail!("the proxy sent no snapshot"),
        }
        tracing::info!(socket = %self.socket.display(), "directory is current");
        while let Some(update) = updates
            .message()
            .await
            .context("read the proxy's directory")?
        {
            self.apply(update)?;
        }
        Ok(())
    }

    /// Updates in place; thousands of nodes are copied only while another task still reads the
    /// previous directory.
    fn apply(&self, update: Update) -> Result<(), UpdateError> {
        let mut applied = Ok(());
        self.feed_tx.send_if_modified(|feed| {
            applied = Arc::make_mut(feed.directory.get_or_insert_default()).update(update);
            if applied.is_ok() {
                feed.stale = None;
            }
            applied.is_ok()
        });
        applied
    }
}
