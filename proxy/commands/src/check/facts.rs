//! What a check knows of this host, gathered from the system, the proxy, the redirector and the
//! cluster. Nothing is judged here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use culvert_api::installed::Installed;
use culvert_api::proto::control as proto;
use culvert_daemon::source_address;
use culvert_proxy_cluster::{Cluster, ClusterFacts};
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::reported::{Claims, LONG_WAIT};
use http::StatusCode;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::conntrack::Conntrack;
use super::local_ports::LocalPorts;
use super::{CheckCommand, dial, dns, resolver};
use crate::control_client::Client;

/// Programs on this host answer from memory; the redirector runs `nft` for one of its answers.
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The host's or the pod's own, and what systemd-resolved writes for kubelet to hand to pods.
const RESOLV_CONF: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// Outcomes by which the proxy's metrics count what a limit refused or ended, and what each means.
pub(super) const LIMITS: [(&str, &str); 4] = [
    (
        "client_share",
        "refused, for their client had its share of a node's streams",
    ),
    (
        "buffer_budget",
        "reset, for their client took nothing while --buffer-budget was used up",
    ),
    (
        "busy",
        "of agents refused, for too many were setting up theirs: --max-handshakes",
    ),
    (
        "evicted",
        "of agents ended before they had shown who they are, for others needed their permits",
    ),
];

/// The metric of lists that are full, by its label.
const CAPPED: &str = "culvert_proxy_capped_proxies{cap=\"";

/// What was asked for, or why there is no answer.
pub(super) type Answer<T> = Result<T, String>;

/// Everything.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// `/proc/self/mounts`.
    pub(super) mounts: String,
    /// TCP ports on which anything listens.
    pub(super) listening: BTreeSet<u16>,
    pub(super) local_ports: LocalPorts,
    pub(super) conntrack: Conntrack,
    /// `None`: this host is to have none.
    pub(super) redirector: Option<Answer<Daemon>>,
    /// `/debug/installed` of the redirector.
    pub(super) installed: Answer<Installed>,
    /// Each DNS address of the redirector, and what is wrong with its answer.
    pub(super) dns: Vec<(SocketAddr, Answer<()>)>,
    pub(super) proxy: Answer<Daemon>,
    pub nodes: Answer<Vec<proto::NodeStatus>>,
    pub(super) certificates: Answer<Vec<proto::CertificateStatus>>,
    /// How a connection of this process to the VIP of a node came to the proxy. `None`: no node is
    /// online, or nothing steers.
    pub(super) dial: Option<Dialled>,
    /// Which of the nodes' own claims the proxy takes.
    pub(super) claims: Answer<Claims>,
    /// Nodes, or parts of them, that the directory leaves out, and why.
    pub(super) left_out: Answer<Vec<LeftOut>>,
    /// Whether clients use the CONNECT socket, as kube-apiserver's egress selector does.
    pub(super) has_connects: bool,
    /// Connections that a limit of the proxy refused or ended since it started, by their outcome.
    pub(super) limited: BTreeMap<String, u64>,
    /// Clients' connections without a byte for as long as [`LONG_WAIT`].
    pub(super) idle_streams: Answer<Vec<proto::StreamStatus>>,
    /// Proxies that a full list of this proxy leaves out, by the list.
    pub(super) capped: BTreeMap<String, u64>,
    /// Servers that this host's programs ask for names; in a pod, those that CoreDNS pods of this
    /// host ask too.
    pub(super) resolvers: Vec<IpAddr>,
    pub(super) now: UnixTime,
    /// `None`: there is no cluster.
    pub(super) cluster: Option<Answer<ClusterFacts>>,
}

/// A program whose admin listener answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Daemon {
    /// What its `/readyz` says is missing, one a line.
    pub(super) missing: Vec<String>,
    /// What it adds where nothing is missing.
    pub(super) remarks: Vec<String>,
}

/// One of `/debug/left-out`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LeftOut {
    pub node: String,
    pub reason: String,
}

/// A connection to a VIP.
#[derive(Clone, Debug)]
pub(super) struct Dialled {
    pub(super) node: String,
    pub(super) vip: IpAddr,
    /// `ebpf` or `nftables`.
    pub(super) way: Answer<String>,
}

impl Facts {
    pub(super) async fn gather(
        command: &CheckCommand,
        control_socket: &Path,
        proxy_admin: SocketAddr,
    ) -> Self {
        let mut redirector = None;
        let mut installed = Err("there is no redirector".to_owned());
        if !command.without_redirector {
            redirector = Some(daemon(command.redirector_admin).await);
            installed = json::<Installed>(command.redirector_admin, "/debug/installed").await;
        }
        let control = control(control_socket).await;
        let metrics = metrics(proxy_admin).await;
        Self {
            mounts: read("/proc/self/mounts"),
            listening: listening(&[read("/proc/net/tcp"), read("/proc/net/tcp6")]),
            local_ports: LocalPorts {
                range: read("/proc/sys/net/ipv4/ip_local_port_range"),
                reserved: read("/proc/sys/net/ipv4/ip_local_reserved_ports"),
            },
            conntrack: Conntrack {
                count: read("/proc/sys/net/netfilter/nf_conntrack_count"),
                max: read("/proc/sys/net/netfilter/nf_conntrack_max"),
                stat: read("/proc/net/stat/nf_conntrack"),
            },
            redirector,
            dns: dns_answers(&installed).await,
            dial: dial_a_node(&installed, &control).await,
            installed,
            proxy: daemon(proxy_admin).await,
            nodes: control.nodes,
            certificates: control.certificates,
            claims: json(proxy_admin, "/debug/claims").await,
            left_out: json(proxy_admin, "/debug/left-out").await,
            has_connects: metrics.lines().any(is_a_connect),
            limited: limited(&metrics),
            idle_streams: control.idle_streams,
            capped: metrics.lines().filter_map(capped).collect(),
            resolvers: resolvers(),
            now: UnixTime::now(),
            cluster: in_cluster(command).await,
        }
    }

    /// What the redirector has installed, if that has this property.
    pub(super) fn installed_if(&self, has: fn(&Installed) -> bool) -> Option<&Installed> {
        match &self.installed {
            Ok(installed) if has(installed) => Some(installed),
            _ => None,
        }
    }
}

/// What the redirector's DNS servers answer.
async fn dns_answers(installed: &Answer<Installed>) -> Vec<(SocketAddr, Answer<()>)> {
    let mut answers = Vec::new();
    let Ok(installed) = installed else {
        return answers;
    };
    for address in &installed.dns {
        let answer = dns::ask(*address, &installed.zone).await;
        let answer = answer.map_err(|error| culvert_daemon::chain(&error));
        answers.push((*address, answer));
    }
    answers
}

fn resolvers() -> Vec<IpAddr> {
    let mut servers = Vec::new();
    for path in RESOLV_CONF {
        servers.extend(resolver::servers(&read(path)));
    }
    servers
}

async fn in_cluster(command: &CheckCommand) -> Option<Answer<ClusterFacts>> {
    if !command.kubernetes.is_in_cluster() {
        return None;
    }
    Some(cluster(command).await.map_err(|error| format!("{error:#}")))
}

/// The proxy's metrics. Empty if it does not answer.
async fn metrics(proxy_admin: SocketAddr) -> String {
    match get(proxy_admin, "/metrics").await {
        Ok((_, text)) => text,
        Err(_) => String::new(),
    }
}

/// Dials the first node that is online: others are refused before the proxy sees anything.
async fn dial_a_node(installed: &Answer<Installed>, control: &ControlAnswers) -> Option<Dialled> {
    let installed = installed.as_ref().ok()?;
    if !installed.steers() {
        return None;
    }
    let (node, vip) = vip_of_a_node(control.nodes.as_ref().ok()?)?;
    let way = dial::dial(vip).await;
    Some(Dialled {
        node,
        vip,
        way: way.map_err(|error| culvert_daemon::chain(&error)),
    })
}

fn vip_of_a_node(nodes: &[proto::NodeStatus]) -> Option<(String, IpAddr)> {
    let is_v6_only = has_no_ipv4();
    for node in nodes {
        let vip = if is_v6_only { &node.vip6 } else { &node.vip4 };
        if (node.tunnels > 0 || !node.elsewhere.is_empty())
            && let Ok(vip) = vip.parse()
        {
            return Some((node.name.clone(), vip));
        }
    }
    None
}

/// Whether this host has routes for IPv6 alone.
fn has_no_ipv4() -> bool {
    let v4 = SocketAddr::from(([192, 0, 2, 1], 9));
    let v6 = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9));
    source_address(v4).is_none() && source_address(v6).is_some()
}

/// The outcomes in [`LIMITS`] that there were.
fn limited(metrics: &str) -> BTreeMap<String, u64> {
    let mut limited = BTreeMap::new();
    for (outcome, _) in LIMITS {
        let label = format!("outcome=\"{outcome}\"");
        let mut sum = 0;
        for line in metrics.lines() {
            if line.contains("_total{")
                && line.contains(&label)
                && let Some((_, count)) = line.rsplit_once(' ')
            {
                sum += count.parse::<u64>().unwrap_or(0);
            }
        }
        if sum > 0 {
            limited.insert(outcome.to_owned(), sum);
        }
    }
    limited
}

/// The list that is full, and how many it leaves out.
fn capped(sample: &str) -> Option<(String, u64)> {
    let (cap, count) = sample.strip_prefix(CAPPED)?.split_once("\"} ")?;
    match count.parse() {
        Ok(count) if count > 0 => Some((cap.to_owned(), count)),
        _ => None,
    }
}

/// A sample of streams that came by the CONNECT socket, other than of none.
fn is_a_connect(sample: &str) -> bool {
    let streams = sample
        .strip_prefix("culvert_proxy_streams_total{")
        .unwrap_or_default();
    streams.contains(r#"frontend="connect_socket""#) && !streams.ends_with("} 0")
}

async fn cluster(command: &CheckCommand) -> anyhow::Result<ClusterFacts> {
    let cluster = Cluster::open(&command.kubernetes).await?;
    Ok(cluster.facts(command.serves()).await?)
}

struct ControlAnswers {
    nodes: Answer<Vec<proto::NodeStatus>>,
    certificates: Answer<Vec<proto::CertificateStatus>>,
    idle_streams: Answer<Vec<proto::StreamStatus>>,
}

async fn control(socket: &Path) -> ControlAnswers {
    let mut client = match Client::connect(socket).await {
        Ok(client) => client,
        Err(error) => {
            let silent = "the proxy does not answer".to_owned();
            return ControlAnswers {
                nodes: Err(format!("{error:#}")),
                certificates: Err(silent.clone()),
                idle_streams: Err(silent),
            };
        }
    };
    let idle = proto::ListStreamsRequest {
        node: String::new(),
        idle_seconds: LONG_WAIT.as_secs(),
    };
    let nodes = client.list_nodes().await;
    let certificates = client.list_certificates().await;
    let idle_streams = client.list_streams(idle).await;
    ControlAnswers {
        nodes: nodes.map_err(|error| format!("{error:#}")),
        certificates: certificates.map_err(|error| format!("{error:#}")),
        idle_streams: match idle_streams {
            Ok(listed) => Ok(listed.streams),
            Err(error) => Err(format!("{error:#}")),
        },
    }
}

async fn daemon(admin: SocketAddr) -> Answer<Daemon> {
    let (status, text) = get(admin, "/readyz").await?;
    let lines = text
        .lines()
        .filter(|line| *line != "ok")
        .map(str::to_owned)
        .collect();
    Ok(match status {
        StatusCode::OK => Daemon {
            missing: Vec::new(),
            remarks: lines,
        },
        _ => Daemon {
            missing: lines,
            remarks: Vec::new(),
        },
    })
}

pub(crate) async fn json<T: DeserializeOwned>(admin: SocketAddr, path: &str) -> Answer<T> {
    match get(admin, path).await? {
        (StatusCode::OK, text) => {
            serde_json::from_str(&text).map_err(|error| format!("{admin}{path}: {error}"))
        }
        (status, text) => Err(format!("{admin}{path}: {status}: {}", text.trim())),
    }
}

async fn get(admin: SocketAddr, path: &str) -> Answer<(StatusCode, String)> {
    // An address that stands for all of this host's own is asked on loopback.
    let admin = SocketAddr::new(reachable(admin.ip()), admin.port());
    match tokio::time::timeout(TIMEOUT, ask(admin, path)).await {
        Ok(answer) => answer,
        Err(_elapsed) => Err(format!("{admin}: no answer in time")),
    }
}

async fn ask(admin: SocketAddr, path: &str) -> Answer<(StatusCode, String)> {
    let uri = format!("http://{admin}{path}")
        .parse()
        .map_err(|error: http::uri::InvalidUri| error.to_string())?;
    let client = HttpClient::builder(TokioExecutor::new()).build_http::<Body>();
    let answer = client.get(uri).await;
    let (parts, body) = answer
        .map_err(|error| format!("{admin}: {}", culvert_daemon::chain(&error)))?
        .into_parts();
    let body = axum::body::to_bytes(Body::new(body), MAX_ANSWER_BYTES).await;
    let body = body.map_err(|error| format!("{admin}: {}", culvert_daemon::chain(&error)))?;
    Ok((parts.status, String::from_utf8_lossy(&body).into_owned()))
}

fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) if v4.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(_) | IpAddr::V6(_) => address,
    }
}

/// What cannot be read is empty, and then judged as such.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The ports of listening sockets, proc_pid_net(5): the second column is `ADDRESS:PORT` in
/// hexadecimal, the fourth the state.
fn listening(tables: &[String]) -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    for table in tables {
        ports.extend(table.lines().filter_map(listening_port));
    }
    ports
}

fn listening_port(line: &str) -> Option<u16> {
    const LISTEN: &str = "0A";
    let columns: Vec<&str> = line.split_whitespace().collect();
    if columns.get(3) != Some(&LISTEN) {
        return None;
    }
    let (_, port) = columns[1].rsplit_once(':')?;
    u16::from_str_radix(port, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_limits_refused_is_read_off_the_metrics() {
        let metrics = "# HELP busy\nculvert_proxy_streams_total{frontend=\"ebpf\",outcome=\"client_share\"} 3\n\
                       culvert_proxy_streams_total{frontend=\"nftables\",outcome=\"client_share\"} 4\n\
                       culvert_proxy_agent_connections_total{outcome=\"busy\"} 0\n";
        assert_eq!(
            limited(metrics),
            BTreeMap::from([("client_share".to_owned(), 7)])
        );
    }

    #[test]
    fn what_full_lists_leave_out_is_read_off_the_metrics() {
        let sample = |count: u64| format!("{CAPPED}leases\"}} {count}");
        assert_eq!(capped(&sample(3)), Some(("leases".to_owned(), 3)));
        assert_eq!(capped(&sample(0)), None);
        assert_eq!(capped("culvert_proxy_tunnels 3"), None);
    }

    #[test]
    fn ports_that_listen_are_read_of_both_tables() {
        let header = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        let four = format!(
            "{header}   0: 0100007F:1CF2 00000000:0000 0A 00000000:00000000\n   1: 0100007F:0016 \
             0100007F:9999 01 0:0\n"
        );
        let six = format!(
            "{header}   0: 00000000000000000000000000000000:1CE8 \
             00000000000000000000000000000000:0000 0A 0:0\n"
        );
        assert_eq!(listening(&[four, six]), BTreeSet::from([7400, 7410]));
        assert_eq!(listening(&["nonsense\n".into()]), BTreeSet::new());
    }
}
