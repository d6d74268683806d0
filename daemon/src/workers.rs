//! Threads that move bytes. Each runs its own tasks, which never move to another thread. A tunnel
//! and its streams wake each other all the time: on different threads, each message would cost a
//! wake-up between threads.

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::Runtimes;

/// How many tasks run before a thread checks for outside events: bytes, timers, and tasks of other
/// threads. A tunnel under bulk and its streams wake each other endlessly, and each run moves up to
/// 128 KiB. With tokio's defaults of 61 and 31 a small message waited for milliseconds.
const TURNS: u32 = 3;

/// A process's worker threads. Dropping this ends them and their remaining tasks.
#[derive(Debug)]
pub struct Workers {
    threads: Vec<(Worker, JoinHandle<()>)>,
    next: AtomicUsize,
    stop: CancellationToken,
}

/// One of the threads. Clones refer to the same thread.
#[derive(Clone, Debug)]
pub struct Worker(Handle);

impl Workers {
    /// Starts that many threads, each with its own timers and sockets.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn start(count: NonZeroUsize) -> io::Result<Arc<Self>> {
        let stop = CancellationToken::new();
        let threads = (0..count.get())
            .map(|number| thread(number, stop.clone()))
            .collect::<io::Result<_>>()?;
        Ok(Arc::new(Self {
            threads,
            next: AtomicUsize::default(),
            stop,
        }))
    }

    /// The threads in turn.
    pub fn next(&self) -> Worker {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.threads[turn % self.threads.len()].0.clone()
    }

    /// Adds the gauge `tasks`: the present number of tasks, including those of the calling task's
    /// runtime.
    ///
    /// # Panics
    /// Outside of a task.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Tasks(self.runtimes())));
    }

    /// The threads' runtimes, and that of the calling task as `main`.
    ///
    /// # Panics
    /// Outside of a task.
    pub fn runtimes(&self) -> Runtimes {
        let mut runtimes = Runtimes::main();
        for (number, (worker, _)) in self.threads.iter().enumerate() {
            runtimes = runtimes.with(name(number), worker.0.clone());
        }
        runtimes
    }
}

/// Counts tasks at each scrape.
#[derive(Debug)]
struct Tasks(Runtimes);

impl Collector for Tasks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let tasks = self.0.tasks();
        let gauge =
            encoder.encode_descriptor("tasks", "Tasks of the program", None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(tasks).unwrap_or(i64::MAX)).encode(gauge)
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

    /// Whether the calling task runs on this thread.
    #[must_use]
    pub fn is_current(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() == self.0.id())
    }

    /// Runs a task on this thread until the returned handle is dropped.
    pub fn run<F>(&self, task: F) -> AbortOnDropHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        AbortOnDropHandle::new(self.0.spawn(task))
    }

    /// The handle for spawning tasks on this thread.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.0
    }
}

fn name(number: usize) -> String {
    format!("worker-{number}")
}

fn thread(number: usize, stop: CancellationToken) -> io::Result<(Worker, JoinHandle<()>)> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .event_interval(TURNS)
        .global_queue_interval(TURNS)
        .build()?;
    let worker = Worker(runtime.handle().clone());
    let thread = std::thread::Builder::new().name(name(number));
    Ok((
        worker,
        thread.spawn(move || runtime.block_on(stop.cancelled()))?,
    ))
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
    use std::future::poll_fn;
    use std::io::Write;
    use std::sync::atomic::AtomicU32;
    use std::task::Poll;

    use tokio::net::UnixStream;
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
        assert_eq!(
            names,
            [Some("worker-0".to_owned()), Some("worker-1".to_owned())]
        );

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

    /// A turn long after the thread's tasks have begun.
    const EVENT_AT: u32 = 1000;

    /// Keeps a thread busy: a task that is always ready counts its turns, and calls `event` in turn
    /// [`EVENT_AT`].
    fn occupy(
        worker: &Worker,
        turns: Arc<AtomicU32>,
        event: impl FnOnce() + Send + 'static,
    ) -> AbortOnDropHandle<()> {
        let mut event = Some(event);
        worker.run(poll_fn(move |context| {
            if turns.fetch_add(1, Ordering::Relaxed) == EVENT_AT {
                event.take().expect("that turn comes once")();
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }

    #[tokio::test]
    async fn bytes_wait_for_few_turns_of_a_task_that_is_always_ready() {
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let worker = workers.next();
        let turns = Arc::new(AtomicU32::new(0));
        let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let seen = turns.clone();
        let read = worker.run(async move {
            UnixStream::from_std(near)
                .unwrap()
                .readable()
                .await
                .unwrap();
            seen.load(Ordering::Relaxed)
        });
        let _busy = occupy(&worker, turns, move || far.write_all(b"ping").unwrap());
        let read_at = read.await.unwrap();
        assert!(
            read_at <= EVENT_AT + 2 * TURNS,
            "sent in turn {EVENT_AT}, read in {read_at}"
        );
    }

    #[tokio::test]
    async fn a_task_of_another_thread_waits_for_few_turns_of_one_that_is_always_ready() {
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let worker = workers.next();
        let turns = Arc::new(AtomicU32::new(0));
        let (started_tx, started_rx) = tokio::sync::oneshot::channel();
        let seen = turns.clone();
        let other = worker.clone();
        let _busy = occupy(&worker, turns, move || {
            let start = move || {
                let task = other.run(async move { seen.load(Ordering::Relaxed) });
                started_tx.send(task).unwrap();
            };
            std::thread::spawn(start).join().unwrap();
        });
        let ran_at = started_rx.await.unwrap().await.unwrap();
        assert!(
            ran_at <= EVENT_AT + 2 * TURNS,
            "started in turn {EVENT_AT}, run in {ran_at}"
        );
    }
}
