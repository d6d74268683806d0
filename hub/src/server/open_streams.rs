//! The open streams of an HTTP/2 connection. One without any for a time is of no use to its client,
//! and has a place that another could have.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Counts open streams. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenStreams(Arc<watch::Sender<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    open: usize,
    /// Since the connection's start: a short one may have come and gone unseen.
    opened: u64,
}

/// A stream; it counts until it is dropped.
#[derive(Debug)]
pub(super) struct OpenStream(OpenStreams);

impl OpenStreams {
    pub(super) fn enter(&self) -> OpenStream {
        self.0.send_modify(|counts| {
            counts.open += 1;
            counts.opened += 1;
        });
        OpenStream(self.clone())
    }

    /// Returns once there has been no stream for so long.
    pub(super) async fn none_for(&self, time: Duration) {
        let mut counts = self.0.subscribe();
        loop {
            let opened = match counts.wait_for(|counts| counts.open == 0).await {
                Ok(counts) => counts.opened,
                // The sender lives as long as `self`.
                Err(_) => return,
            };
            let used = counts.wait_for(|counts| counts.opened != opened);
            if timeout(time, used).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.send_modify(|counts| counts.open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_a_connection_without_a_stream_is_idle() {
        let open = OpenStreams::default();
        let streams = [open.enter(), open.enter()];
        let mut idle = Box::pin(open.none_for(Duration::ZERO));
        assert!(idle.as_mut().now_or_never().is_none());
        let [one, other] = streams;
        drop(one);
        assert!(idle.as_mut().now_or_never().is_none());
        drop(other);
        idle.await;
    }
}
