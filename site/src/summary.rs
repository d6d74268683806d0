//! How everything is: what is wrong and its fix, how many nodes and streams there are, and each proxy.
//! Pure.

use culvert_api::proto::control::ProxyStatus;
use serde::Serialize;

use crate::answered::{Answered, all_ok};
use crate::cloud_host::CloudHost;
use crate::node::nodes;
use crate::verdict::{self, Problem, Verdict};

/// The answer of `culvert status`.
#[derive(Debug, Serialize)]
pub struct Status {
    /// How bad it is.
    pub verdict: Verdict,
    /// What is wrong, the worst first.
    pub problems: Vec<Problem>,
    /// How many nodes there are.
    pub nodes: NodeCounts,
    /// How many connections there are.
    pub streams: StreamCounts,
    /// The proxies that were asked, then those that they know.
    pub proxies: Vec<Proxy>,
    /// Programs of an edge node, on which this was asked.
    pub edge: Vec<Edge>,
}

/// How many nodes a proxy reaches, and how many none does.
#[derive(Debug, Serialize)]
pub struct NodeCounts {
    /// A proxy reaches them.
    pub online: usize,
    /// No proxy does.
    pub offline: usize,
}

/// How many connections there are.
#[derive(Debug, Serialize)]
pub struct StreamCounts {
    /// Clients' connections under way.
    pub running: u32,
    /// Connections that have sent and have no answer.
    pub waiting: usize,
}

/// A proxy, and the redirector beside it.
#[derive(Debug, Serialize)]
pub struct Proxy {
    /// The host's own name.
    pub host: String,
    /// The name by which it was asked, such as that of ssh.
    pub asked_as: Option<String>,
    /// How bad it is.
    pub verdict: Verdict,
    /// `ready`, `not ready`, `draining`, `not asked` (another proxy says this) or `no answer`.
    pub state: &'static str,
    /// What it answers in place of the rest.
    pub error: Option<String>,
    /// The version of its program.
    pub version: String,
    /// Nodes with tunnels there.
    pub nodes: u32,
    /// Tunnels of agents that end there.
    pub tunnels: u32,
    /// Clients' connections under way there.
    pub streams: u32,
    /// To the agents.
    pub round_trip_ms: Option<RoundTrips>,
    /// What steers on this host: `both`, `ebpf`, `nftables`, `none`; `-` without a redirector.
    pub steers: String,
    /// When the certificate that it shows ends, in seconds since 1970.
    pub certificate_ends: Option<u64>,
}

/// Round trips of the tunnels that end at a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundTrips {
    /// The round trip of the nearest tunnel, in milliseconds.
    pub least: f64,
    /// Half of them have less.
    pub median: f64,
    /// The round trip of the farthest tunnel.
    pub most: f64,
}

/// An agent or a hub of this host.
#[derive(Debug, Serialize)]
pub struct Edge {
    /// Its name.
    pub program: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What is missing, or what the program adds.
    pub remarks: Vec<String>,
}

impl Status {
    /// Puts the answers together.
    pub fn of(answers: &[Answered<CloudHost>], edge: Vec<Edge>, now_seconds: u64) -> Self {
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
        Self {
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
}

/// The proxies that were asked, then those that they know beside them.
fn proxies(answers: &[Answered<CloudHost>], now_seconds: u64) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    let mut asked: Vec<&str> = Vec::new();
    for answered in answers {
        let verdict = verdict::worst(&verdict::of_host(answered, now_seconds));
        match &answered.answer {
            Ok(host) => {
                asked.extend(host.proxies.first().map(|own| own.instance.as_str()));
                proxies.push(Proxy {
                    asked_as: Some(answered.host.clone()),
                    ..Proxy::answering(host, verdict)
                });
            }
            Err(unanswered) => proxies.push(Proxy {
                host: answered.host.clone(),
                asked_as: Some(answered.host.clone()),
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
