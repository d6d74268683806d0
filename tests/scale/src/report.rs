//! The results: a table for people, JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::Config;
use crate::network::Wire;
use crate::proxies::Usage;
use crate::swarm::Arrival;

/// The aims of issue 16.
const BACK_WITHIN: f64 = 60.0;
const KB_A_TUNNEL: f64 = 40.0;
const PERCENT_OF_A_CORE: f64 = 10.0;
const KNOWN_WITHIN: f64 = 1.0;

/// All results.
#[derive(Debug)]
pub struct Report {
    pub(crate) config: Config,
    /// What each proxy uses with all nodes and no tunnel.
    pub(crate) empty: Vec<Usage>,
    pub(crate) arrival: Arrival,
    pub(crate) steady: Steady,
    pub(crate) changes: Vec<Duration>,
    /// How much later than the first one all proxies know that a node is online.
    pub(crate) spread: Vec<Duration>,
    /// What each proxy used just before all were killed.
    pub(crate) before: Vec<Usage>,
    pub(crate) restart: Restart,
}

/// While nothing but pings happened.
#[derive(Debug)]
pub(crate) struct Steady {
    pub(crate) time: Duration,
    /// Processor time of each proxy.
    pub(crate) processor: Vec<Duration>,
    pub(crate) tunnels: Vec<u32>,
    pub(crate) usage: Vec<Usage>,
    pub(crate) wire: Wire,
    /// Memory of all agents together, without their certificates.
    pub(crate) agents: u64,
}

/// After all proxies were killed.
#[derive(Debug)]
pub(crate) struct Restart {
    pub(crate) ready: Duration,
    pub(crate) arrival: Arrival,
    /// What each proxy has used since its start.
    pub(crate) usage: Vec<Usage>,
    pub(crate) busy: f64,
    pub(crate) evicted: f64,
    pub(crate) handshakes_failed: f64,
}

/// A line of the table.
struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    /// The value must not be larger.
    aim: Option<f64>,
}

impl Report {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let config = &self.config;
        let mut text = format!(
            "{} agents with {} tunnels each on {} proxies, {} agents behind each address\n\n",
            config.agents, config.tunnels, config.proxies, config.site
        );
        for row in self.rows() {
            let verdict = match row.aim {
                Some(aim) if row.value <= aim => format!("aim {aim}: met"),
                Some(aim) => format!("aim {aim}: MISSED"),
                None => String::new(),
            };
            // A String takes everything.
            writeln!(
                text,
                "{:<58} {:>10.1} {:<9} {verdict}",
                row.name, row.value, row.unit
            )
            .ok();
        }
        text + "\n"
            + &failed_attempts("at first", &self.arrival.failed)
            + &failed_attempts("after the restart", &self.restart.arrival.failed)
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let rows: serde_json::Map<_, _> = self
            .rows()
            .into_iter()
            .map(|row| (row.name, json!({ "value": row.value, "unit": row.unit })))
            .collect();
        json!({
            "agents": self.config.agents,
            "tunnels_of_an_agent": self.config.tunnels,
            "proxies": self.config.proxies,
            "agents_behind_an_address": self.config.site,
            "rows": rows,
            "failed_at_first": self.arrival.failed,
            "failed_after_the_restart": self.restart.arrival.failed,
        })
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = self.arrivals();
        rows.extend(self.memory());
        rows.extend(self.processors());
        rows.extend(self.costs());
        rows
    }

    fn arrivals(&self) -> Vec<Row> {
        let first = &self.arrival;
        let again = &self.restart.arrival;
        vec![
            row("all tunnels up at first", first.time.as_secs_f64(), "s"),
            row(
                "after a kill of all proxies: all are ready",
                self.restart.ready.as_secs_f64(),
                "s",
            ),
            Row {
                aim: Some(BACK_WITHIN),
                ..row(
                    "after a kill of all proxies: all tunnels back",
                    again.time.as_secs_f64(),
                    "s",
                )
            },
            row(
                "a tunnel is back after, half of them",
                again.within(0.5).as_secs_f64(),
                "s",
            ),
            row(
                "a tunnel is back after, 99 of 100",
                again.within(0.99).as_secs_f64(),
                "s",
            ),
            row(
                "a tunnel is back after, the last",
                again.within(1.0).as_secs_f64(),
                "s",
            ),
            row(
                "connections turned away as all permits were taken",
                self.restart.busy,
                "",
            ),
            row(
                "handshakes that lost their permit",
                self.restart.evicted,
                "",
            ),
            row("handshakes that failed", self.restart.handshakes_failed, ""),
        ]
    }

    fn memory(&self) -> Vec<Row> {
        let agents = f64::from(self.config.agents);
        let empty = resident(&self.empty);
        let steady = resident(&self.steady.usage);
        let tunnels = f64::from(self.config.all_tunnels());

        let proxies = self.empty.len() as f64;
        vec![
            row(
                "memory of a proxy: nodes, no tunnel",
                mb(empty) / proxies,
                "MB",
            ),
            row("memory of a proxy: steady", mb(steady) / proxies, "MB"),
            row(
                "memory of a proxy: peak at first",
                mb(peak(&self.before)),
                "MB",
            ),
            row(
                "memory of a proxy: peak after the restart",
                mb(peak(&self.restart.usage)),
                "MB",
            ),
            Row {
                aim: Some(KB_A_TUNNEL),
                ..row(
                    "memory of a proxy for each tunnel",
                    steady.saturating_sub(empty) as f64 / tunnels / 1e3,
                    "kB",
                )
            },
            row(
                "memory of a simulated agent for its tunnels",
                self.steady.agents as f64 / agents / 1e3,
                "kB",
            ),
        ]
    }

    fn processors(&self) -> Vec<Row> {
        let steady = &self.steady;
        let mut rows = Vec::new();
        for (number, (time, tunnels)) in steady.processor.iter().zip(&steady.tunnels).enumerate() {
            let name = format!("processor of proxy {number}, {tunnels} idle tunnels");
            rows.push(Row {
                aim: Some(PERCENT_OF_A_CORE),
                ..row(&name, percent(*time, steady.time), "% a core")
            });
        }
        let all: Duration = steady.processor.iter().sum();
        let all = percent(all, steady.time);
        rows.push(row("processor of all proxies", all, "% a core"));
        rows
    }

    fn costs(&self) -> Vec<Row> {
        let steady = &self.steady;
        let tunnels = f64::from(self.config.all_tunnels());
        let set_up: Duration = self.restart.usage.iter().map(|usage| usage.processor).sum();
        let hours = steady.time.as_secs_f64() / 3600.0;
        vec![
            row(
                "processor of a proxy from its restart, for each tunnel",
                set_up.as_secs_f64() * 1e3 / tunnels,
                "ms",
            ),
            row(
                "traffic of an idle tunnel, both ways",
                steady.wire.bytes as f64 / tunnels / hours / 1e3,
                "kB/hour",
            ),
            row(
                "packets of an idle tunnel, both ways",
                steady.wire.packets as f64 / tunnels / hours,
                "/hour",
            ),
            row(
                "a node added to the file is at all watchers within",
                slowest(&self.changes),
                "s",
            ),
            Row {
                aim: Some(KNOWN_WITHIN),
                ..row(
                    "a tunnel that is up is known to all other proxies within",
                    slowest(&self.spread),
                    "s",
                )
            },
        ]
    }
}

fn percent(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64() * 100.0
}

/// The longest of some times, in seconds.
fn slowest(times: &[Duration]) -> f64 {
    let slowest = times.iter().max().copied().unwrap_or_default();
    slowest.as_secs_f64()
}

fn failed_attempts(when: &str, failed: &BTreeMap<String, u64>) -> String {
    let list: Vec<_> = failed
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    format!("failed attempts {when}: {}\n", list.join(", "))
}

fn row(name: &str, value: f64, unit: &'static str) -> Row {
    Row {
        name: name.to_owned(),
        value,
        unit,
        aim: None,
    }
}

/// The largest peak of memory of one.
fn peak(usage: &[Usage]) -> u64 {
    let peak = usage.iter().map(|usage| usage.peak).max();
    peak.unwrap_or_default()
}

fn resident(usage: &[Usage]) -> u64 {
    usage.iter().map(|usage| usage.resident).sum()
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
