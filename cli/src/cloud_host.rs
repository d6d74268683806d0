//! What the programs of a host with a proxy say about themselves.

use culvert_api::installed::Installed;
use culvert_api::proto::control as proto;
use http::StatusCode;
use serde::Deserialize;

use crate::control::Control;
use crate::pages::Pages;
use crate::places::{Host, NoAnswer, Socket};

/// A host with a proxy.
#[derive(Debug)]
pub(crate) struct CloudHost {
    /// The proxy of this host first, then those that it knows.
    pub(crate) proxies: Vec<proto::ProxyStatus>,
    pub(crate) nodes: Vec<proto::NodeStatus>,
    /// What the proxy adds to the nodes: that the cluster does not confirm them.
    pub(crate) note: String,
    /// Those that wait for their backend first.
    pub(crate) streams: Vec<proto::StreamStatus>,
    pub(crate) certificates: Vec<proto::CertificateStatus>,
    pub(crate) tunnels: Vec<Tunnel>,
    pub(crate) ready: Ready,
    pub(crate) redirector: Redirector,
}

/// A tunnel that ends at the proxy, as its page `/debug/tunnels` has it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Tunnel {
    pub(crate) tunnel: u64,
    pub(crate) node: String,
    pub(crate) agent: String,
    pub(crate) agent_version: String,
    pub(crate) age_seconds: f64,
    pub(crate) streams: u32,
    pub(crate) round_trip_seconds: Option<f64>,
}

impl Tunnel {
    pub(crate) fn round_trip_ms(&self) -> Option<f64> {
        self.round_trip_seconds.map(|seconds| seconds * 1e3)
    }
}

/// A page `/readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// What is missing; empty: the program is ready.
    pub(crate) missing: Vec<String>,
    /// What it adds.
    pub(crate) remarks: Vec<String>,
}

/// The redirector beside a proxy.
#[derive(Debug)]
pub(crate) enum Redirector {
    /// It has made no socket: nothing is steered here, which may be as it should.
    Absent,
    /// It has, and does not answer.
    Silent(String),
    Answers(Box<RedirectorPages>),
}

/// What a redirector says.
#[derive(Debug)]
pub(crate) struct RedirectorPages {
    pub(crate) ready: Ready,
    pub(crate) installed: Installed,
    /// Empty: it does not say.
    pub(crate) version: String,
}

impl CloudHost {
    /// Asks all of it at once.
    pub(crate) async fn ask(place: &Host) -> Result<Self, NoAnswer> {
        let (control, proxy, redirector) = tokio::join!(
            FromControl::ask(place),
            ProxyPages::ask(place),
            Redirector::ask(place)
        );
        let control = control?;
        let proxy = proxy?;
        Ok(Self {
            proxies: control.proxies,
            nodes: control.nodes.nodes,
            note: control.nodes.note,
            streams: control.streams,
            certificates: control.certificates,
            tunnels: proxy.tunnels,
            ready: proxy.ready,
            redirector,
        })
    }

    /// The host's own name.
    pub(crate) fn name(&self) -> &str {
        self.proxies.first().map_or("", |own| own.host.as_str())
    }

    /// The other proxies that this one knows.
    pub(crate) fn peers(&self) -> &[proto::ProxyStatus] {
        self.proxies.get(1..).unwrap_or_default()
    }

    /// What steers on this host, for people.
    pub(crate) fn steers(&self) -> String {
        match &self.redirector {
            Redirector::Absent => "-".to_owned(),
            Redirector::Silent(_) => "?".to_owned(),
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

/// What the control socket says.
struct FromControl {
    proxies: Vec<proto::ProxyStatus>,
    nodes: proto::ListNodesResponse,
    streams: Vec<proto::StreamStatus>,
    certificates: Vec<proto::CertificateStatus>,
}

impl FromControl {
    async fn ask(place: &Host) -> Result<Self, NoAnswer> {
        let mut control = Control::connect(place).await?;
        let proxies = control.list_proxies(proto::ListProxiesRequest {}).await?;
        let nodes = control.list_nodes(proto::ListNodesRequest {}).await?;
        let streams = control
            .list_streams(proto::ListStreamsRequest::default())
            .await?;
        let certificates = control
            .list_certificates(proto::ListCertificatesRequest {})
            .await?;
        Ok(Self {
            proxies: proxies.proxies,
            nodes,
            streams: streams.streams,
            certificates: certificates.certificates,
        })
    }
}

/// What the proxy's pages say.
struct ProxyPages {
    ready: Ready,
    tunnels: Vec<Tunnel>,
}

impl ProxyPages {
    async fn ask(place: &Host) -> Result<Self, NoAnswer> {
        let mut pages = Pages::connect(place, Socket::Proxy).await?;
        Ok(Self {
            ready: Ready::ask(&mut pages).await?,
            tunnels: pages.json("/debug/tunnels").await?,
        })
    }
}

impl Redirector {
    async fn ask(place: &Host) -> Self {
        match RedirectorPages::ask(place).await {
            Ok(pages) => Self::Answers(Box::new(pages)),
            Err(unanswered) if unanswered.is_absent => Self::Absent,
            Err(unanswered) => Self::Silent(unanswered.text),
        }
    }
}

impl Redirector {
    /// Whether one has made its socket there.
    pub(crate) async fn is_present(place: &Host) -> bool {
        match RedirectorPages::ask_ready(place).await {
            Ok(_) => true,
            Err(unanswered) => !unanswered.is_absent,
        }
    }
}

impl RedirectorPages {
    async fn ask_ready(place: &Host) -> Result<Ready, NoAnswer> {
        let mut pages = Pages::connect(place, Socket::Redirector).await?;
        Ready::ask(&mut pages).await
    }

    async fn ask(place: &Host) -> Result<Self, NoAnswer> {
        let mut pages = Pages::connect(place, Socket::Redirector).await?;
        let ready = Ready::ask(&mut pages).await?;
        let installed = pages.json("/debug/installed").await?;
        let (_, metrics) = pages.get("/metrics").await?;
        Ok(Self {
            ready,
            installed,
            version: version_in(&metrics).to_owned(),
        })
    }
}

/// The version in the metrics of a program.
fn version_in(metrics: &str) -> &str {
    for line in metrics.lines() {
        if line.contains("_build_info{")
            && let Some((_, rest)) = line.split_once("version=\"")
            && let Some((version, _)) = rest.split_once('"')
        {
            return version;
        }
    }
    ""
}

impl Ready {
    /// Asks a program.
    pub(crate) async fn ask(pages: &mut Pages) -> Result<Self, NoAnswer> {
        let (status, text) = pages.get("/readyz").await?;
        Ok(Self::of(status, &text))
    }

    /// Reads the page: `ok` and remarks, or what is missing.
    fn of(status: StatusCode, text: &str) -> Self {
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
    fn metrics_say_the_version() {
        let metrics = "# TYPE x gauge\nculvert_redirector_build_info{version=\"0.1.0\"} 1\n";
        assert_eq!(version_in(metrics), "0.1.0");
        assert_eq!(version_in("# EOF\n"), "");
    }
}
