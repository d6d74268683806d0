//! Runs a process's tasks, each with a name and an owner, and drains them when the first one ends
//! or a signal arrives.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Tells the tasks of a process to accept nothing new and let their work end. Clones share their
/// state.
#[derive(Clone, Debug, Default)]
pub struct Drain(CancellationToken);

impl Drain {
    /// Waits until the drain has begun.
    pub async fn begun(&self) {
        self.0.cancelled().await;
    }

    /// Whether the drain has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Begins the drain, for tests and for a task that must end the process.
    pub fn begin(&self) {
        self.0.cancel();
    }
}

/// Owner of a process's long-lived tasks.
pub struct Supervisor {
    tasks: JoinSet<(&'static str, Result<()>)>,
    /// Tasks that continue while the others drain.
    observers: JoinSet<(&'static str, Result<()>)>,
    drain: Drain,
    grace: Duration,
    signals: Signals,
}

impl Supervisor {
    /// Listens for signals from now on. `grace` is how long tasks may take to end after the drain
    /// began.
    ///
    /// # Errors
    /// Signals cannot be listened for.
    pub fn new(grace: Duration) -> Result<Self> {
        Ok(Self {
            tasks: JoinSet::new(),
            observers: JoinSet::new(),
            drain: Drain::default(),
            grace,
            signals: Signals::new()?,
        })
    }

    /// The drain that tasks watch to know when to end.
    #[must_use]
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }

    /// Starts a task. It should end only after the drain began: an earlier end stops the process.
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { (name, task.await) });
    }

    /// Starts a task that ends with the process: a task that watches the drain must outlast it.
    pub fn spawn_observer(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        self.observers.spawn(async move { (name, task.await) });
    }

    /// Runs until a task ends or SIGTERM or SIGINT arrives, drains, and drops what outlives the
    /// grace period; a second signal cuts the grace period short.
    ///
    /// # Errors
    /// The first error of a task, with its name; a task that ended before the drain is an error
    /// too.
    pub async fn run(mut self) -> Result<()> {
        let first = tokio::select! {
            signal = self.signals.next() => {
                tracing::info!(signal, grace_s = self.grace.as_secs(), "draining");
                Ok(())
            }
            ended = self.tasks.join_next() => outcome(ended, false),
            Some(ended) = self.observers.join_next() => outcome(Some(ended), false),
        };
        self.drain.begin();
        let rest = tokio::select! {
            rest = drained(&mut self.tasks) => rest,
            () = tokio::time::sleep(self.grace) => {
                tracing::warn!(
                    tasks = self.tasks.len(),
                    "grace period over; dropping what is left"
                );
                Ok(())
            }
            _ = self.signals.next() => Ok(()),
        };
        self.tasks.shutdown().await;
        first.and(rest)
    }
}

async fn drained(tasks: &mut JoinSet<(&'static str, Result<()>)>) -> Result<()> {
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        result = result.and(outcome(Some(ended), true));
    }
    result
}

type Ended = Option<Result<(&'static str, Result<()>), tokio::task::JoinError>>;

fn outcome(ended: Ended, draining: bool) -> Result<()> {
    match ended {
        None => Ok(()),
        Some(Err(panicked)) => Err(panicked).context("a task panicked"),
        Some(Ok((name, Err(error)))) => Err(error.context(name)),
        Some(Ok((_, Ok(())))) if draining => Ok(()),
        Some(Ok((name, Ok(())))) => Err(anyhow!("{name} ended by itself")),
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_failure_drains_the_others_and_is_named() {
        let mut supervisor = Supervisor::new(Duration::from_secs(5)).unwrap();
        let drain = supervisor.drain();
        let (drained_tx, drained_rx) = tokio::sync::oneshot::channel();
        supervisor.spawn("patient", async move {
            drain.begun().await;
            drained_tx.send(()).map_err(|()| anyhow!("nobody waits"))
        });
        supervisor.spawn("listener", async { Err(anyhow!("port is taken")) });
        let error = supervisor.run().await.unwrap_err();
        assert_eq!(format!("{error:#}"), "listener: port is taken");
        drained_rx.await.unwrap();
    }
}
