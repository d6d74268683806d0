//! How bad something is. All of it is judged here, so that a row, its mark and the exit status
//! cannot differ. Pure.

use std::time::Duration;

use culvert_daemon::counted;
use serde::{Deserialize, Serialize};

use crate::answered::{Answered, all_ok};
use crate::cloud_host::{CloudHost, Ready, Redirector};
use crate::fixes;
use crate::node::Node;

/// A backend that has not answered for so long is worth a look.
const LONG_WAIT: Duration = Duration::from_secs(30);
/// The part of a certificate's life that is left when something keeps it from being renewed. All are
/// renewed before a third is left.
const LITTLE_LIFE: u64 = 10;
/// Names in one line.
const MAX_NAMES: usize = 8;

/// How bad it is; the words are those of `culvert-proxy check-host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing is wrong.
    Ok,
    /// Worth a look; what can be reached is reached.
    Warning,
    /// Something that should work does not.
    Failure,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad it is.
    pub verdict: Verdict,
    /// The host, or the nodes.
    pub subject: String,
    /// What is wrong with it.
    pub found: String,
    /// What to do.
    pub fix: String,
}

/// The worst of some problems.
pub fn worst(problems: &[Problem]) -> Verdict {
    let verdicts = problems.iter().map(|problem| problem.verdict);
    verdicts.max().unwrap_or(Verdict::Ok)
}

/// What is wrong with the hosts and the nodes, the worst first.
pub fn problems(answers: &[Answered<CloudHost>], nodes: &[Node], now_seconds: u64) -> Vec<Problem> {
    let mut problems = Vec::new();
    for answered in answers {
        problems.extend(of_host(answered, now_seconds));
    }
    problems.extend(of_versions(answers));
    problems.extend(of_offline(nodes));
    problems.extend(nodes.iter().filter_map(of_misplaced));
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.verdict));
    problems
}

/// What is wrong with one host.
pub fn of_host(answered: &Answered<CloudHost>, now_seconds: u64) -> Vec<Problem> {
    let host = match &answered.answer {
        Ok(host) => host,
        Err(unanswered) => {
            return vec![Problem {
                verdict: Verdict::Failure,
                subject: answered.host.clone(),
                found: unanswered.text.clone(),
                fix: unanswered.fix.to_owned(),
            }];
        }
    };
    let mut problems = Vec::new();
    let subject = host.name();
    let mut add = ProblemList {
        subject,
        problems: &mut problems,
    };
    of_ready(&mut add, "culvert-proxy", &host.ready);
    match &host.redirector {
        Redirector::Absent | Redirector::NotAsked => {}
        Redirector::Silent(text) => add.failure(
            format!("culvert-redirector: {text}"),
            fixes::START_REDIRECTOR,
        ),
        Redirector::Answers(redirector) => {
            of_ready(&mut add, "culvert-redirector", &redirector.ready);
        }
    }
    for peer in host.peers() {
        if peer.links == 0 && !peer.draining {
            add.warning(
                format!("it has no link to proxy {}", peer.host),
                "open TCP port 7401 between them; the log of this proxy says why",
            );
        }
    }
    of_certificates(&mut add, host, now_seconds);
    of_waits(&mut add, host);
    if !host.note.is_empty() {
        add.warning(
            host.note.clone(),
            "`culvert check` says what is wrong with the API server",
        );
    }
    problems
}

/// Collects the problems of one host.
struct ProblemList<'a> {
    subject: &'a str,
    problems: &'a mut Vec<Problem>,
}

impl ProblemList<'_> {
    fn add(&mut self, verdict: Verdict, found: String, fix: &str) {
        self.problems.push(Problem {
            verdict,
            subject: self.subject.to_owned(),
            found,
            fix: fix.to_owned(),
        });
    }

    fn warning(&mut self, found: String, fix: &str) {
        self.add(Verdict::Warning, found, fix);
    }

    fn failure(&mut self, found: String, fix: &str) {
        self.add(Verdict::Failure, found, fix);
    }
}

fn of_ready(add: &mut ProblemList<'_>, program: &str, ready: &Ready) {
    for missing in &ready.missing {
        add.failure(format!("{program} is not ready: {missing}"), fixes::CHECK);
    }
    for remark in &ready.remarks {
        add.warning(format!("{program}: {remark}"), fixes::CHECK);
    }
}

fn of_certificates(add: &mut ProblemList<'_>, host: &CloudHost, now_seconds: u64) {
    for certificate in &host.certificates {
        let left = certificate.not_after.saturating_sub(now_seconds);
        let life = certificate.not_after.saturating_sub(certificate.not_before);
        if left == 0 {
            add.failure(
                format!("the certificate of {} has ended", certificate.owner),
                fixes::RENEW,
            );
        } else if left < life / LITTLE_LIFE {
            let days = left / 86_400;
            add.warning(
                format!("the certificate of {} ends in {days} d", certificate.owner),
                fixes::RENEW,
            );
        }
    }
}

fn of_waits(add: &mut ProblemList<'_>, host: &CloudHost) {
    let long = LONG_WAIT.as_secs();
    let mut destinations: Vec<&str> = Vec::new();
    let mut count = 0_u64;
    for stream in &host.streams {
        if stream.waits && stream.idle_seconds >= long {
            count += 1;
            if !destinations.contains(&stream.destination.as_str()) {
                destinations.push(&stream.destination);
            }
        }
    }
    if count > 0 {
        add.warning(
            format!(
                "{} for an answer for more than {long} s: {}",
                counted(count, "stream waits", "streams wait"),
                named(&destinations)
            ),
            "`culvert streams --idle 30s` lists them; ask the backend on its own node",
        );
    }
}

/// Programs of several versions: an upgrade that has not ended.
fn of_versions(answers: &[Answered<CloudHost>]) -> Option<Problem> {
    let mut versions: Vec<&str> = Vec::new();
    for host in all_ok(answers) {
        versions.extend(host.proxies.iter().map(|proxy| proxy.version.as_str()));
    }
    versions.sort_unstable();
    versions.dedup();
    if versions.len() < 2 {
        return None;
    }
    Some(Problem {
        verdict: Verdict::Warning,
        subject: "proxies".to_owned(),
        found: format!("they have different versions: {}", named(&versions)),
        fix: "end the upgrade; `culvert version --all` says which host has which".to_owned(),
    })
}

/// All nodes without a tunnel.
fn of_offline(nodes: &[Node]) -> Option<Problem> {
    let mut offline = Vec::new();
    for node in nodes {
        if !node.online {
            offline.push(node.node.as_str());
        }
    }
    let first = *offline.first()?;
    Some(Problem {
        verdict: Verdict::Failure,
        subject: named(&offline),
        found: format!(
            "offline: {} without a tunnel",
            counted(offline.len(), "node", "nodes")
        ),
        fix: format!("`culvert why {first}` says since when, and why"),
    })
}

/// A node whose agents are not where it is.
fn of_misplaced(node: &Node) -> Option<Problem> {
    if node.misplaced.is_empty() {
        return None;
    }
    Some(Problem {
        verdict: of_node(node),
        subject: node.node.clone(),
        found: node.misplaced.clone(),
        fix: node.fix.clone(),
    })
}

/// How bad it is with a node.
pub fn of_node(node: &Node) -> Verdict {
    if !node.online {
        Verdict::Failure
    } else if !node.misplaced.is_empty() || node.addresses.iter().any(|own| !own.problem.is_empty())
    {
        Verdict::Warning
    } else {
        Verdict::Ok
    }
}

/// How bad it is with a connection that waits for its backend for so long; `None`: it does not.
pub fn of_wait(waits_seconds: Option<u64>) -> Verdict {
    match waits_seconds {
        Some(seconds) if seconds >= LONG_WAIT.as_secs() => Verdict::Warning,
        Some(_) | None => Verdict::Ok,
    }
}

/// The names with commas between them, or the first of them.
fn named(names: &[&str]) -> String {
    let shown = names.len().min(MAX_NAMES);
    let text = names[..shown].join(", ");
    match names.len() - shown {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}
