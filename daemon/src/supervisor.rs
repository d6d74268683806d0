//! Runs a process's tasks, each with a name and an owner, and drains them when the first one ends
//! or a signal arrives.

use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::RunningTasks;

/// Announces to the tasks of a process that it is about to end, in two steps: the process
/// [leaves](Self::leaving), which is the time to send others elsewhere, and then it
/// [drains](Self::begun): it accepts nothing new and its work ends. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    leaving: CancellationToken,
    begun: CancellationToken,
}

impl Drain {
    /// Waits until the process is about to end. It still accepts work that has nowhere else to go.
    pub async fn leaving(&self) {
        self.leaving.cancelled().await;
    }

    /// Whether the process is about to end.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_cancelled()
    }

    /// The first step.
    pub fn leave(&self) {
        self.leaving.cancel();
    }

    /// Waits until the drain has begun.
    pub async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Whether the drain has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Starts the drain, for tests and for a task that must end the process: another process has
    /// taken its place.
    pub fn start(&self) {
        self.leaving.cancel();
        self.begun.cancel();
    }
}

type Step = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Owner of a process's long-lived tasks.
pub struct Supervisor {
    tasks: JoinSet<(&'static str, Result<()>)>,
    /// Tasks that continue while the others drain.
    observers: JoinSet<(&'static str, Result<()>)>,
    running: RunningTasks,
    drain: Drain,
    grace: Duration,
    departure: Option<Step>,
    afterwards: Option<Step>,
    signals: Signals,
}

/// Why a process ends.
enum Cause {
    Signal,
    /// A task ended, or another process has taken its place.
    Task,
}

impl Supervisor {
    /// Listens for signals from now on. `grace` is how long tasks may take to end after the
    /// process began to leave.
    ///
    /// # Errors
    /// Signals cannot be listened for.
    pub fn new(grace: Duration) -> Result<Self> {
        Ok(Self {
            tasks: JoinSet::new(),
            observers: JoinSet::new(),
            running: RunningTasks::default(),
            drain: Drain::default(),
            grace,
            departure: None,
            afterwards: None,
            signals: Signals::new()?,
        })
    }

    /// The drain that tasks watch to know when to end.
    #[must_use]
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }

    /// The tasks that run, for `/debug/tasks`.
    #[must_use]
    pub fn running(&self) -> RunningTasks {
        self.running.clone()
    }

    /// Starts a task. It should end only after the process began to leave: an earlier end stops
    /// the process.
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let running = self.running.enter(name);
        self.tasks.spawn(async move {
            let _running = running;
            (name, task.await)
        });
    }

    /// Starts a task that ends with the process: a task that watches the drain must outlast it.
    pub fn spawn_observer(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let running = self.running.enter(name);
        self.observers.spawn(async move {
            let _running = running;
            (name, task.await)
        });
    }

    /// Runs a part of the start. `None`: a signal ends the process.
    pub async fn start<T>(&mut self, part: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = part => Some(done),
            signal = self.signals.next() => {
                tracing::info!(signal, "told to end before the start was complete");
                None
            }
        }
    }

    /// What happens after a signal before the drain begins, within the grace period. Without it
    /// the drain begins at once.
    pub fn depart_by(&mut self, departure: impl Future<Output = ()> + Send + 'static) {
        self.departure = Some(Box::pin(departure));
    }

    /// Awaited last if the process ends because a task began the drain, as when a successor has
    /// taken over. Not awaited after a signal.
    pub fn afterwards(&mut self, afterwards: impl Future<Output = ()> + Send + 'static) {
        self.afterwards = Some(Box::pin(afterwards));
    }

    /// Runs until a task ends or SIGTERM or SIGINT arrives, leaves, drains, and drops what outlives
    /// the grace period; a second signal cuts the grace period short.
    ///
    /// # Errors
    /// The first error of a task, with its name; a task that ended before the process left is an
    /// error too.
    pub async fn run(mut self) -> Result<()> {
        let (mut cause, first) = tokio::select! {
            signal = self.signals.next() => {
                tracing::info!(signal, grace_s = self.grace.as_secs(), "draining");
                (Cause::Signal, Ok(()))
            }
            ended = self.tasks.join_next() => (Cause::Task, outcome(ended, self.drain.has_begun())),
            Some(ended) = self.observers.join_next() => (Cause::Task, outcome(Some(ended), false)),
            () = self.drain.begun() => (Cause::Task, Ok(())),
        };
        let mut end = Instant::now() + self.grace;
        self.drain.leave();
        let first = match cause {
            Cause::Signal => first.and(self.depart(&mut end).await),
            Cause::Task => first,
        };
        self.drain.start();
        let rest = self.let_end(end, &mut cause).await;
        self.tasks.shutdown().await;
        if let (Cause::Task, Ok(()), Some(afterwards)) = (cause, &first, self.afterwards) {
            tokio::select! {
                () = afterwards => {}
                _ = self.signals.next() => {}
            }
        }
        first.and(rest)
    }

    /// Leaves: until the departure is complete, a task fails, or there is no more time, which a
    /// second signal causes too.
    async fn depart(&mut self, end: &mut Instant) -> Result<()> {
        let Some(departure) = &mut self.departure else {
            return Ok(());
        };
        loop {
            tokio::select! {
                () = &mut *departure => return Ok(()),
                () = self.drain.begun() => return Ok(()),
                Some(ended) = self.tasks.join_next() => outcome(Some(ended), true)?,
                () = tokio::time::sleep_until(*end) => return Ok(()),
                _ = self.signals.next() => {
                    *end = Instant::now();
                    return Ok(());
                }
            }
        }
    }

    /// Waits for the tasks' ends, until `end` or a second signal.
    async fn let_end(&mut self, end: Instant, cause: &mut Cause) -> Result<()> {
        let mut result = Ok(());
        loop {
            tokio::select! {
                ended = self.tasks.join_next() => match ended {
                    Some(ended) => result = result.and(outcome(Some(ended), true)),
                    None => return result,
                },
                () = tokio::time::sleep_until(end) => {
                    tracing::warn!(
                        tasks = self.tasks.len(),
                        "grace period over; dropping what is left"
                    );
                    return Ok(());
                }
                _ = self.signals.next() => match cause {
                    Cause::Signal => return Ok(()),
                    Cause::Task => *cause = Cause::Signal,
                },
            }
        }
    }
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
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
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

    #[tokio::test]
    async fn a_process_that_was_replaced_waits_for_what_comes_afterwards() {
        let mut supervisor = Supervisor::new(Duration::from_secs(5)).unwrap();
        let (drain, draining) = (supervisor.drain(), supervisor.drain());
        supervisor.depart_by(async { unreachable!("no signal came") });
        let (tx, rx) = tokio::sync::oneshot::channel();
        supervisor.spawn("hand-over", async move {
            drain.start();
            Ok(())
        });
        supervisor.afterwards(async move {
            assert!(draining.is_leaving() && draining.has_begun());
            tx.send(()).unwrap();
        });
        supervisor.run().await.unwrap();
        rx.await.unwrap();
    }
}
