//! A steady load: each request has its own connection. Each must end, and only the right node may
//! answer.

use std::collections::BTreeMap;
use std::io::{self, BufRead, ErrorKind, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use culvert_lab::random::Random;
use serde_json::{Value, json};

use crate::way::Way;

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
    /// Threads for each way
    #[arg(long)]
    threads: usize,
    /// A port that names its node and then echoes
    #[arg(long)]
    port: u16,
    /// `HOST=NODE`, or `SOCKET,HOST=NODE` by way of a CONNECT socket; `HOST=nobody` for an address
    /// that must not answer
    #[arg(required = true)]
    ways: Vec<Way>,
}

/// The results of the requests since the last report.
struct Found {
    since: Instant,
    ways: BTreeMap<String, u64>,
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

impl Found {
    fn nothing() -> Self {
        Self {
            since: Instant::now(),
            ways: BTreeMap::new(),
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
            "answered": self.answered, "failed": self.failed, "errors": self.errors, "ways": self.ways,
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
    let (found, over, mut random) = (
        Mutex::new(Found::nothing()),
        AtomicBool::new(false),
        Random::new(args.seed),
    );
    std::thread::scope(|scope| {
        for way in &args.ways {
            for _ in 0..args.threads {
                let random = random.split();
                scope.spawn(|| work(args.port, way, random, &found, &over));
            }
        }
        let reported = report(&found);
        over.store(true, Ordering::Relaxed);
        reported
    })
}

fn report(found: &Mutex<Found>) -> Result<()> {
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        line?;
        let last = std::mem::replace(
            &mut *found.lock().expect("no thread panics with it"),
            Found::nothing(),
        );
        writeln!(out, "{}", last.report())?;
        out.flush()?;
    }
    Ok(())
}

fn work(port: u16, way: &Way, mut random: Random, found: &Mutex<Found>, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let end = request(way, port, &mut random);
        note(
            &mut found.lock().expect("no thread panics with it"),
            way,
            begun,
            end,
        );
        std::thread::sleep(PACE);
    }
}

fn request(way: &Way, port: u16, random: &mut Random) -> End {
    let talked = way.connect(port, PATIENCE).and_then(|mut client| {
        let greeting = client.line()?;
        let Some(expected) = way.node.as_ref().map(|node| format!("hello from {node}")) else {
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

fn note(found: &mut Found, way: &Way, begun: Instant, end: End) {
    let took = begun.elapsed();
    found.slowest = found.slowest.max(took);
    if took >= PATIENCE && found.hung.len() < MAX_EXAMPLES {
        found.hung.push(format!("{}: {took:?}", way.text));
    }
    match end {
        End::Answered => {
            found.answered += 1;
            // Only requests that began after the last report prove that a way works now.
            *found.ways.entry(way.text.clone()).or_default() += u64::from(begun >= found.since);
        }
        End::Wrong(what) if found.wrong.len() < MAX_EXAMPLES => {
            found.wrong.push(format!("{}: {what:?}", way.text))
        }
        End::Wrong(_) => {}
        // This is correct for an address of several nodes.
        End::Failed(_) if way.node.is_none() => {}
        End::Failed(error) => {
            found.failed += 1;
            *found
                .errors
                .entry(format!("{:?}", error.kind()))
                .or_default() += 1;
            if let Some(at) = begun.checked_duration_since(found.since) {
                found.last_failure = found.last_failure.max(Some(at));
                found.last_error = format!("{}: {error}", way.text);
            }
        }
    }
}
