//! A steady load: each request has its own connection. Each must end, and only the right node may
//! answer.

use std::collections::BTreeMap;
use std::io::{self, BufRead, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use culvert_lab::random::Random;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::target::Target;

/// A request that takes longer hangs. The proxy waits 8 s for an agent's answer, at most three
/// times, and then reports the failure.
const PATIENCE: Duration = Duration::from_secs(26);
/// Pause between two requests of a thread, which leaves processor time to the programs under test.
const PACE: Duration = Duration::from_millis(10);
/// Longest message that is echoed.
const MESSAGE_MAX: u64 = 16 << 10;
/// More failures would only repeat the first ones.
const MAX_EXAMPLES: usize = 5;

/// What `steady` needs.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    seed: u64,
    /// Threads for each target
    #[arg(long)]
    threads: usize,
    /// A port that names its node and then echoes
    #[arg(long)]
    port: u16,
    /// `HOST=NODE`, or `SOCKET,HOST=NODE` through a CONNECT socket; `HOST=nobody` for an address
    /// that must not answer
    #[arg(required = true)]
    targets: Vec<Target>,
}

/// The results of the requests since the last report.
struct Results {
    since: Instant,
    targets: BTreeMap<String, u64>,
    answered: u64,
    failed: u64,
    errors: BTreeMap<String, u64>,
    /// When the last failed request began, if that was after the last report.
    last_failure: Option<Duration>,
    last_error: String,
    wrong: Vec<String>,
    hung: Vec<String>,
    slowest: Duration,
}

impl Results {
    fn nothing() -> Self {
        Self {
            since: Instant::now(),
            targets: BTreeMap::new(),
            answered: 0,
            failed: 0,
            errors: BTreeMap::new(),
            last_failure: None,
            last_error: String::new(),
            wrong: Vec::new(),
            hung: Vec::new(),
            slowest: Duration::ZERO,
        }
    }

    fn report(&self) -> Value {
        json!({
            "answered": self.answered, "failed": self.failed, "errors": self.errors, "targets": self.targets,
            "last_failure_ms": self.last_failure.map(millis), "last_error": self.last_error,
            "wrong": self.wrong, "hung": self.hung, "slowest_ms": millis(self.slowest),
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The end of a request.
enum End {
    Answered,
    /// Another node answered, or the bytes differ.
    Wrong(String),
    Failed(io::Error),
}

/// Runs until its input ends.
pub(crate) fn run(args: &Args) -> Result<()> {
    let results = Mutex::new(Results::nothing());
    let over = AtomicBool::new(false);
    let mut random = Random::new(args.seed);
    std::thread::scope(|scope| {
        for target in &args.targets {
            for _ in 0..args.threads {
                let random = random.split();
                scope.spawn(|| work(args.port, target, random, &results, &over));
            }
        }
        let reported = report(&results);
        over.store(true, Ordering::Relaxed);
        reported
    })
}

fn report(results: &Mutex<Results>) -> Result<()> {
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        line?;
        let last = std::mem::replace(&mut *results.lock(), Results::nothing());
        writeln!(out, "{}", last.report())?;
        out.flush()?;
    }
    Ok(())
}

fn work(
    port: u16,
    target: &Target,
    mut random: Random,
    results: &Mutex<Results>,
    over: &AtomicBool,
) {
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let end = request(target, port, &mut random);
        record(&mut results.lock(), target, begun, end);
        std::thread::sleep(PACE);
    }
}

fn request(target: &Target, port: u16, random: &mut Random) -> End {
    let talked = target.connect(port, PATIENCE).and_then(|mut client| {
        let greeting = client.line()?;
        let Some(expected) = target
            .node
            .as_ref()
            .map(|node| format!("hello from {node}"))
        else {
            return Ok(Some(greeting));
        };
        if greeting != expected {
            return Ok(Some(greeting));
        }
        let length = usize::try_from(random.below(MESSAGE_MAX)).unwrap_or_default();
        let message = format!("{:>length$}", random.below(u64::MAX));
        client.echo(message.as_bytes())?;
        client.end().map(|()| None)
    });
    match talked {
        Ok(None) => End::Answered,
        Ok(Some(greeting)) => End::Wrong(greeting),
        Err(error) if error.kind() == ErrorKind::InvalidData => End::Wrong(error.to_string()),
        Err(error) => End::Failed(error),
    }
}

fn record(results: &mut Results, target: &Target, begun: Instant, end: End) {
    let took = begun.elapsed();
    results.slowest = results.slowest.max(took);
    if took >= PATIENCE && results.hung.len() < MAX_EXAMPLES {
        results.hung.push(format!("{}: {took:?}", target.text));
    }
    match end {
        End::Answered => {
            results.answered += 1;
            // Only requests that began after the last report prove that a target works now.
            *results.targets.entry(target.text.clone()).or_default() +=
                u64::from(begun >= results.since);
        }
        End::Wrong(what) if results.wrong.len() < MAX_EXAMPLES => {
            results.wrong.push(format!("{}: {what:?}", target.text))
        }
        End::Wrong(_) => {}
        // This is correct for an address of several nodes.
        End::Failed(_) if target.node.is_none() => {}
        End::Failed(error) => {
            results.failed += 1;
            *results
                .errors
                .entry(format!("{:?}", error.kind()))
                .or_default() += 1;
            if let Some(at) = begun.checked_duration_since(results.since) {
                results.last_failure = results.last_failure.max(Some(at));
                results.last_error = format!("{}: {error}", target.text);
            }
        }
    }
}
