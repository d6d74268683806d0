//! The checked form of the command line.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_api::ports::{AGENT_ADMIN_PORT, NODE_PORTS};
use culvert_api::{AllowList, HostPort, PROXY_SERVER_NAME};
use culvert_daemon::AdminListen;
use culvert_tunnel::{Budget, Congestion, KEEPALIVE_RANGE, STREAM_WINDOW_RANGE};

use crate::args::RunArgs;
use crate::backends::allow_list::DialRules;
use crate::backends::ports_config::PortsDir;
use crate::certificate::cluster::account_token::TokenFile;
use crate::certificate::cluster::config::ClusterDir;
use crate::certificate::current::{ClusterSource, ReadyFiles, Source};
use crate::certificate::store::StateDir;
use crate::tunnels::placement::Spread;

/// Settings of the running agent.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) source: Source,
    /// If empty, the proxies of the join are used.
    pub(crate) proxies: Vec<HostPort>,
    pub(crate) spread: Spread,
    /// The allow-list that the flags give.
    pub(crate) allow: DialRules,
    pub(crate) ports: Option<PortsDir>,
    pub(crate) admin: AdminListen,
    pub(crate) stream_window: u32,
    pub(crate) budget: Budget,
    pub(crate) keepalive: Duration,
    pub(crate) tunnel_congestion: Congestion,
    pub(crate) tunnel_mss: Option<u16>,
    pub(crate) mptcp: bool,
    pub(crate) grace: Duration,
}

/// Settings that do not fit together.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ConfigError {
    #[error("ready certificates need --cert, --key and --ca together; {0} is missing")]
    IncompleteCertificates(&'static str),
    #[error("ready certificates come with no proxy: name one with --proxy HOST:PORT")]
    NoProxy,
    #[error("--stream-window {0} is out of range: 256KiB to 16MiB")]
    StreamWindow(u32),
    #[error("--keepalive {}s is out of range: 5s to 5m", .0.as_secs())]
    Keepalive(Duration),
    #[error("--deny-port {port} and {flag} {port} contradict each other: take one of them away")]
    Denied { port: u16, flag: &'static str },
}

impl Config {
    /// Checks the flags.
    ///
    /// # Errors
    /// One is out of range, or some do not fit together.
    pub(crate) fn new(
        run: RunArgs,
        state_dir: &Path,
        admin_socket: PathBuf,
    ) -> Result<Self, ConfigError> {
        if !STREAM_WINDOW_RANGE.contains(&run.buffers.stream_window) {
            return Err(ConfigError::StreamWindow(run.buffers.stream_window));
        }
        if !KEEPALIVE_RANGE.contains(&run.keepalive) {
            return Err(ConfigError::Keepalive(run.keepalive));
        }
        let allow = dial_rules(&run)?;
        let ports = match run.ports_config {
            Some(folder) if run.only_port.is_empty() => Some(PortsDir::new(folder)),
            Some(_) | None => None,
        };
        let admin = AdminListen {
            program: "culvert-agent",
            address: run.admin.admin_listen,
            metrics: run.admin.metrics_listen,
            socket: admin_socket,
        };
        let Ok(tunnel_congestion) = run.tunnel_tcp.tunnel_congestion.parse::<Congestion>();
        let state = StateDir::new(state_dir);
        let source = match (run.cluster_config, run.service_account_token) {
            (Some(folder), Some(token)) => Source::Cluster(ClusterSource {
                state,
                folder: ClusterDir::new(&folder),
                token: TokenFile::new(&token),
                server_name: run.server_name,
                proxies: run.proxy.clone(),
            }),
            // clap accepts --cluster-config and --service-account-token only together.
            _ => source(state, run.cert, run.key, run.ca, run.server_name)?,
        };
        if matches!(source, Source::Ready(_)) && run.proxy.is_empty() {
            return Err(ConfigError::NoProxy);
        }
        Ok(Self {
            source,
            proxies: run.proxy,
            spread: Spread {
                proxies: run.proxies,
                tunnels: run.tunnels,
                extra: run.extra_tunnels,
            },
            allow,
            ports,
            admin,
            stream_window: run.buffers.stream_window,
            budget: Budget::new(run.buffers.buffer_budget as usize),
            keepalive: run.keepalive,
            tunnel_congestion,
            tunnel_mss: run.tunnel_tcp.tunnel_mss,
            mptcp: run.mptcp,
            grace: run.grace,
        })
    }
}

fn source(
    state: StateDir,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    ca: Option<PathBuf>,
    server_name: Option<String>,
) -> Result<Source, ConfigError> {
    let missing = ConfigError::IncompleteCertificates;
    match (cert, key, ca) {
        (None, None, None) => Ok(Source::Joined { state, server_name }),
        (None, _, _) => Err(missing("--cert")),
        (_, None, _) => Err(missing("--key")),
        (_, _, None) => Err(missing("--ca")),
        (Some(cert), Some(key), Some(ca)) => {
            let server_name = server_name.unwrap_or_else(|| PROXY_SERVER_NAME.to_owned());
            Ok(Source::Ready(ReadyFiles {
                cert,
                key,
                ca,
                server_name,
            }))
        }
    }
}

fn dial_rules(run: &RunArgs) -> Result<DialRules, ConfigError> {
    let denied: BTreeSet<u16> = run.deny_port.iter().copied().collect();
    for (flag, named) in [
        ("--port", &run.port),
        ("--only-port", &run.only_port),
        ("--localhost-port", &run.localhost_port),
    ] {
        if let Some(port) = named.iter().find(|port| denied.contains(port)) {
            return Err(ConfigError::Denied { port: *port, flag });
        }
    }
    let admin = run.admin.admin_listen;
    let mut ports: BTreeSet<u16> = run.port.iter().chain(&run.only_port).copied().collect();
    if run.only_port.is_empty() {
        ports.extend(default_ports(admin.port()));
    }
    ports.retain(|port| !denied.contains(port));
    let mut localhost_ports: BTreeSet<u16> = run.localhost_port.iter().copied().collect();
    // Prometheus scrapes the agent at the node's address, but the admin server listens on
    // 127.0.0.1.
    if admin.ip() == std::net::Ipv4Addr::LOCALHOST && ports.contains(&admin.port()) {
        localhost_ports.insert(admin.port());
    }
    let further = run.allow.iter().copied().collect();
    let node_addresses = run.node_address.iter().map(IpAddr::to_canonical).collect();
    Ok(DialRules {
        list: AllowList {
            ports,
            localhost_ports,
            further,
            denied,
        },
        node_addresses,
    })
}

fn default_ports(admin: u16) -> impl Iterator<Item = u16> {
    let others = NODE_PORTS
        .into_iter()
        .filter(|port| *port != AGENT_ADMIN_PORT);
    others.chain([admin])
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn config(flags: &[&str]) -> Result<Config, ConfigError> {
        let line = ["culvert-agent"].into_iter().chain(flags.iter().copied());
        let args = Args::try_parse_from(line).unwrap();
        Config::new(args.run, &args.state_dir, args.log.admin_socket)
    }

    #[test]
    fn defaults_let_the_usual_node_services_and_the_admin_port_through() {
        let allow = config(&[]).unwrap().allow;
        assert_eq!(allow.list.ports, [7429, 9100, 10250, 10255].into());
        assert_eq!(allow.list.localhost_ports, [7429].into());
        let moved = config(&["--admin-listen", "127.0.0.1:8000"]).unwrap().allow;
        assert_eq!(moved.list.ports, [8000, 9100, 10250, 10255].into());
    }

    #[test]
    fn ports_come_to_the_defaults_or_replace_all_others() {
        let allow = config(&["--port", "22", "--port", "80,443"]).unwrap().allow;
        assert_eq!(
            allow.list.ports,
            [22, 80, 443, 7429, 9100, 10250, 10255].into()
        );
        let folder = ["--ports-config", "/etc/culvert/ports"];
        assert!(config(&folder).unwrap().ports.is_some());
        let only = config(&[&folder[..], &["--only-port", "22"]].concat()).unwrap();
        assert_eq!(only.allow.list.ports, [22].into());
        assert!(only.ports.is_none(), "the ConfigMap opens nothing");
        assert!(
            only.allow.list.localhost_ports.is_empty(),
            "the admin port is not among them"
        );
        let both = ["culvert-agent", "--port", "80", "--only-port", "22"];
        assert!(Args::try_parse_from(both).is_err());
    }

    #[test]
    fn further_destinations_are_canonical() {
        let allow = config(&["--allow", "[::ffff:10.0.0.1]:502"]).unwrap().allow;
        assert_eq!(allow.list.further, ["10.0.0.1:502".parse().unwrap()].into());
    }

    #[test]
    fn a_denied_port_is_neither_a_default_nor_named() {
        let allow = config(&["--deny-port", "7429,10255"]).unwrap().allow;
        assert_eq!(allow.list.ports, [9100, 10250].into());
        assert!(allow.list.localhost_ports.is_empty());
        for flag in ["--port", "--only-port", "--localhost-port"] {
            let error = config(&["--deny-port", "22", flag, "22"]).unwrap_err();
            assert_eq!(error, ConfigError::Denied { port: 22, flag });
        }
    }

    #[test]
    fn ready_certificates_come_whole_and_with_a_proxy() {
        let missing = ConfigError::IncompleteCertificates;
        assert_eq!(config(&["--cert", "c"]).unwrap_err(), missing("--key"));
        assert_eq!(
            config(&["--cert", "c", "--key", "k"]).unwrap_err(),
            missing("--ca")
        );
        assert_eq!(config(&["--ca", "a"]).unwrap_err(), missing("--cert"));
        assert_eq!(
            config(&["--cert", "c", "--key", "k", "--ca", "a"]).unwrap_err(),
            ConfigError::NoProxy
        );
        assert!(config(&["--cert", "c", "--key", "k", "--ca", "a", "--proxy", "p:1"]).is_ok());
    }

    #[test]
    fn a_keepalive_out_of_range_is_noticed() {
        for (text, seconds) in [("4s", 4), ("6m", 360)] {
            let error = config(&["--keepalive", text]).unwrap_err();
            assert_eq!(error, ConfigError::Keepalive(Duration::from_secs(seconds)));
        }
        assert_eq!(
            config(&["--keepalive", "5m"]).unwrap().keepalive,
            Duration::from_secs(300)
        );
        assert_eq!(
            config(&[]).unwrap().keepalive,
            culvert_tunnel::DEFAULT_KEEPALIVE
        );
    }

    #[test]
    fn a_stream_window_out_of_range_is_noticed() {
        assert_eq!(
            config(&["--stream-window", "32MiB"]).unwrap_err(),
            ConfigError::StreamWindow(32 << 20)
        );
    }
}
