//! What the programs of a host with a proxy say about themselves.

use axum::http::StatusCode;
use culvert_api::installed::Installed;
use culvert_api::proto::control as proto;
use serde::{Deserialize, Serialize};

/// A host with a proxy.
#[derive(Debug)]
pub struct CloudHost {
    /// The proxy of this host first, then those that it knows.
    pub proxies: Vec<proto::ProxyStatus>,
    /// Nodes that the proxy knows.
    pub nodes: Vec<proto::NodeStatus>,
    /// What the proxy adds to the nodes: that the cluster does not confirm them.
    pub note: String,
    /// Its connections; those that wait for their backend come first.
    pub streams: Vec<proto::StreamStatus>,
    /// How many more there are.
    pub streams_left_out: u64,
    /// The certificates of the proxy.
    pub certificates: Vec<proto::CertificateStatus>,
    /// Tunnels that end at the proxy.
    pub tunnels: Vec<Tunnel>,
    /// Whether the proxy is ready.
    pub ready: Ready,
    /// What steers on this host.
    pub redirector: Redirector,
}

/// A tunnel that ends at the proxy, as its page `/debug/tunnels` has it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Tunnel {
    /// Its number.
    pub tunnel: u64,
    /// Its node.
    pub node: String,
    /// Where the agent came from.
    pub agent: String,
    /// The version of the agent.
    pub agent_version: String,
    /// Since it was made.
    pub age_seconds: f64,
    /// Connections in it.
    pub streams: u32,
    /// As last measured.
    pub round_trip_seconds: Option<f64>,
}

impl Tunnel {
    /// As last measured, in milliseconds.
    pub fn round_trip_ms(&self) -> Option<f64> {
        self.round_trip_seconds.map(|seconds| seconds * 1e3)
    }
}

/// A page `/readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// What is missing; empty: the program is ready.
    pub missing: Vec<String>,
    /// What it adds.
    pub remarks: Vec<String>,
}

/// The redirector beside a proxy.
#[derive(Debug)]
pub enum Redirector {
    /// It has made no socket: nothing is steered here, which may be as it should.
    Absent,
    /// Who asks does not ask it.
    NotAsked,
    /// It has, and does not answer.
    Silent(String),
    /// It answers.
    Answers(Box<RedirectorPages>),
}

/// What a redirector says.
#[derive(Debug)]
pub struct RedirectorPages {
    /// Whether it is ready.
    pub ready: Ready,
    /// What steers.
    pub installed: Installed,
    /// Empty: it does not say.
    pub version: String,
}

/// What has come through a proxy since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of payload.
    pub to_backend: u64,
    /// Bytes of payload.
    pub to_client: u64,
    /// Clients' connections that ended.
    pub ended: u64,
}

impl Traffic {
    /// Reads the metrics of a proxy.
    pub fn of(metrics: &str) -> Self {
        let mut traffic = Self::default();
        for line in metrics.lines() {
            let Some((series, count)) = line.rsplit_once(' ') else {
                continue;
            };
            let count: u64 = count.parse().unwrap_or_default();
            if series.starts_with("culvert_proxy_streams_total{") {
                traffic.ended += count;
            } else if series == "culvert_proxy_bytes_total{direction=\"to_backend\"}" {
                traffic.to_backend = count;
            } else if series == "culvert_proxy_bytes_total{direction=\"to_client\"}" {
                traffic.to_client = count;
            }
        }
        traffic
    }
}

impl CloudHost {
    /// The host's own name.
    pub fn name(&self) -> &str {
        self.proxies.first().map_or("", |own| own.host.as_str())
    }

    /// The other proxies that this one knows.
    pub fn peers(&self) -> &[proto::ProxyStatus] {
        self.proxies.get(1..).unwrap_or_default()
    }

    /// What steers on this host, for people.
    pub fn steers(&self) -> String {
        match &self.redirector {
            Redirector::Absent => "-".to_owned(),
            Redirector::NotAsked | Redirector::Silent(_) => "?".to_owned(),
            Redirector::Answers(pages) => {
                let installed = &pages.installed;
                installed
                    .in_force
                    .unwrap_or(installed.mechanism)
                    .to_string()
            }
        }
    }
}

impl Ready {
    /// Reads the page.
    pub fn of(status: StatusCode, text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        match lines.split_first() {
            Some((first, remarks)) if status.is_success() && first == "ok" => Self {
                missing: Vec::new(),
                remarks: remarks.to_vec(),
            },
            _ => Self {
                missing: lines,
                remarks: Vec::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_program_may_have_remarks() {
        let ready = Ready::of(StatusCode::OK, "ok\nadmin: 127.0.0.1:7409 is taken\n");
        assert_eq!(ready.missing.len(), 0);
        assert_eq!(ready.remarks, ["admin: 127.0.0.1:7409 is taken"]);
        let waits = Ready::of(StatusCode::SERVICE_UNAVAILABLE, "directory: none yet\n");
        assert_eq!(waits.missing, ["directory: none yet"]);
    }

    #[test]
    fn metrics_say_what_has_come_through() {
        let metrics = "# TYPE culvert_proxy_bytes counter\n\
            culvert_proxy_bytes_total{direction=\"to_backend\"} 7\n\
            culvert_proxy_bytes_total{direction=\"to_client\"} 9\n\
            culvert_proxy_streams_total{frontend=\"ebpf\",outcome=\"finished\"} 2\n\
            culvert_proxy_streams_total{frontend=\"ebpf\",outcome=\"refused\"} 1\n";
        let traffic = Traffic {
            to_backend: 7,
            to_client: 9,
            ended: 3,
        };
        assert_eq!(Traffic::of(metrics), traffic);
    }
}
