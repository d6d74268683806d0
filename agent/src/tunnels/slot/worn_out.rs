//! A slot's earlier tunnels: each takes new streams until the next one is up, then ends with its
//! streams.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_daemon::Drain;
use culvert_tunnel::TunnelError;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// How long a worn-out tunnel still takes new streams once the next one is up: longer than the
/// proxy takes to see that, and longer than a proxy that takes another one's place waits for all
/// its agents (`COME_TIMEOUT`), for until then the other one serves the clients.
pub(super) const OVERLAP: Duration = Duration::from_secs(20);
/// Worn-out tunnels of a slot that may still have streams; with more, the next one is used for
/// longer.
const WORN_OUT_MAX: usize = 8;

/// A tunnel at work, to its end.
pub(super) type Serving = Pin<Box<dyn Future<Output = Result<(), TunnelError>> + Send>>;

/// A slot's earlier tunnels. Each takes new streams until another one is up, then it ends with its
/// streams.
#[derive(Default)]
pub(super) struct WornOut {
    serving: JoinSet<()>,
    replaced: Vec<Arc<Notify>>,
}

impl WornOut {
    pub(super) fn has_room(&mut self) -> bool {
        while self.serving.try_join_next().is_some() {}
        self.serving.len() < WORN_OUT_MAX
    }

    pub(super) fn add(&mut self, serving: Serving, replaced: Arc<Notify>) {
        self.replaced.push(replaced);
        self.serving.spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "a worn-out tunnel ended");
            }
        });
    }

    /// The slot's next tunnel is up.
    pub(super) fn are_replaced(&mut self) {
        for tunnel in self.replaced.drain(..) {
            tunnel.notify_one();
        }
    }

    /// Waits for their streams to end.
    pub(super) async fn end(&mut self) {
        while self.serving.join_next().await.is_some() {}
    }
}

/// When a tunnel has to go: when the agent drains, or when another one has been in its place for a
/// while, which it is told.
pub(super) fn leave(drain: Drain) -> (Arc<Notify>, impl Future<Output = ()> + Send + 'static) {
    let replaced = Arc::<Notify>::default();
    let told = replaced.clone();
    let leave = async move {
        let replaced = async {
            told.notified().await;
            tokio::time::sleep(OVERLAP).await;
        };
        tokio::select! {
            () = drain.begun() => {}
            () = replaced => {}
        }
    };
    (replaced, leave)
}
