//! Threads that move bytes. Each runs its own tasks, which never go to another: tasks that wake each other all the time, as a
//! tunnel and its streams do, would else pay for a wake-up between threads with every message.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How many tasks have their turn before sockets and timers are asked again. A tunnel under bulk and its streams wake each other
/// without end, and a turn moves up to 128 KiB: after tokio's 61 turns a small message would have waited for milliseconds.
const TURNS_BETWEEN_EVENTS: u32 = 3;

/// A process' worker threads. Dropped, they end, and with them the tasks that are still there.
#[derive(Debug)]
pub struct Workers {
    threads: Vec<(Worker, JoinHandle<()>)>,
    next: AtomicUsize,
    stop: CancellationToken,
}

/// One of the threads. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Worker(Handle);

impl Workers {
    /// Starts that many threads, each with timers and sockets of its own.
    ///
    /// # Errors
    /// The system gives no more threads or descriptors.
    pub fn start(count: NonZeroUsize) -> io::Result<Arc<Self>> {
        let stop = CancellationToken::new();
        let threads = (0..count.get()).map(|number| thread(number, stop.clone())).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self { threads, next: AtomicUsize::default(), stop }))
    }

    /// The threads in turn.
    pub fn next(&self) -> Worker {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.threads[turn % self.threads.len()].0.clone()
    }
}

impl Worker {
    /// The thread that runs the calling task.
    ///
    /// # Panics
    /// Outside of a task.
    #[must_use]
    pub fn current() -> Self {
        Self(Handle::current())
    }

    /// Runs a task on this thread, until what is returned is dropped.
    pub fn run<F>(&self, task: F) -> AbortOnDropHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        AbortOnDropHandle::new(self.0.spawn(task))
    }

    /// Where to spawn on this thread.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.0
    }
}

fn thread(number: usize, stop: CancellationToken) -> io::Result<(Worker, JoinHandle<()>)> {
    let runtime = Builder::new_current_thread().enable_all().event_interval(TURNS_BETWEEN_EVENTS).build()?;
    let worker = Worker(runtime.handle().clone());
    let thread = std::thread::Builder::new().name(format!("worker-{number}"));
    Ok((worker, thread.spawn(move || runtime.block_on(stop.cancelled()))?))
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
        for (_, thread) in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread failed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn a_task_stays_on_its_thread_and_ends_with_it() {
        let workers = Workers::start(NonZeroUsize::new(2).unwrap()).unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..2 {
            let name = async { std::thread::current().name().map(str::to_owned) };
            tasks.spawn_on(name, workers.next().handle());
        }
        let mut names = tasks.join_all().await;
        names.sort();
        assert_eq!(names, [Some("worker-0".to_owned()), Some("worker-1".to_owned())]);

        let (dropped_tx, dropped_rx) = tokio::sync::oneshot::channel::<()>();
        let mut tasks = JoinSet::new();
        tasks.spawn_on(
            async move {
                let _held = dropped_tx;
                std::future::pending::<()>().await;
            },
            workers.next().handle(),
        );
        drop(workers);
        dropped_rx.await.unwrap_err();
    }
}
