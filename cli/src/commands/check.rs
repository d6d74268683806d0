//! `culvert check`: runs `culvert-proxy check-host` on every cloud host. It looks at its own host, so
//! it has to run there.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_daemon::counted;
use culvert_site::answered::Answered;
use culvert_site::verdict::Verdict;
use serde::{Deserialize, Serialize};

use crate::args::CheckArgs;
use crate::cloud_host::has_redirector;
use crate::hosts::{Finished, Host, NoAnswer};
use crate::screen::{Screen, clean};
use crate::session::Session;
use crate::table::wrapped;

/// A check dials, and asks DNS servers and the cluster.
const CHECK_TIME: Duration = Duration::from_secs(30);
/// Columns before what a check found, after its mark.
const NAME_WIDTH: usize = 14;

/// The answer.
#[derive(Debug, Serialize)]
struct Checks {
    verdict: Verdict,
    hosts: Vec<HostChecks>,
}

#[derive(Debug, Serialize)]
struct HostChecks {
    host: String,
    verdict: Verdict,
    /// Why there are no checks.
    error: Option<String>,
    checks: Vec<Finding>,
}

/// As `culvert-proxy check-host` has it.
#[derive(Debug, Deserialize, Serialize)]
struct Finding {
    check: String,
    verdict: Verdict,
    found: String,
    fix: String,
}

#[derive(Debug, Deserialize)]
struct Page {
    checks: Vec<Finding>,
}

/// Checks all cloud hosts.
///
/// # Errors
/// A check has failed, or a host has not answered.
pub(super) async fn run(session: &Session, arguments: &CheckArgs) -> Result<()> {
    let answers = session.ask(CHECK_TIME, |host| ask(host, arguments)).await;
    let hosts: Vec<HostChecks> = answers.into_iter().map(HostChecks::of).collect();
    let verdicts = hosts.iter().map(|host| host.verdict);
    let checks = Checks {
        verdict: verdicts.max().unwrap_or(Verdict::Ok),
        hosts,
    };
    session.print(&checks, text)?;
    let mut failed = checks.hosts;
    failed.retain(|host| host.verdict == Verdict::Failure);
    match failed.len() {
        0 => Ok(()),
        count => bail!("checks failed on {}", counted(count, "host", "hosts")),
    }
}

async fn ask(host: &Host, arguments: &CheckArgs) -> Result<Vec<Finding>, NoAnswer> {
    let mut words = vec!["check-host"];
    if host.is_in_cluster() {
        words.push("--kubernetes");
    }
    let has_redirector = has_redirector(host).await;
    if !has_redirector {
        words.push("--without-redirector");
    }
    words.extend(arguments.proxy_flags.iter().map(String::as_str));
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let finished = host.run_proxy(&words).await?;
    let mut findings = findings(&finished)?;
    if !has_redirector {
        findings.insert(0, Finding::without_redirector());
    }
    Ok(findings)
}

impl Finding {
    /// Whether the host is to have one, only its administrator knows.
    fn without_redirector() -> Self {
        Self {
            check: "redirector".to_owned(),
            verdict: Verdict::Ok,
            found: "no redirector on this host: clients come by the proxy's own ports".to_owned(),
            fix: String::new(),
        }
    }
}

/// The checks, which a command prints that fails too.
fn findings(finished: &Finished) -> Result<Vec<Finding>> {
    let page = serde_json::from_str::<Page>(&finished.out);
    let page =
        page.with_context(|| format!("culvert-proxy check-host: {}", finished.err.trim()))?;
    Ok(page.checks)
}

impl HostChecks {
    fn of(answered: Answered<Vec<Finding>>) -> Self {
        match answered.answer {
            Ok(checks) => Self {
                host: answered.host,
                verdict: checks
                    .iter()
                    .map(|check| check.verdict)
                    .max()
                    .unwrap_or(Verdict::Ok),
                error: None,
                checks,
            },
            Err(unanswered) => Self {
                host: answered.host,
                verdict: Verdict::Failure,
                error: Some(unanswered.text),
                checks: Vec::new(),
            },
        }
    }
}

fn text(checks: &Checks, screen: &Screen) -> String {
    let mut text = String::new();
    for host in &checks.hosts {
        text += &format!("{}\n", clean(&host.host));
        if let Some(error) = &host.error {
            text += &line(screen, Verdict::Failure, "answer", error, "");
        }
        for Finding {
            check,
            verdict,
            found,
            fix,
        } in &host.checks
        {
            text += &line(screen, *verdict, check, found, fix);
        }
    }
    text
}

fn line(screen: &Screen, verdict: Verdict, name: &str, found: &str, fix: &str) -> String {
    let mark = screen.mark(verdict);
    let column = 2 + screen.mark_width() + 2 + NAME_WIDTH;
    let indent = format!("\n{}", " ".repeat(column));
    let found = wrapped(&clean(found), screen, column).join(&indent);
    let mut text = format!("  {mark}  {:<NAME_WIDTH$}{found}", clean(name));
    if !fix.is_empty() {
        let fix = wrapped(&format!("fix: {}", clean(fix)), screen, column);
        text += &format!("{indent}{}", fix.join(&indent));
    }
    text + "\n"
}
