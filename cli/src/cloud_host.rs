//! What the programs of a host with a proxy say about themselves.

use culvert_api::installed::Installed;
use culvert_api::proto::control as proto;
use http::StatusCode;
use serde::Deserialize;

use crate::control::Control;
use crate::hosts::{Host, NoAnswer, Socket};
use crate::pages::Pages;

/// The most failures that a host is asked for.
const MAX_FAILURES: u32 = 50;

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
    /// How many more there are.
    pub(crate) streams_left_out: u64,
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

/// Connections with the programs of a host, over which they are asked again.
pub(crate) struct CloudConnections {
    control: Control,
    proxy: Pages,
    /// `None` once it did not answer.
    redirector: Option<Pages>,
}

impl CloudConnections {
    /// Connects with all of them at once.
    pub(crate) async fn connect(host: &Host) -> Result<Self, NoAnswer> {
        let (control, proxy) =
            tokio::join!(Control::connect(host), Pages::connect(host, Socket::Proxy));
        Ok(Self {
            control: control?,
            proxy: proxy?,
            redirector: None,
        })
    }

    /// Asks all of it at once.
    pub(crate) async fn ask(&mut self, host: &Host) -> Result<CloudHost, NoAnswer> {
        let (control, proxy, redirector) = tokio::join!(
            FromControl::ask(&mut self.control),
            ProxyPages::ask(&mut self.proxy),
            Redirector::ask(host, &mut self.redirector)
        );
        let control = control?;
        let proxy = proxy?;
        Ok(CloudHost {
            proxies: control.proxies,
            nodes: control.nodes.nodes,
            note: control.nodes.note,
            streams: control.streams.streams,
            streams_left_out: control.streams.left_out,
            certificates: control.certificates,
            tunnels: proxy.tunnels,
            ready: proxy.ready,
            redirector,
        })
    }

    /// The last connections that failed, the oldest first.
    pub(crate) async fn failures(&mut self) -> Result<Vec<proto::StreamEvent>, NoAnswer> {
        let request = proto::ObserveRequest {
            follow: false,
            failures: true,
            last: MAX_FAILURES,
        };
        let mut events = self.control.observe(request).await?;
        let mut failures = Vec::new();
        while let Ok(Some(event)) = events.message().await {
            // An older proxy sends all that it has.
            if !event.reason.is_empty() {
                failures.push(event);
            }
        }
        let older = failures.len().saturating_sub(MAX_FAILURES as usize);
        Ok(failures.split_off(older))
    }

    /// What has come through the proxy.
    pub(crate) async fn traffic(&mut self) -> Result<Traffic, NoAnswer> {
        let (_, metrics) = self.proxy.get("/metrics").await?;
        Ok(Traffic::of(&metrics))
    }
}

/// What has come through a proxy since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Bytes of payload.
    pub(crate) to_backend: u64,
    pub(crate) to_client: u64,
    /// Clients' connections that ended.
    pub(crate) ended: u64,
}

impl Traffic {
    /// Reads the metrics of a proxy.
    fn of(metrics: &str) -> Self {
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
    /// Asks once.
    pub(crate) async fn ask(host: &Host) -> Result<Self, NoAnswer> {
        let mut connections = CloudConnections::connect(host).await?;
        connections.ask(host).await
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
    streams: proto::ListStreamsResponse,
    certificates: Vec<proto::CertificateStatus>,
}

impl FromControl {
    async fn ask(control: &mut Control) -> Result<Self, NoAnswer> {
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
            streams,
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
    async fn ask(pages: &mut Pages) -> Result<Self, NoAnswer> {
        Ok(Self {
            ready: Ready::ask(pages).await?,
            tunnels: pages.json("/debug/tunnels").await?,
        })
    }
}

impl Redirector {
    /// Asks over the connection that there is, or else over a new one.
    async fn ask(host: &Host, kept: &mut Option<Pages>) -> Self {
        if let Some(mut pages) = kept.take()
            && let Ok(answer) = RedirectorPages::ask(&mut pages).await
        {
            *kept = Some(pages);
            return Self::Answers(Box::new(answer));
        }
        match RedirectorPages::connect(host).await {
            Ok((pages, answer)) => {
                *kept = Some(pages);
                Self::Answers(Box::new(answer))
            }
            Err(unanswered) if unanswered.is_absent => Self::Absent,
            Err(unanswered) => Self::Silent(unanswered.text),
        }
    }
}

impl Redirector {
    /// Whether one has made its socket there.
    pub(crate) async fn is_present(host: &Host) -> bool {
        match RedirectorPages::ask_ready(host).await {
            Ok(_) => true,
            Err(unanswered) => !unanswered.is_absent,
        }
    }
}

impl RedirectorPages {
    async fn ask_ready(host: &Host) -> Result<Ready, NoAnswer> {
        let mut pages = Pages::connect(host, Socket::Redirector).await?;
        Ready::ask(&mut pages).await
    }

    async fn connect(host: &Host) -> Result<(Pages, Self), NoAnswer> {
        let mut pages = Pages::connect(host, Socket::Redirector).await?;
        let answer = Self::ask(&mut pages).await?;
        Ok((pages, answer))
    }

    async fn ask(pages: &mut Pages) -> Result<Self, NoAnswer> {
        let ready = Ready::ask(pages).await?;
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

    #[test]
    fn metrics_say_the_version() {
        let metrics = "# TYPE x gauge\nculvert_redirector_build_info{version=\"0.1.0\"} 1\n";
        assert_eq!(version_in(metrics), "0.1.0");
        assert_eq!(version_in("# EOF\n"), "");
    }
}
