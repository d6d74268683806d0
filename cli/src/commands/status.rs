//! `culvert status`: what is wrong and its fix first, then how everything is.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use culvert_api::proto::control::ProxyStatus;
use culvert_daemon::counted;
use serde::Serialize;

use crate::answered::{Answered, all_ok};
use crate::args::StatusArgs;
use crate::cloud_host::{CloudHost, Ready};
use crate::node::nodes;
use crate::pages::Pages;
use crate::places::{EdgeProgram, NoAnswer};
use crate::screen::{Screen, clean, milliseconds, span};
use crate::session::{Session, now_seconds};
use crate::table::{Table, wrapped};
use crate::verdict::{self, Problem, Verdict};

/// The pause before everything is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The answer.
#[derive(Debug, Serialize)]
struct Status {
    verdict: Verdict,
    problems: Vec<Problem>,
    nodes: NodeCounts,
    streams: StreamCounts,
    proxies: Vec<Proxy>,
    /// Programs of an edge node, on which this was asked.
    edge: Vec<Edge>,
}

#[derive(Debug, Serialize)]
struct NodeCounts {
    online: usize,
    offline: usize,
}

#[derive(Debug, Serialize)]
struct StreamCounts {
    /// Clients' connections under way.
    running: u32,
    /// Those that have sent and have no answer.
    waiting: usize,
}

/// A proxy, and the redirector beside it.
#[derive(Debug, Serialize)]
struct Proxy {
    host: String,
    /// The name by which it was asked, such as that of ssh.
    asked_as: Option<String>,
    verdict: Verdict,
    /// `ready`, `not ready`, `draining`, `not asked` (another proxy says this) or `no answer`.
    state: &'static str,
    /// What it answers in place of the rest.
    error: Option<String>,
    version: String,
    nodes: u32,
    tunnels: u32,
    streams: u32,
    round_trip_ms: Option<RoundTrips>,
    /// What steers on this host: `both`, `ebpf`, `nftables`, `none`; `-` without a redirector.
    steers: String,
    /// When the certificate that it shows ends, in seconds since 1970.
    certificate_ends: Option<u64>,
}

/// Of the tunnels that end at a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct RoundTrips {
    least: f64,
    median: f64,
    most: f64,
}

/// An agent or a hub of this host.
#[derive(Debug, Serialize)]
struct Edge {
    program: &'static str,
    verdict: Verdict,
    /// What is missing, or what the program adds.
    remarks: Vec<String>,
}

/// Prints the status, again and again with `--wait`.
///
/// # Errors
/// Something is wrong.
pub(super) async fn run(session: &Session, arguments: &StatusArgs) -> Result<()> {
    let until = arguments.wait.map(|wait| Instant::now() + wait);
    let mut said = String::new();
    let status = loop {
        let status = ask(session).await;
        let is_over = match until {
            Some(until) => Instant::now() >= until,
            None => true,
        };
        if status.verdict < Verdict::Failure || is_over {
            break status;
        }
        let waits = waits_for(&status);
        if waits != said {
            eprint!("{waits}");
            said = waits;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    };
    session.print(&status, text)?;
    let mut failures = status.problems;
    failures.retain(|problem| problem.verdict == Verdict::Failure);
    if status.verdict == Verdict::Failure {
        bail!(
            "{}",
            counted(failures.len(), "thing is wrong", "things are wrong")
        );
    }
    Ok(())
}

fn waits_for(status: &Status) -> String {
    let mut text = String::new();
    for problem in &status.problems {
        if problem.verdict == Verdict::Failure {
            text += &format!(
                "# waits: {}: {}\n",
                clean(&problem.subject),
                clean(&problem.found)
            );
        }
    }
    text
}

async fn ask(session: &Session) -> Status {
    let (answers, edge) = tokio::join!(
        session.ask(Duration::ZERO, CloudHost::ask),
        ask_edge(&session.places.edge, session.timeout)
    );
    status(&answers, edge, now_seconds())
}

/// Asks the programs of this host, if it is an edge node.
async fn ask_edge(programs: &[EdgeProgram], timeout: Duration) -> Vec<Edge> {
    let mut edge = Vec::new();
    for EdgeProgram {
        program,
        admin_socket,
    } in programs
    {
        let asked = tokio::time::timeout(timeout, ask_socket(admin_socket)).await;
        let (verdict, remarks) = match asked {
            Ok(Ok(ready)) if ready.missing.is_empty() => (Verdict::Ok, ready.remarks),
            Ok(Ok(ready)) => (Verdict::Failure, ready.missing),
            Ok(Err(unanswered)) => (Verdict::Failure, vec![unanswered.text]),
            Err(_) => (Verdict::Failure, vec!["no answer in time".to_owned()]),
        };
        edge.push(Edge {
            program,
            verdict,
            remarks,
        });
    }
    edge
}

async fn ask_socket(admin_socket: &Path) -> Result<Ready, NoAnswer> {
    let mut pages = Pages::connect_socket(admin_socket).await?;
    Ready::ask(&mut pages).await
}

/// Puts the answers together. Pure.
fn status(answers: &[Answered<CloudHost>], edge: Vec<Edge>, now_seconds: u64) -> Status {
    let nodes = nodes(all_ok(answers));
    let mut problems = verdict::problems(answers, &nodes, now_seconds);
    for program in &edge {
        if program.verdict != Verdict::Ok {
            problems.push(Problem {
                verdict: program.verdict,
                subject: program.program.to_owned(),
                found: program.remarks.join("; "),
                fix: format!("`journalctl -u {}` says more", program.program),
            });
        }
    }
    let online = nodes.iter().filter(|node| node.online).count();
    let mut streams = StreamCounts {
        running: 0,
        waiting: 0,
    };
    for host in all_ok(answers) {
        streams.running += host.proxies.first().map_or(0, |own| own.streams);
        streams.waiting += host.streams.iter().filter(|stream| stream.waits).count();
    }
    Status {
        verdict: verdict::worst(&problems),
        nodes: NodeCounts {
            online,
            offline: nodes.len() - online,
        },
        streams,
        proxies: proxies(answers, now_seconds),
        problems,
        edge,
    }
}

/// Those that were asked, then those that they know beside them.
fn proxies(answers: &[Answered<CloudHost>], now_seconds: u64) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    let mut asked: Vec<&str> = Vec::new();
    for answered in answers {
        let verdict = verdict::worst(&verdict::of_host(answered, now_seconds));
        match &answered.answer {
            Ok(host) => {
                asked.extend(host.proxies.first().map(|own| own.instance.as_str()));
                proxies.push(Proxy {
                    asked_as: Some(answered.place.clone()),
                    ..Proxy::answering(host, verdict)
                });
            }
            Err(unanswered) => proxies.push(Proxy {
                host: answered.place.clone(),
                asked_as: Some(answered.place.clone()),
                verdict,
                state: "no answer",
                error: Some(unanswered.text.clone()),
                ..Proxy::of(&ProxyStatus::default())
            }),
        }
    }
    for host in all_ok(answers) {
        for peer in host.peers() {
            // A host that was asked and did not answer has its row already, if it has that name.
            let is_listed = proxies
                .iter()
                .any(|proxy| proxy.error.is_some() && proxy.host == peer.host);
            if !asked.contains(&peer.instance.as_str()) && !is_listed {
                asked.push(&peer.instance);
                proxies.push(Proxy::of(peer));
            }
        }
    }
    proxies
}

impl Proxy {
    fn answering(host: &CloudHost, verdict: Verdict) -> Self {
        let own = host.proxies.first().cloned().unwrap_or_default();
        Self {
            verdict,
            state: if host.ready.missing.is_empty() {
                "ready"
            } else {
                "not ready"
            },
            round_trip_ms: RoundTrips::of(host),
            steers: host.steers(),
            ..Self::of(&own)
        }
    }

    /// What a proxy says of another one.
    fn of(status: &ProxyStatus) -> Self {
        let ends = status.certificate_ends;
        Self {
            host: status.host.clone(),
            asked_as: None,
            verdict: Verdict::Ok,
            state: if status.draining {
                "draining"
            } else {
                "not asked"
            },
            error: None,
            version: status.version.clone(),
            nodes: status.nodes,
            tunnels: status.tunnels,
            streams: status.streams,
            round_trip_ms: None,
            steers: "?".to_owned(),
            certificate_ends: (ends != 0).then_some(ends),
        }
    }
}

impl RoundTrips {
    fn of(host: &CloudHost) -> Option<Self> {
        let mut all = Vec::new();
        for tunnel in &host.tunnels {
            all.extend(tunnel.round_trip_ms());
        }
        all.sort_by(f64::total_cmp);
        Some(Self {
            least: *all.first()?,
            median: all[all.len() / 2],
            most: *all.last()?,
        })
    }
}

fn text(status: &Status, screen: &Screen) -> String {
    let mut text = problems_text(&status.problems, screen);
    if !status.proxies.is_empty() {
        let nodes = &status.nodes;
        text += &format!(
            "nodes    {} online, {} offline\n",
            nodes.online, nodes.offline
        );
        let streams = &status.streams;
        text += &format!(
            "streams  {} under way, {} for an answer\n\n",
            streams.running,
            counted(streams.waiting, "waits", "wait")
        );
        text += &proxy_table(&status.proxies).text(screen);
    }
    if !status.edge.is_empty() {
        let mut table = Table::new(&["PROGRAM", "REMARKS"]);
        for edge in &status.edge {
            let remarks = match edge.remarks.join("; ") {
                none if none.is_empty() => "ready".to_owned(),
                remarks => remarks,
            };
            table.row(edge.verdict, [edge.program.to_owned(), remarks]);
        }
        text += &table.text(screen);
    }
    text
}

/// Each with its fix below it.
fn problems_text(problems: &[Problem], screen: &Screen) -> String {
    if problems.is_empty() {
        let mark = screen.mark(Verdict::Ok);
        return format!("{mark}  nothing is wrong\n\n");
    }
    let mut text = String::new();
    for problem in problems {
        let mark = screen.mark(problem.verdict);
        let indent = " ".repeat(screen.mark_width() + 2);
        let found = format!("{}: {}", clean(&problem.subject), clean(&problem.found));
        let fix = format!("fix: {}", clean(&problem.fix));
        let found = wrapped(&found, screen, indent.len()).join(&format!("\n{indent}"));
        let fix = wrapped(&fix, screen, indent.len()).join(&format!("\n{indent}     "));
        text += &format!("{mark}  {found}\n{indent}{fix}\n");
    }
    text.push('\n');
    text
}

/// What is worth a word.
fn state_remark(state: &str) -> String {
    let is_usual = state == "ready";
    if is_usual { "" } else { state }.to_owned()
}

fn dash() -> String {
    "-".to_owned()
}

fn proxy_table(proxies: &[Proxy]) -> Table {
    let mut table = Table::new(&[
        "PROXY", "NODES", "TUNNELS", "STREAMS", "RTT", "STEERS", "VERSION", "CERT", "",
    ]);
    let now = now_seconds();
    for proxy in proxies {
        if let Some(error) = &proxy.error {
            table.row(proxy.verdict, [proxy.host.clone(), error.clone()]);
            continue;
        }
        let round_trip = proxy.round_trip_ms.map(|all| milliseconds(all.median));
        let ends = proxy
            .certificate_ends
            .map(|ends| span(ends.saturating_sub(now)));
        table.row(
            proxy.verdict,
            [
                proxy.host.clone(),
                proxy.nodes.to_string(),
                proxy.tunnels.to_string(),
                proxy.streams.to_string(),
                round_trip.unwrap_or_else(dash),
                proxy.steers.clone(),
                proxy.version.clone(),
                ends.unwrap_or_else(dash),
                state_remark(proxy.state),
            ],
        );
    }
    table
}
