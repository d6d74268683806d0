//! Requests one after another on each of some connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hyper::StatusCode;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::{Connection, Target, ask};
use super::{Figures, PATIENCE};
use crate::load::observed::{percentile, processor_time};

/// Time until every buffer and pool is filled.
const WARM_UP: Duration = Duration::from_millis(500);
/// The pause between two tries of [`until_answered`]: short compared with what it waits for.
const RETRY: Duration = Duration::from_millis(1);

/// The phases of a measurement.
const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const OVER: u8 = 2;

/// Good answers' times, and how many others there were.
#[derive(Default)]
struct Answers {
    times: Vec<Duration>,
    errors: usize,
}

/// Requests per second, their times, other answers than 200, and the processor time of `pids`.
pub(super) async fn run(
    target: &Target,
    path: &str,
    connections: usize,
    seconds: f64,
    pids: &[u32],
) -> Result<Figures> {
    let phase = Arc::new(AtomicU8::new(WARMING));
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let connection = target.connect().await?;
        tasks.spawn(ask_on(connection, path.to_owned(), phase.clone()));
    }
    sleep(WARM_UP).await;
    let before = processor_time(pids)?;
    let started = Instant::now();
    phase.store(COUNTING, Ordering::Relaxed);
    sleep(Duration::from_secs_f64(seconds)).await;
    phase.store(OVER, Ordering::Relaxed);
    let used = processor_time(pids)? - before;
    let elapsed = started.elapsed();
    let mut all = join_all(tasks).await?;
    ensure!(
        !all.times.is_empty(),
        "{path}: no good answer in {seconds} s"
    );
    all.times.sort_unstable();
    let count = all.times.len() as f64;
    Ok(vec![
        ("per_second", count / elapsed.as_secs_f64()),
        ("p50_us", percentile(&all.times, 0.5)),
        ("p99_us", percentile(&all.times, 0.99)),
        ("errors", all.errors as f64),
        ("cpu_per_100k", used.as_secs_f64() / count * 1e5),
    ])
}

async fn join_all(mut tasks: JoinSet<Result<Answers>>) -> Result<Answers> {
    let mut all = Answers::default();
    while let Some(done) = tasks.join_next().await {
        let answers = done??;
        all.times.extend(answers.times);
        all.errors += answers.errors;
    }
    Ok(all)
}

async fn ask_on(mut connection: Connection, path: String, phase: Arc<AtomicU8>) -> Result<Answers> {
    let mut answers = Answers::default();
    loop {
        let started = Instant::now();
        let (status, _) = timeout(PATIENCE, connection.get(&path))
            .await
            .with_context(|| format!("{path}: no answer"))??;
        match phase.load(Ordering::Relaxed) {
            WARMING => {}
            COUNTING if status == StatusCode::OK => answers.times.push(started.elapsed()),
            COUNTING => answers.errors += 1,
            _ => return Ok(answers),
        }
    }
}

/// Asks on new connections until the answer is 200.
pub(super) async fn until_answered(target: &Target, path: &str) -> Result<Figures> {
    let started = Instant::now();
    loop {
        let answer = ask(target, path, PATIENCE).await;
        if matches!(answer, Ok(StatusCode::OK)) {
            return Ok(Vec::new());
        }
        ensure!(
            started.elapsed() < PATIENCE,
            "{path}: not answered within {PATIENCE:?}, at last: {answer:?}"
        );
        sleep(RETRY).await;
    }
}
