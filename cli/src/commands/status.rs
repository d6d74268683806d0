//! `culvert status`: what is wrong and its fix first, then how everything is.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use culvert_daemon::counted;
use culvert_site::cloud_host::Ready;
use culvert_site::summary::{Edge, Proxy, Status};
use culvert_site::units::now_seconds;
use culvert_site::units::{milliseconds, span};
use culvert_site::verdict::{Problem, Verdict};

use crate::args::StatusArgs;
use crate::cloud_host::{ask_cloud_host, ask_ready};
use crate::hosts::{EdgeProgram, NoAnswer};
use crate::pages::Pages;
use crate::screen::{Screen, clean};
use crate::session::Session;
use crate::table::{Table, wrapped};

/// The pause before everything is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

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
        session.ask(Duration::ZERO, ask_cloud_host),
        ask_edge(&session.hosts.edge, session.timeout)
    );
    Status::of(&answers, edge, now_seconds())
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
    ask_ready(&mut pages).await
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
