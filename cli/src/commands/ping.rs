//! `culvert ping`: round trips to a node's agent in each tunnel, at whichever proxy it ends.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::proto::control as proto;
use culvert_site::answered::{Answered, all_ok};
use culvert_site::node::{all_names, is_named};
use culvert_site::units::milliseconds;
use culvert_site::verdict::Verdict;
use serde::Serialize;

use super::nodes::or_dash;
use super::{Unheard, report_unanswered, unheard};
use crate::args::PingArgs;
use crate::control::Control;
use crate::hosts::{Host, NoAnswer};
use crate::screen::Screen;
use crate::session::Session;
use crate::table::Table;
use crate::unknown_node::unknown_node;

/// The answer.
#[derive(Debug, Serialize)]
struct Pings {
    node: String,
    tunnels: Vec<TunnelPings>,
    unanswered: Vec<Unheard>,
}

/// The round trips in one tunnel.
#[derive(Debug, Default, PartialEq, Serialize)]
struct TunnelPings {
    proxy: String,
    tunnel: u64,
    /// Where the agent came from.
    agent: String,
    asked: u32,
    answered: u32,
    least_ms: Option<f64>,
    mean_ms: Option<f64>,
    most_ms: Option<f64>,
    /// Why there was no answer; empty: there was one to each.
    problem: String,
}

/// Asks in all tunnels.
///
/// # Errors
/// No agent has answered.
pub(super) async fn run(session: &Session, arguments: &PingArgs) -> Result<()> {
    let pauses = arguments.interval.saturating_mul(arguments.count.get());
    // Each time may take as long as the first one.
    let longer = pauses.saturating_add(session.timeout.saturating_mul(arguments.count.get()));
    let answers = session.ask(longer, |host| ask(host, arguments)).await;
    let answered = all_ok(&answers);
    let is_known = answered.iter().any(|answer| answer.is_known);
    let nodes = answered.iter().map(|answer| &answer.nodes);
    let pings = Pings {
        node: arguments.node.to_string(),
        tunnels: tunnels(&answers),
        unanswered: unheard(&answers),
    };
    report_unanswered(&answers)?;
    if !is_known {
        bail!(unknown_node(arguments.node.as_str(), all_names(nodes)));
    }
    session.print(&pings, text)?;
    if pings.tunnels.is_empty() {
        bail!(
            "{} has no tunnel: `culvert why {0}` says why",
            arguments.node
        );
    }
    if pings.tunnels.iter().all(|tunnel| tunnel.answered == 0) {
        bail!(
            "{} does not answer in any tunnel: `culvert why {0}` says why",
            arguments.node
        );
    }
    Ok(())
}

fn tunnels(answers: &[Answered<ProxyPings>]) -> Vec<TunnelPings> {
    let mut tunnels = Vec::new();
    for answer in all_ok(answers) {
        tunnels.extend(answer.tunnels.iter().map(TunnelPings::of));
    }
    tunnels
}

/// What one proxy has measured.
#[derive(Debug, Default)]
struct ProxyPings {
    /// Whether it knows the node.
    is_known: bool,
    /// The nodes that it knows, if it does not know this one.
    nodes: Vec<proto::NodeStatus>,
    tunnels: Vec<Times>,
}

/// The times of one tunnel.
#[derive(Debug, Default)]
struct Times {
    proxy: String,
    tunnel: u64,
    agent: String,
    asked: u32,
    times: Vec<Duration>,
    problem: String,
}

async fn ask(host: &Host, arguments: &PingArgs) -> Result<ProxyPings, NoAnswer> {
    let mut control = Control::connect(host).await?;
    let proxies = control.list_proxies(proto::ListProxiesRequest {}).await?;
    let own = proxies.proxies.into_iter().next().unwrap_or_default();
    let nodes = control.list_nodes(proto::ListNodesRequest {}).await?.nodes;
    let Some(found) = nodes
        .iter()
        .find(|status| is_named(status, &arguments.node))
    else {
        return Ok(ProxyPings {
            nodes,
            ..ProxyPings::default()
        });
    };
    let tunnels = found.tunnels;
    let mut all: BTreeMap<u64, Times> = BTreeMap::new();
    for round in 0..arguments.count.get() {
        if tunnels == 0 {
            break;
        }
        if round > 0 {
            tokio::time::sleep(arguments.interval).await;
        }
        let node = arguments.node.to_string();
        let answer = control.ping(proto::PingRequest { node }).await?;
        for tunnel in answer.tunnels {
            let times = all.entry(tunnel.tunnel).or_default();
            times.proxy.clone_from(&own.host);
            times.record(tunnel);
        }
    }
    Ok(ProxyPings {
        is_known: true,
        tunnels: all.into_values().collect(),
        nodes: Vec::new(),
    })
}

impl Times {
    fn record(&mut self, ping: proto::TunnelPing) {
        self.tunnel = ping.tunnel;
        self.agent = ping.agent;
        self.asked += 1;
        if ping.problem.is_empty() {
            self.times.push(Duration::from_micros(ping.micros));
        } else {
            self.problem = ping.problem;
        }
    }
}

fn in_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn format_time(time_ms: Option<f64>) -> String {
    or_dash(time_ms.map(milliseconds).unwrap_or_default())
}

impl TunnelPings {
    fn of(times: &Times) -> Self {
        let answered = u32::try_from(times.times.len()).unwrap_or(times.asked);
        let total: Duration = times.times.iter().sum();
        Self {
            proxy: times.proxy.clone(),
            tunnel: times.tunnel,
            agent: times.agent.clone(),
            asked: times.asked,
            answered,
            least_ms: times.times.iter().min().copied().map(in_ms),
            mean_ms: total.checked_div(answered).map(in_ms),
            most_ms: times.times.iter().max().copied().map(in_ms),
            problem: times.problem.clone(),
        }
    }
}

/// Where the agent came from, and what was wrong.
fn from(tunnel: &TunnelPings) -> String {
    let colon = if tunnel.problem.is_empty() { "" } else { ": " };
    format!("{}{colon}{}", tunnel.agent, tunnel.problem)
}

fn text(pings: &Pings, screen: &Screen) -> String {
    let mut table = Table::new(&[
        "PROXY",
        "TUNNEL",
        "ASKED",
        "LOST",
        "LEAST",
        "MEAN",
        "MOST",
        "AGENT FROM",
    ]);
    for tunnel in &pings.tunnels {
        let verdict = match tunnel.answered {
            0 => Verdict::Failure,
            some if some < tunnel.asked => Verdict::Warning,
            _ => Verdict::Ok,
        };
        table.row(
            verdict,
            [
                tunnel.proxy.clone(),
                tunnel.tunnel.to_string(),
                tunnel.asked.to_string(),
                (tunnel.asked - tunnel.answered).to_string(),
                format_time(tunnel.least_ms),
                format_time(tunnel.mean_ms),
                format_time(tunnel.most_ms),
                from(tunnel),
            ],
        );
    }
    table.text(screen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_counted_and_said() {
        let mut times = Times::default();
        for (micros, problem) in [(1_500, ""), (0, "no answer"), (2_500, "")] {
            times.record(proto::TunnelPing {
                tunnel: 3,
                agent: "192.0.2.1:4000".into(),
                micros,
                problem: problem.into(),
            });
        }
        let pings = TunnelPings::of(&times);
        assert_eq!((pings.asked, pings.answered), (3, 2));
        assert_eq!((pings.least_ms, pings.mean_ms), (Some(1.5), Some(2.0)));
        assert_eq!(pings.problem, "no answer");
        assert_eq!(TunnelPings::of(&Times::default()).mean_ms, None);
    }
}
