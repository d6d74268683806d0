//! What a check knows of this host, gathered from the system, the proxy, the redirector and the cluster. Nothing is judged here.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use culvert_tunnel::proto::control as proto;
use http::StatusCode;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{CheckCommand, dns};
use crate::cli::Client;
use crate::clock::UnixTime;
use crate::kubernetes::{Cluster, ClusterFacts};

/// Programs on this host answer from memory; the redirector runs `nft` for one of its answers.
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// What was asked for, or why there is no answer.
pub(super) type Asked<T> = Result<T, String>;

/// Everything.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// `/proc/sys/kernel/osrelease`.
    pub(super) kernel: String,
    /// `/proc/self/mounts`.
    pub(super) mounts: String,
    /// TCP ports on which anything listens.
    pub(super) listening: BTreeSet<u16>,
    pub(super) redirector: Asked<Daemon>,
    /// `/debug/installed` of the redirector.
    pub(super) installed: Asked<Installed>,
    /// Each DNS address of the redirector, and what is wrong with its answer.
    pub(super) dns: Vec<(SocketAddr, Asked<()>)>,
    pub(super) proxy: Asked<Daemon>,
    pub(super) nodes: Asked<Vec<proto::NodeStatus>>,
    pub(super) certificates: Asked<Vec<proto::CertificateStatus>>,
    pub(super) now: UnixTime,
    /// `None`: there is no cluster.
    pub(super) cluster: Option<Asked<ClusterFacts>>,
}

/// A program whose admin listener answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Daemon {
    /// What its `/readyz` says is missing, one a line.
    pub(super) missing: Vec<String>,
}

/// What the redirector should have installed, and what there is.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Installed {
    /// `--mechanism`.
    pub(super) mechanism: String,
    pub(super) hooks: Vec<Hook>,
    /// Whether its table is there.
    pub(super) table: bool,
    /// Why that is not known.
    pub(super) table_problem: Option<String>,
    /// The directory's VIP ranges.
    pub(super) ranges: Vec<IpNet>,
    /// The local routes that there are.
    pub(super) routes: Vec<IpNet>,
    /// Where connections are steered to.
    pub(super) intercept_ports: Vec<u16>,
    /// Where it answers DNS.
    pub(super) dns: Vec<SocketAddr>,
    pub(super) zone: String,
}

/// A program in the kernel.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Hook {
    pub(super) program: String,
    /// None: it is not attached.
    pub(super) link: Option<u32>,
    /// Zero: it is gone.
    pub(super) cgroup_id: Option<u64>,
}

impl Facts {
    pub(super) async fn gather(command: &CheckCommand, control_socket: &Path, proxy_admin: SocketAddr) -> Self {
        let installed = json::<Installed>(command.redirector_admin, "/debug/installed").await;
        let mut dns = Vec::new();
        for address in installed.iter().flat_map(|installed| &installed.dns) {
            let zone = installed.as_ref().map_or("", |installed| &installed.zone);
            dns.push((*address, dns::ask(*address, zone).await.map_err(|error| culvert_daemon::chain(&error))));
        }
        let (nodes, certificates) = control(control_socket).await;
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            mounts: read("/proc/self/mounts"),
            listening: listening(&[read("/proc/net/tcp"), read("/proc/net/tcp6")]),
            redirector: daemon(command.redirector_admin).await,
            installed,
            dns,
            proxy: daemon(proxy_admin).await,
            nodes,
            certificates,
            now: UnixTime::now(),
            cluster: match command.kubernetes.wanted() {
                true => Some(cluster(command).await.map_err(|error| format!("{error:#}"))),
                false => None,
            },
        }
    }
}

async fn cluster(command: &CheckCommand) -> anyhow::Result<ClusterFacts> {
    Ok(Cluster::open(&command.kubernetes).await?.facts().await?)
}

type Told = (Asked<Vec<proto::NodeStatus>>, Asked<Vec<proto::CertificateStatus>>);

async fn control(socket: &Path) -> Told {
    let text = |error: anyhow::Error| format!("{error:#}");
    match Client::connect(socket).await {
        Ok(mut client) => (client.list_nodes().await.map_err(text), client.list_certificates().await.map_err(text)),
        Err(error) => (Err(text(error)), Err("the proxy does not answer".to_owned())),
    }
}

async fn daemon(admin: SocketAddr) -> Asked<Daemon> {
    let (_, text) = get(admin, "/readyz").await?;
    let missing = text.lines().filter(|line| *line != "ok").map(str::to_owned).collect();
    Ok(Daemon { missing })
}

async fn json<T: DeserializeOwned>(admin: SocketAddr, path: &str) -> Asked<T> {
    match get(admin, path).await? {
        (StatusCode::OK, text) => serde_json::from_str(&text).map_err(|error| format!("{admin}{path}: {error}")),
        (status, text) => Err(format!("{admin}{path}: {status}: {}", text.trim())),
    }
}

async fn get(admin: SocketAddr, path: &str) -> Asked<(StatusCode, String)> {
    // An address that stands for all of this host's own is asked on loopback.
    let admin = SocketAddr::new(reachable(admin.ip()), admin.port());
    let uri = format!("http://{admin}{path}").parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
    let ask = async {
        let answer = HttpClient::builder(TokioExecutor::new()).build_http::<Body>().get(uri).await;
        let (parts, body) = answer.map_err(|error| format!("{admin}: {}", culvert_daemon::chain(&error)))?.into_parts();
        let body = axum::body::to_bytes(Body::new(body), MAX_ANSWER_BYTES).await;
        let body = body.map_err(|error| format!("{admin}: {}", culvert_daemon::chain(&error)))?;
        Ok((parts.status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::time::timeout(TIMEOUT, ask).await.unwrap_or_else(|_| Err(format!("{admin}: no answer in time")))
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

/// The ports of listening sockets, proc_pid_net(5): the second column is `ADDRESS:PORT` in hexadecimal, the fourth the state.
fn listening(tables: &[String]) -> BTreeSet<u16> {
    const LISTEN: &str = "0A";
    let port = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let local = columns.get(1).filter(|_| columns.get(3) == Some(&LISTEN))?;
        u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
    };
    tables.iter().flat_map(|table| table.lines()).filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_listen_are_read_of_both_tables() {
        let header = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        let four = format!(
            "{header}   0: 0100007F:1CF2 00000000:0000 0A 00000000:00000000\n   1: 0100007F:0016 0100007F:9999 01 0:0\n"
        );
        let six = format!(
            "{header}   0: 00000000000000000000000000000000:1CE8 00000000000000000000000000000000:0000 0A 0:0\n"
        );
        assert_eq!(listening(&[four, six]), BTreeSet::from([7400, 7410]));
        assert_eq!(listening(&["nonsense\n".into()]), BTreeSet::new());
    }
}
