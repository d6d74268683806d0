//! Many short connections. Half are used and ended in order; half are aborted at a point that a
//! seed chooses.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use culvert_lab::random::Random;
use parking_lot::Mutex;
use serde_json::json;

use crate::target::{Client, Leave, Target};

/// Longer than any step takes on busy cores.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between progress reports.
const PROGRESS: Duration = Duration::from_secs(5);
/// More failures would only repeat the first ones.
const MAX_FAILURES: usize = 5;

/// What `churn` needs.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    count: u64,
    #[arg(long)]
    threads: usize,
    /// Ports that name their node and then echo
    #[arg(long, value_delimiter = ',')]
    greet: Vec<u16>,
    /// Port that sends bytes without being asked
    #[arg(long)]
    source: u16,
    /// How many bytes
    #[arg(long)]
    source_bytes: u64,
    /// What these clients are called in their progress
    #[arg(long)]
    name: String,
    /// `HOST=NODE`, or `SOCKET,HOST=NODE` through a CONNECT socket
    #[arg(required = true)]
    targets: Vec<Target>,
}

/// The point at which a connection is aborted.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// Before the node's backend has been reached.
    Connecting,
    /// The request is sent, nothing is read.
    Requested,
    /// A part of the answer is read.
    Answered,
}

const POINTS: [Point; 3] = [Point::Connecting, Point::Requested, Point::Answered];
const LEAVES: [Leave; 2] = [Leave::Fin, Leave::Rst];

#[derive(Default)]
struct Results {
    whole: AtomicU64,
    aborted: Mutex<BTreeMap<String, u64>>,
    failures: Mutex<Vec<String>>,
    started: AtomicU64,
}

/// Runs all connections and prints the results.
pub(crate) fn run(args: &Args) -> Result<()> {
    let results = Results::default();
    let started = Instant::now();
    let mut random = Random::new(args.seed);
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            let random = random.split();
            scope.spawn(|| work(args, random, &results));
        }
        let mut told = Instant::now();
        while results.started.load(Ordering::Relaxed) < args.count {
            std::thread::sleep(Duration::from_millis(100));
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                print_progress(args, &results, started);
            }
        }
    });
    print_progress(args, &results, started);
    let failures = results.failures.lock();
    println!(
        "{}",
        json!({"whole": results.whole, "aborted": *results.aborted.lock(), "failed": failures.len(),
            "failures": failures.iter().take(MAX_FAILURES).collect::<Vec<_>>()})
    );
    Ok(())
}

fn print_progress(args: &Args, results: &Results, since: Instant) {
    let done = results.started.load(Ordering::Relaxed).min(args.count);
    let rate = u128::from(done) * 1000 / since.elapsed().as_millis().max(1);
    eprintln!(
        "    {}: {done} of {} connections, {rate} a second",
        args.name, args.count
    );
}

fn work(args: &Args, mut random: Random, results: &Results) {
    loop {
        let number = results.started.fetch_add(1, Ordering::Relaxed);
        if number >= args.count {
            return;
        }
        let target = random.one_of(&args.targets).clone();
        // Alternating, so that exactly half are aborted.
        if number.is_multiple_of(2) {
            match use_well(&target, *random.one_of(&args.greet), number) {
                Ok(()) => {
                    results.whole.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let failure = format!("{}: {error}", target.text);
                    results.failures.lock().push(failure);
                }
            }
        } else {
            let point = *random.one_of(&POINTS);
            let leave = *random.one_of(&LEAVES);
            // The result of an aborted connection does not matter.
            abort(args, &target, point, leave, &mut random).ok();
            let mut aborted = results.aborted.lock();
            *aborted.entry(format!("{point:?} {leave:?}")).or_default() += 1;
        }
    }
}

/// The target's node must answer, and must return what it is sent.
fn use_well(target: &Target, port: u16, number: u64) -> io::Result<()> {
    let mut client = target.connect(port, PATIENCE)?;
    let greeting = client.line()?;
    let expected = format!("hello from {}", target.node.as_deref().unwrap_or_default());
    if greeting != expected {
        return Err(io::Error::other(format!(
            "{greeting:?} in place of {expected:?}"
        )));
    }
    client.echo(format!("connection {number}").as_bytes())?;
    client.end()
}

fn abort(
    args: &Args,
    target: &Target,
    point: Point,
    leave: Leave,
    random: &mut Random,
) -> io::Result<()> {
    let client = match point {
        // A CONNECT client leaves before the answer to its request. A steered one is connected to
        // the proxy at once.
        Point::Connecting => target.open(args.source, PATIENCE)?,
        Point::Requested => {
            let mut client = target.connect(*random.one_of(&args.greet), PATIENCE)?;
            let length = usize::try_from(random.below(4000)).unwrap_or_default();
            client.write_all(&vec![b'r'; length])?;
            client
        }
        Point::Answered => {
            let mut client = target.connect(args.source, PATIENCE)?;
            read_some(&mut client, random.below(args.source_bytes))?;
            client
        }
    };
    client.leave(leave)
}

fn read_some(client: &mut Client, mut bytes: u64) -> io::Result<()> {
    let mut piece = [0; 8192];
    while bytes > 0 {
        let most = usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .min(piece.len());
        match client.read(&mut piece[..most])? {
            0 => return Ok(()),
            count => bytes -= count as u64,
        }
    }
    Ok(())
}
