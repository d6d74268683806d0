//! The forwarded ports that ConfigMap `culvert-forwards` names: one entry in each line of its
//! values. The keys are for people.
//!
//! An invalid ConfigMap is reported. Its last valid content stays in force, also after a restart.

use std::collections::BTreeSet;

use anyhow::Result;
use culvert_daemon::{Drain, Problem, chain};
use culvert_proxy_core::forward::{Forward, InvalidForward};
use culvert_proxy_core::state::{StateDir, StateFile};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::watch;

use super::Cluster;
use super::events::{Events, Occurrence};
use super::last_seen::LastSeen;

/// The name of the ConfigMap.
const CULVERT_FORWARDS: &str = "culvert-forwards";
/// The limit for entries. Each is a listener of every proxy.
const MAX_FORWARDS: usize = 64;
const LAST_GOOD: StateFile = StateFile {
    name: "cluster-forwards.json",
    what: "the entries that ConfigMap culvert-forwards last had",
};

/// The reason why a ConfigMap is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum InvalidForwards {
    #[error("{key}, line {line}: {problem}")]
    Entry {
        key: String,
        line: usize,
        problem: InvalidForward,
    },
    #[error("{key}, line {line}: {other} has port {} too: choose another port", other.listen.port())]
    Twice {
        key: String,
        line: usize,
        other: Forward,
    },
    #[error("{key}, line {line}: the proxy uses port {port} itself: choose another port")]
    Own { key: String, line: usize, port: u16 },
    #[error("it has more than {MAX_FORWARDS} entries")]
    TooMany,
}

/// The last entries that were good, without those on the proxy's own ports, which may be others now.
pub fn load(state: &StateDir, own_ports: &BTreeSet<u16>) -> Vec<Forward> {
    let last: Vec<String> = match state.read(LAST_GOOD) {
        Ok(last) => last.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(reason = chain(&error), "last good forwards not usable");
            return Vec::new();
        }
    };
    let mut forwards = Vec::new();
    for entry in last {
        if let Ok(forward) = entry.parse::<Forward>()
            && !own_ports.contains(&forward.listen.port())
        {
            forwards.push(forward);
        }
    }
    forwards
}

impl Cluster {
    /// Keeps `forwards_tx` equal to the ConfigMap until the drain begins. Entries on the proxy's
    /// own ports are mistakes.
    pub(crate) async fn follow_forwards(
        self,
        own_ports: BTreeSet<u16>,
        state: StateDir,
        events: Events,
        forwards_tx: watch::Sender<Vec<Forward>>,
        drain: Drain,
    ) -> Result<()> {
        let which = self.own(CULVERT_FORWARDS);
        let mut changes = std::pin::pin!(self.follow(which.clone()));
        let mut reported = Problem::default();
        let mut last = LastSeen::new(state, LAST_GOOD);
        loop {
            let found = tokio::select! {
                found = changes.next() => found,
                () = last.write_again() => continue,
                () = drain.begun() => return Ok(()),
            };
            let Some(found) = found else {
                anyhow::bail!("the watch of ConfigMap {which} has ended")
            };
            let problem = match parse(found.as_ref(), &own_ports) {
                Ok(forwards) => {
                    if is_news(&forwards_tx, &forwards) {
                        let entries: Vec<String> =
                            forwards.iter().map(ToString::to_string).collect();
                        tracing::info!(?entries, "forwarded ports of the cluster");
                        last.write(entries).await;
                    }
                    None
                }
                Err(invalid) => Some(invalid.to_string()),
            };
            if let Some(problem) = reported.record(problem).map(str::to_owned) {
                tracing::error!(
                    config_map = %which,
                    reason = problem,
                    "ConfigMap not used, keeping the last good forwards"
                );
                let uid = found.and_then(|found| found.metadata.uid);
                let uid = uid.unwrap_or_default();
                events.report(Occurrence::invalid_forwards(which.clone(), uid, &problem));
            }
        }
    }
}

/// Publishes the entries. Returns whether they differ from those before.
fn is_news(forwards_tx: &watch::Sender<Vec<Forward>>, forwards: &[Forward]) -> bool {
    forwards_tx.send_if_modified(|known| {
        let is_news = *known != forwards;
        *known = forwards.to_vec();
        is_news
    })
}

/// Empty lines, and those that begin with `#`, say nothing.
fn parse(
    found: Option<&ConfigMap>,
    own_ports: &BTreeSet<u16>,
) -> Result<Vec<Forward>, InvalidForwards> {
    let mut forwards: Vec<Forward> = Vec::new();
    let Some(data) = found.and_then(|found| found.data.as_ref()) else {
        return Ok(forwards);
    };
    for (key, text) in data {
        for (line, entry) in (1..).zip(text.lines()) {
            let entry = entry.trim();
            if entry.is_empty() || entry.starts_with('#') {
                continue;
            }
            let key = key.clone();
            let forward: Forward = match entry.parse() {
                Ok(forward) => forward,
                Err(problem) => return Err(InvalidForwards::Entry { key, line, problem }),
            };
            let port = forward.listen.port();
            if own_ports.contains(&port) {
                return Err(InvalidForwards::Own { key, line, port });
            }
            if let Some(other) = forwards.iter().find(|other| other.conflicts_with(&forward)) {
                let other = other.clone();
                return Err(InvalidForwards::Twice { key, line, other });
            }
            forwards.push(forward);
            if forwards.len() > MAX_FORWARDS {
                return Err(InvalidForwards::TooMany);
            }
        }
    }
    Ok(forwards)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(data: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let data = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
            .collect();
        let map = ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        };
        match parse(Some(&map), &[7409].into()) {
            Ok(forwards) => Ok(forwards.iter().map(ToString::to_string).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn each_line_is_an_entry() {
        assert_eq!(parse(None, &BTreeSet::new()), Ok(Vec::new()));
        let found = entries(&[
            (
                "ssh",
                "# to the nodes\n2222=edge-1:22\n\n 2223=edge-2:22 \n",
            ),
            ("api", "127.0.0.1:6444=site=berlin:6443"),
        ]);
        assert_eq!(
            found.unwrap(),
            [
                "127.0.0.1:6444=site=berlin:6443",
                "[::]:2222=edge-1:22",
                "[::]:2223=edge-2:22"
            ]
        );
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        let many: Vec<String> = (1..=65).map(|port| format!("{port}=edge-1:22")).collect();
        for (text, words) in [
            (
                "2222=edge-1:22\n2223=edge-1",
                "ssh, line 2: \"2223=edge-1\"",
            ),
            (
                "2222=edge-1:22\n\n2222=edge-2:22",
                "ssh, line 3: [::]:2222=edge-1:22 has port 2222 too",
            ),
            (
                "7409=edge-1:22",
                "ssh, line 1: the proxy uses port 7409 itself",
            ),
            (&many.join("\n"), "it has more than 64 entries"),
        ] {
            let error = entries(&[("ssh", text)]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
