//! What operators see: `/debug/{status,sets,clients,servers,explain}`, and the commands `status` and
//! `explain` that print two of them.

mod scraped;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use culvert_daemon::{AdminPages, page};
use http::{StatusCode, Uri};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strum::VariantArray;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::args::ExplainArgs;
use crate::cache::SetStatus;
use crate::explain::{Question, explain};
use crate::filters::is_of_this_host;
use crate::hub::Hub;
use crate::memory::DiskStatus;
use crate::request::percent::encode;
use crate::upstream::Credential;
use crate::upstream::pool::RequestKind;
use crate::wire::Encoding;

pub(crate) use self::scraped::Scraped;

/// The hub answers from memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER: usize = 1 << 20;

/// What the pages are made from.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) hub: Arc<Hub>,
    pub(crate) disk: watch::Receiver<DiskStatus>,
}

/// The state of the hub in short.
#[derive(Debug, Serialize, Deserialize)]
struct Summary {
    link: String,
    link_seconds: u64,
    link_reason: String,
    sets: usize,
    sets_behind: usize,
    documents: usize,
    survives_reboot: bool,
    because: String,
    disk_commits: u64,
    disk_error: Option<String>,
    /// Where pods are served, and whether this host has the address.
    pods: Vec<PodPort>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PodPort {
    address: SocketAddr,
    reachable: bool,
}

#[derive(Serialize)]
struct SetLine {
    resource: String,
    encoding: &'static str,
    namespace: Option<String>,
    name: Option<String>,
    labels: String,
    fields: String,
    resource_version: u64,
    members: usize,
    behind: bool,
    essential: bool,
    age_seconds: u64,
}

#[derive(Serialize)]
struct ServersPage {
    servers: Vec<ServerLine>,
    link: &'static str,
    link_seconds: u64,
    link_reason: String,
    connections: u64,
    /// A line for each credential and kind of requests.
    pools: Vec<PoolLine>,
}

#[derive(Serialize)]
struct ServerLine {
    url: String,
    /// Others are asked first until it answers again.
    failed: bool,
    /// From the cluster's own list: tried when no other one answers.
    learned: bool,
}

#[derive(Serialize)]
struct PoolLine {
    credential: &'static str,
    requests: &'static str,
    connections: usize,
    streams: usize,
}

/// Serves the pages as JSON.
pub(crate) fn routes(pages: Pages) -> AdminPages {
    AdminPages::new()
        .page(
            "/debug/status",
            "the link, and what a reboot now would miss",
            get(debug_status),
        )
        .page("/debug/sets", "the remembered answers", get(debug_sets))
        .page(
            "/debug/clients",
            "requests and watches of each client",
            get(debug_clients),
        )
        .page(
            "/debug/servers",
            "the API servers, and connections to them",
            get(debug_servers),
        )
        .page(
            "/debug/explain",
            "?method=GET&path=/api/v1/nodes&as=node: who answers it, from what",
            get(debug_explain),
        )
        .with_state(pages)
}

async fn debug_status(State(pages): State<Pages>) -> Response {
    page(move || pages.summary()).await
}

async fn debug_sets(State(pages): State<Pages>) -> Response {
    page(move || -> Vec<SetLine> { pages.sets().into_iter().map(SetLine::new).collect() }).await
}

async fn debug_clients(State(pages): State<Pages>) -> Response {
    page(move || -> BTreeMap<String, [u32; 2]> { pages.hub.limits.counts() }).await
}

async fn debug_servers(State(pages): State<Pages>) -> Response {
    page(move || pages.servers()).await
}

async fn debug_explain(State(pages): State<Pages>, uri: Uri) -> Response {
    match Question::from_query(uri.query().unwrap_or_default()) {
        Ok(question) => page(move || explain(&pages.hub, &question)).await,
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

impl Pages {
    fn sets(&self) -> Vec<SetStatus> {
        let now = self.hub.memory.now();
        self.hub.memory.lock().cache.statuses(now)
    }

    /// What the node would miss after a reboot without a link.
    fn missing_after_reboot(&self) -> Vec<String> {
        self.hub.memory.missing_after_reboot(&self.disk.borrow())
    }

    fn pods(&self) -> Vec<PodPort> {
        let mut ports = Vec::new();
        for address in self.hub.filters.pod_addresses() {
            ports.push(PodPort {
                address: *address,
                reachable: is_of_this_host(address.ip()),
            });
        }
        ports
    }

    fn servers(&self) -> ServersPage {
        let upstream = &self.hub.upstream;
        let link = upstream.link.status(Credential::Node);
        let mut servers = Vec::new();
        let learned = upstream.servers.learned();
        for server in upstream.servers.configured() {
            servers.push(ServerLine {
                url: format!("https://{}", server.authority),
                failed: server.is_failed(),
                learned: false,
            });
        }
        for server in learned {
            servers.push(ServerLine {
                url: format!("https://{}", server.authority),
                failed: server.is_failed(),
                learned: true,
            });
        }
        ServersPage {
            servers,
            link: link.label(),
            link_seconds: link.age().as_secs(),
            link_reason: link.reason,
            connections: upstream.link.connections(),
            pools: self.pools(),
        }
    }

    fn pools(&self) -> Vec<PoolLine> {
        let mut pools = Vec::new();
        for &credential in Credential::VARIANTS {
            for &requests in RequestKind::VARIANTS {
                let load = self.hub.upstream.load(credential, requests);
                pools.push(PoolLine {
                    credential: credential.into(),
                    requests: requests.into(),
                    connections: load.connections,
                    streams: load.streams,
                });
            }
        }
        pools
    }

    fn summary(&self) -> Summary {
        let sets = self.sets();
        let link = self.hub.upstream.link.status(Credential::Node);
        let disk = self.disk.borrow().clone();
        let missing = self.missing_after_reboot();
        Summary {
            link: link.label().to_owned(),
            link_seconds: link.age().as_secs(),
            link_reason: link.reason,
            sets: sets.len(),
            sets_behind: sets.iter().filter(|set| set.behind).count(),
            documents: self.hub.memory.lock().cache.documents.len(),
            survives_reboot: missing.is_empty(),
            because: if missing.is_empty() {
                "what kubelet and its pods need is in memory, and was written to the disk"
                    .to_owned()
            } else {
                missing.join("; ")
            },
            disk_commits: disk.commits,
            disk_error: disk.last_error,
            pods: self.pods(),
        }
    }
}

impl SetLine {
    fn new(set: SetStatus) -> Self {
        let selection = set.scope.selection;
        let representation = set.scope.representation;
        let resource = representation.resource;
        Self {
            resource: format!(
                "{}/{}/{}",
                resource.group, resource.version, resource.resource
            ),
            encoding: match representation.encoding {
                Encoding::Json => "json",
                Encoding::Protobuf => "protobuf",
            },
            namespace: selection.namespace,
            name: selection.name,
            labels: selection.label_selector,
            fields: selection.field_selector,
            resource_version: set.resource_version,
            members: set.members,
            behind: set.behind,
            essential: set.essential,
            age_seconds: set.age.as_secs(),
        }
    }
}

/// The command `status`: asks the running hub.
///
/// # Errors
/// No hub answers at this address.
pub(crate) async fn print(admin: SocketAddr) -> Result<()> {
    let summary: Summary = ask(admin, "/debug/status").await?;
    println!(
        "link: {} for {} s ({})",
        summary.link, summary.link_seconds, summary.link_reason
    );
    println!(
        "sets: {}, of them behind: {}; documents: {}",
        summary.sets, summary.sets_behind, summary.documents
    );
    println!(
        "would survive a reboot now: {}, because {}",
        if summary.survives_reboot { "yes" } else { "no" },
        summary.because
    );
    for pods in summary.pods {
        let address = pods.address;
        if pods.reachable {
            println!("pods: served at {address}");
        } else {
            println!(
                "pods: not served, because this host has no address {}",
                address.ip()
            );
        }
    }
    Ok(())
}

/// The command `explain`.
///
/// # Errors
/// No hub answers at this address, or it does not understand the request.
pub(crate) async fn print_explanation(admin: SocketAddr, request: &ExplainArgs) -> Result<()> {
    let path = format!(
        "/debug/explain?method={}&path={}&as={}",
        encode(&request.method),
        encode(&request.path),
        encode(&request.identity)
    );
    let lines: Vec<String> = ask(admin, &path).await?;
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

async fn ask<T: DeserializeOwned>(admin: SocketAddr, path: &str) -> Result<T> {
    let (status, body) = timeout(ANSWER_TIMEOUT, get_page(admin, path))
        .await
        .with_context(|| format!("no answer of culvert-hub on {admin}"))?
        .with_context(|| format!("ask culvert-hub on {admin}: is it running?"))?;
    if status == StatusCode::BAD_REQUEST {
        bail!("{}", String::from_utf8_lossy(&body).trim());
    }
    ensure!(
        status.is_success(),
        "culvert-hub on {admin} answers {status}"
    );
    serde_json::from_slice(&body).context("read the answer of culvert-hub")
}

async fn get_page(admin: SocketAddr, path: &str) -> Result<(StatusCode, Bytes)> {
    let stream = tokio::net::TcpStream::connect(admin).await?;
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let request = http::Request::get(path)
        .header(http::header::HOST, admin.to_string())
        .body(crate::upstream::empty())?;
    let answered = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = crate::upstream::collect(answer.into_body(), MAX_ANSWER).await;
        Ok((status, body.context("its answer is too long or was cut")?))
    };
    tokio::pin!(connection, answered);
    tokio::select! {
        answered = &mut answered => answered,
        // The connection may end directly after the answer.
        _ = &mut connection => answered.await,
    }
}
