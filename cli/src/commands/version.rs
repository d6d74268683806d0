//! `culvert version --all`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use culvert_site::answered::{Answered, all_ok};
use culvert_site::cloud_host::{CloudHost, Redirector};
use culvert_site::verdict::Verdict;
use serde::Serialize;

use super::{Unheard, report_unanswered, unheard};
use crate::cloud_host::ask_cloud_host;
use crate::screen::Screen;
use crate::session::Session;
use crate::table::Table;

/// The answer.
#[derive(Debug, Serialize)]
struct Versions {
    /// The version of this program.
    culvert: &'static str,
    programs: Vec<Program>,
    unanswered: Vec<Unheard>,
}

/// Programs of one version.
#[derive(Debug, Serialize)]
struct Program {
    program: &'static str,
    version: String,
    /// How many there are.
    count: usize,
    /// Hosts or nodes, sorted.
    at: Vec<String>,
}

/// Asks all hosts.
///
/// # Errors
/// None has answered.
pub(super) async fn run(session: &Session) -> Result<()> {
    let answers = session.ask(Duration::ZERO, ask_cloud_host).await;
    report_unanswered(&answers)?;
    let versions = Versions {
        culvert: culvert_daemon::BUILD,
        programs: programs(&answers),
        unanswered: unheard(&answers),
    };
    session.print(&versions, text)
}

/// Hosts or nodes, by program and version.
#[derive(Default)]
struct ProgramIndex(BTreeMap<(&'static str, String), Vec<String>>);

impl ProgramIndex {
    fn add(&mut self, program: &'static str, version: &str, at: &str) {
        let hosts = self.0.entry((program, version.to_owned())).or_default();
        if !hosts.iter().any(|known| known == at) {
            hosts.push(at.to_owned());
        }
    }
}

fn programs(answers: &[Answered<CloudHost>]) -> Vec<Program> {
    let mut found = ProgramIndex::default();
    for host in all_ok(answers) {
        for proxy in &host.proxies {
            found.add("culvert-proxy", &proxy.version, &proxy.host);
        }
        if let Redirector::Answers(redirector) = &host.redirector {
            found.add("culvert-redirector", &redirector.version, host.name());
        }
        for tunnel in &host.tunnels {
            found.add("culvert-agent", &tunnel.agent_version, &tunnel.node);
        }
    }
    let mut programs = Vec::new();
    for ((program, version), mut at) in found.0 {
        at.sort();
        programs.push(Program {
            program,
            version,
            count: at.len(),
            at,
        });
    }
    programs
}

fn text(versions: &Versions, screen: &Screen) -> String {
    let mut table = Table::new(&["PROGRAM", "VERSION", "COUNT", "AT"]);
    table.row(
        Verdict::Ok,
        ["culvert", versions.culvert, "1", "this program"].map(str::to_owned),
    );
    for program in &versions.programs {
        let at = program.at.join(", ");
        let count = program.count.to_string();
        let cells = [
            program.program.to_owned(),
            program.version.clone(),
            count,
            at,
        ];
        table.row(Verdict::Ok, cells);
    }
    table.text(screen)
}
