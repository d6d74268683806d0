//! Asks the programs of a host with a proxy about themselves.

use culvert_api::proto::control as proto;
use culvert_site::cloud_host::{CloudHost, Ready, Redirector, RedirectorPages, Traffic, Tunnel};

use crate::control::Control;
use crate::hosts::{Host, NoAnswer, Socket};
use crate::pages::Pages;

/// The most failures that a host is asked for.
const MAX_FAILURES: u32 = 50;

/// Asks once.
pub(crate) async fn ask_cloud_host(host: &Host) -> Result<CloudHost, NoAnswer> {
    let mut connections = CloudConnections::connect(host).await?;
    connections.ask(host).await
}

/// Asks a program whether it is ready.
pub(crate) async fn ask_ready(pages: &mut Pages) -> Result<Ready, NoAnswer> {
    let (status, text) = pages.get("/readyz").await?;
    Ok(Ready::of(status, &text))
}

/// Whether a redirector has made its socket there.
pub(crate) async fn has_redirector(host: &Host) -> bool {
    let ready = match Pages::connect(host, Socket::Redirector).await {
        Ok(mut pages) => ask_ready(&mut pages).await,
        Err(unanswered) => Err(unanswered),
    };
    match ready {
        Ok(_) => true,
        Err(unanswered) => !unanswered.is_absent,
    }
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
            ask_redirector(host, &mut self.redirector)
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
            ready: ask_ready(pages).await?,
            tunnels: pages.json("/debug/tunnels").await?,
        })
    }
}

/// Asks over the connection that there is, or else over a new one.
async fn ask_redirector(host: &Host, kept: &mut Option<Pages>) -> Redirector {
    if let Some(mut pages) = kept.take()
        && let Ok(answer) = ask_redirector_pages(&mut pages).await
    {
        *kept = Some(pages);
        return Redirector::Answers(Box::new(answer));
    }
    match connect_redirector(host).await {
        Ok((pages, answer)) => {
            *kept = Some(pages);
            Redirector::Answers(Box::new(answer))
        }
        Err(unanswered) if unanswered.is_absent => Redirector::Absent,
        Err(unanswered) => Redirector::Silent(unanswered.text),
    }
}

async fn connect_redirector(host: &Host) -> Result<(Pages, RedirectorPages), NoAnswer> {
    let mut pages = Pages::connect(host, Socket::Redirector).await?;
    let answer = ask_redirector_pages(&mut pages).await?;
    Ok((pages, answer))
}

async fn ask_redirector_pages(pages: &mut Pages) -> Result<RedirectorPages, NoAnswer> {
    let ready = ask_ready(pages).await?;
    let installed = pages.json("/debug/installed").await?;
    let (_, metrics) = pages.get("/metrics").await?;
    Ok(RedirectorPages {
        ready,
        installed,
        version: version_in(&metrics).to_owned(),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_say_the_version() {
        let metrics = "# TYPE x gauge\nculvert_redirector_build_info{version=\"0.1.0\"} 1\n";
        assert_eq!(version_in(metrics), "0.1.0");
        assert_eq!(version_in("# EOF\n"), "");
    }
}
