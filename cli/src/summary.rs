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
pub(crate) struct Status {
    pub(crate) verdict: Verdict,
    pub(crate) problems: Vec<Problem>,
    pub(crate) nodes: NodeCounts,
    pub(crate) streams: StreamCounts,
    pub(crate) proxies: Vec<Proxy>,
    /// Programs of an edge node, on which this was asked.
    pub(crate) edge: Vec<Edge>,
}

/// How many nodes a proxy reaches, and how many none does.
#[derive(Debug, Serialize)]
pub(crate) struct NodeCounts {
    pub(crate) online: usize,
    pub(crate) offline: usize,
}

/// How many connections there are.
#[derive(Debug, Serialize)]
pub(crate) struct StreamCounts {
    /// Clients' connections under way.
    pub(crate) running: u32,
    /// Those that have sent and have no answer.
    pub(crate) waiting: usize,
}

/// A proxy, and the redirector beside it.
#[derive(Debug, Serialize)]
pub(crate) struct Proxy {
    pub(crate) host: String,
    /// The name by which it was asked, such as that of ssh.
    pub(crate) asked_as: Option<String>,
    pub(crate) verdict: Verdict,
    /// `ready`, `not ready`, `draining`, `not asked` (another proxy says this) or `no answer`.
    pub(crate) state: &'static str,
    /// What it answers in place of the rest.
    pub(crate) error: Option<String>,
    pub(crate) version: String,
    pub(crate) nodes: u32,
    pub(crate) tunnels: u32,
    pub(crate) streams: u32,
    pub(crate) round_trip_ms: Option<RoundTrips>,
    /// What steers on this host: `both`, `ebpf`, `nftables`, `none`; `-` without a redirector.
    pub(crate) steers: String,
    /// When the certificate that it shows ends, in seconds since 1970.
    pub(crate) certificate_ends: Option<u64>,
}

/// Of the tunnels that end at a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct RoundTrips {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

/// An agent or a hub of this host.
#[derive(Debug, Serialize)]
pub(crate) struct Edge {
    pub(crate) program: &'static str,
    pub(crate) verdict: Verdict,
    /// What is missing, or what the program adds.
    pub(crate) remarks: Vec<String>,
}

impl Status {
    /// Puts the answers together.
    pub(crate) fn of(answers: &[Answered<CloudHost>], edge: Vec<Edge>, now_seconds: u64) -> Self {
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
