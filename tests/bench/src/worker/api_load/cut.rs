//! A link that drops every packet, as a mobile network does, and what clients notice of it.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hyper::StatusCode;
use tokio::task::JoinSet;
use tokio::time::interval;

use super::Figures;
use super::connection::{Target, ask};

/// Time from the begin of one request to the next.
const EVERY: Duration = Duration::from_millis(200);
/// A request that takes longer counts as this long. YurtHub lets some hang for 45 s.
const LONGEST: Duration = Duration::from_secs(70);
/// Requests before the cut: the link is in use.
const BEFORE: Duration = Duration::from_secs(2);

/// One request. The times are those since the first one.
struct Request {
    started: Duration,
    ended: Duration,
    good: bool,
}

/// Drops the packets while requests without a deadline come at a steady rate, each on a connection
/// of its own; ends when all are answered.
pub(super) async fn run(target: &Target, path: &str, address: SocketAddr) -> Result<Figures> {
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    let mut answered: Vec<Request> = Vec::new();
    let mut pace = interval(EVERY);
    let mut cut_at = None;
    loop {
        pace.tick().await;
        if cut_at.is_none() && begin.elapsed() >= BEFORE {
            sever(address)?;
            cut_at = Some(begin.elapsed());
        }
        while let Some(done) = tasks.try_join_next() {
            answered.push(done?);
        }
        let cut_at = cut_at.unwrap_or(Duration::MAX);
        if is_noticed(&answered, cut_at) || begin.elapsed() > BEFORE + LONGEST {
            break;
        }
        tasks.spawn(one(target.clone(), path.to_owned(), begin));
    }
    while let Some(done) = tasks.join_next().await {
        answered.push(done?);
    }
    let cut_at = cut_at.context("the cut was not made")?;
    Ok(figures(&answered, cut_at))
}

/// Whether a request since the cut was answered well.
fn is_noticed(answered: &[Request], cut_at: Duration) -> bool {
    answered
        .iter()
        .any(|request| request.started >= cut_at && request.good)
}

fn figures(answered: &[Request], cut_at: Duration) -> Figures {
    let good = answered
        .iter()
        .filter(|request| request.started >= cut_at && request.good);
    let noticed = good.map(|request| request.ended - cut_at).min();
    let longest = answered
        .iter()
        .map(|request| request.ended - request.started)
        .max();
    let errors = answered.iter().filter(|request| !request.good).count();
    vec![
        ("noticed_s", noticed.unwrap_or(LONGEST).as_secs_f64()),
        ("longest_s", longest.unwrap_or_default().as_secs_f64()),
        ("errors", errors as f64),
    ]
}

async fn one(target: Target, path: String, begin: Instant) -> Request {
    let started = begin.elapsed();
    let answer = ask(&target, &path, LONGEST).await;
    Request {
        started,
        ended: begin.elapsed(),
        good: matches!(answer, Ok(StatusCode::OK)),
    }
}

/// Drops what comes from and to an address, in this network namespace, silently.
pub(super) fn sever(address: SocketAddr) -> Result<()> {
    let ip = address.ip();
    let port = address.port();
    nft(&format!(
        "add table ip cut
         add chain ip cut packets {{ type filter hook input priority -300; }}
         add rule ip cut packets ip daddr {ip} tcp dport {port} drop
         add rule ip cut packets ip saddr {ip} tcp sport {port} drop\n"
    ))
}

/// Lets the packets through again.
pub(super) fn heal() -> Result<()> {
    nft("add table ip cut\ndelete table ip cut\n")
}

fn nft(rules: &str) -> Result<()> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("start nft")?;
    child
        .stdin
        .take()
        .context("stdin")?
        .write_all(rules.as_bytes())?;
    ensure!(child.wait()?.success(), "nft refuses the rules");
    Ok(())
}
