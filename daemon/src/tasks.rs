//! `/debug/tasks`: what the threads of the program do, which supervised tasks run, and how many
//! tasks there are of what the program counts.
//!
//! Only numbers of tokio that are stable are shown. Polls and local queues need `tokio_unstable` in
//! the flags of every build; the busy time answers the same question.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::admin_pages::AdminPages;

/// For how long a request measures the busy time: long enough for a share, short enough to wait.
const MEASURED: Duration = Duration::from_secs(1);

/// The numbers of tasks by what they serve, such as `streams`.
pub type TaskCounts = BTreeMap<&'static str, usize>;

/// The runtimes of the program, by name.
#[derive(Clone, Debug)]
pub struct Runtimes(Vec<(String, Handle)>);

impl Runtimes {
    /// The runtime of the calling task, as `main`.
    ///
    /// # Panics
    /// Outside of a task.
    #[must_use]
    pub fn main() -> Self {
        Self(vec![("main".to_owned(), Handle::current())])
    }

    /// Adds a runtime.
    #[must_use]
    pub(crate) fn with(mut self, name: String, runtime: Handle) -> Self {
        self.0.push((name, runtime));
        self
    }

    /// The present number of tasks.
    pub(crate) fn tasks(&self) -> usize {
        let mut tasks = 0;
        for (_, runtime) in &self.0 {
            tasks += runtime.metrics().num_alive_tasks();
        }
        tasks
    }

    /// How long each thread of each runtime has been busy.
    fn busy(&self) -> Vec<Vec<Duration>> {
        let mut runtimes = Vec::new();
        for (_, runtime) in &self.0 {
            let metrics = runtime.metrics();
            let mut threads = Vec::new();
            for thread in 0..metrics.num_workers() {
                threads.push(metrics.worker_total_busy_duration(thread));
            }
            runtimes.push(threads);
        }
        runtimes
    }
}

/// The supervised tasks that run. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct RunningTasks(Arc<Mutex<Vec<&'static str>>>);

/// An entry in the list. Dropping it removes it.
pub(crate) struct RunningTask {
    name: &'static str,
    all: RunningTasks,
}

impl RunningTasks {
    pub(crate) fn enter(&self, name: &'static str) -> RunningTask {
        self.lock().push(name);
        let all = self.clone();
        RunningTask { name, all }
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names = self.lock().clone();
        names.sort_unstable();
        names
    }

    fn lock(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.0.lock()
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        let mut names = self.all.lock();
        if let Some(at) = names.iter().position(|name| *name == self.name) {
            names.swap_remove(at);
        }
    }
}

/// The page.
#[derive(Debug, Serialize)]
struct TasksPage {
    /// How long `busy_share` was measured.
    measured_seconds: f64,
    runtimes: Vec<RuntimeView>,
    supervised: Vec<&'static str>,
    counts: TaskCounts,
}

#[derive(Debug, Serialize)]
struct RuntimeView {
    runtime: String,
    tasks: usize,
    /// Tasks that another thread has woken and that no thread of the runtime has taken yet.
    queued_tasks: usize,
    threads: Vec<ThreadView>,
}

#[derive(Debug, Serialize)]
struct ThreadView {
    /// The part of the measured time in which it ran tasks: 0 to 1.
    busy_share: f64,
    /// Since the start.
    busy_seconds: f64,
    /// How often it had nothing to do and waited.
    waits: u64,
    /// Whether it waits now. If it does not and `busy_share` is 0, it is stuck in one task.
    waiting: bool,
}

/// The route of the page. `counts` is called at each request.
pub fn tasks_page(
    runtimes: Runtimes,
    running: RunningTasks,
    counts: impl Fn() -> TaskCounts + Clone + Send + Sync + 'static,
) -> AdminPages {
    let page = async move || show(&runtimes, &running, counts).await;
    let content = "how busy the threads are, and the tasks that run";
    AdminPages::new().page("/debug/tasks", content, get(page))
}

async fn show(
    runtimes: &Runtimes,
    running: &RunningTasks,
    counts: impl FnOnce() -> TaskCounts + Send + 'static,
) -> Response {
    let before = runtimes.busy();
    let started = Instant::now();
    tokio::time::sleep(MEASURED).await;
    let measured = started.elapsed();
    let mut views = Vec::new();
    for ((name, runtime), before) in runtimes.0.iter().zip(before) {
        views.push(RuntimeView::new(
            name,
            &runtime.metrics(),
            &before,
            measured,
        ));
    }
    Json(TasksPage {
        measured_seconds: measured.as_secs_f64(),
        runtimes: views,
        supervised: running.names(),
        counts: counts(),
    })
    .into_response()
}

impl RuntimeView {
    fn new(name: &str, metrics: &RuntimeMetrics, before: &[Duration], measured: Duration) -> Self {
        let mut threads = Vec::new();
        for (number, before) in before.iter().enumerate() {
            let busy = metrics.worker_total_busy_duration(number);
            threads.push(ThreadView {
                busy_share: share(busy.saturating_sub(*before), measured),
                busy_seconds: busy.as_secs_f64(),
                waits: metrics.worker_park_count(number),
                // It counts the begin and the end of each wait.
                waiting: metrics.worker_park_unpark_count(number) % 2 == 1,
            });
        }
        Self {
            runtime: name.to_owned(),
            tasks: metrics.num_alive_tasks(),
            queued_tasks: metrics.global_queue_depth(),
            threads,
        }
    }
}

/// A thread reports its busy time when it waits, so a time that began before may be more than the
/// whole.
fn share(busy: Duration, of: Duration) -> f64 {
    (busy.as_secs_f64() / of.as_secs_f64()).min(1.0)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use axum::body::to_bytes;
    use serde_json::Value;

    use super::*;
    use crate::Workers;

    async fn ask(runtimes: &Runtimes, running: &RunningTasks) -> Value {
        let answer = show(runtimes, running, || TaskCounts::from([("streams", 3)])).await;
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn a_busy_thread_an_idle_one_and_the_tasks_by_name_are_on_the_page() {
        let workers = Workers::start(NonZeroUsize::new(2).unwrap()).unwrap();
        let busy = workers.next();
        let idle = workers.next();
        let _busy = busy.run(async {
            loop {
                let until = Instant::now() + Duration::from_millis(5);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
        });
        let _idle = idle.run(std::future::pending::<()>());
        let running = RunningTasks::default();
        let _admin = running.enter("admin");
        drop(running.enter("ended"));
        let page = ask(&workers.runtimes(), &running).await;
        let names = page["runtimes"].as_array().unwrap();
        let names: Vec<_> = names.iter().map(|one| one["runtime"].as_str()).collect();
        assert_eq!(names, [Some("main"), Some("worker-0"), Some("worker-1")]);
        let thread = |number: usize| &page["runtimes"][number]["threads"][0];
        // Other tests use the processors too.
        assert!(thread(1)["busy_share"].as_f64().unwrap() > 0.2, "{page}");
        assert!(thread(2)["busy_share"].as_f64().unwrap() < 0.2, "{page}");
        assert_eq!(thread(2)["waiting"], true, "{page}");
        assert_eq!(page["runtimes"][2]["tasks"], 1, "{page}");
        assert_eq!(page["supervised"], serde_json::json!(["admin"]));
        assert_eq!(page["counts"]["streams"], 3);
    }
}
