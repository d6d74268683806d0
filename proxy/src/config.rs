//! The checked form of the command line: all rules between flags of the running proxy are here.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use culvert_api::{InvalidZone, Zone};
use culvert_proxy_clients::forward::args::ForwardArgs;
use culvert_proxy_clients::names::args::{NameArgs, NameListen};
use culvert_proxy_cluster::{HostsAddress, KubernetesArgs};
use culvert_proxy_core::advertise::Advertised;
use culvert_proxy_core::directory::NodesFrom;
use culvert_proxy_core::forward::{Forward, ForwardTo};
use culvert_proxy_operators::spans::SpanArgs;
use culvert_proxy_trust::TrustSource;
use culvert_tunnel::{Budget, STREAM_WINDOW_RANGE};

use crate::args::{DirectoryArgs, ListenArgs, PeerArgs, RunArgs, TrustArgs};

/// The default validity of agents' certificates: an edge site may be off for weeks.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// In a cluster an agent that was off for longer enrols again by itself.
const CLUSTER_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Settings of the running proxy. Groups of flags that stand each for itself are as they were given.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: ListenArgs,
    pub(crate) names: NameArgs,
    pub(crate) forwards: ForwardArgs,
    /// The ports on which the proxy listens by other flags than `--forward`.
    pub(crate) own_ports: BTreeSet<u16>,
    pub(crate) kubernetes: KubernetesArgs,
    pub(crate) directory: DirectoryArgs,
    pub(crate) zone: Zone,
    pub(crate) nodes_from: NodesFrom,
    pub(crate) peers: PeerArgs,
    pub(crate) advertised: Advertised,
    pub(crate) trust: TrustSettings,
    pub(crate) spans: SpanArgs,
    pub(crate) state_dir: PathBuf,
    pub(crate) bpffs: PathBuf,
    pub(crate) stream_window: u32,
    pub(crate) budget: Budget,
    pub(crate) grace: Duration,
}

/// Who issues certificates, and how long they last.
#[derive(Debug)]
pub(crate) struct TrustSettings {
    pub(crate) source: TrustSource,
    pub(crate) server_name: String,
    pub(crate) certificate_lifetime: Duration,
    pub(crate) token_lifetime: Duration,
}

/// Flags that do not fit together.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("--stream-window is {0} bytes: choose 256KiB to 16MiB")]
    StreamWindow(u32),
    #[error("--dns-zone")]
    Zone(#[from] InvalidZone),
    #[error(
        "--directory: in a cluster its Nodes are the only ones, for all proxies must agree: leave \
         out --directory or --kubernetes"
    )]
    FileInCluster,
    #[error(
        "--follow: in a cluster all proxies have its Nodes: leave out --follow or --kubernetes"
    )]
    FollowInCluster,
    #[error(
        "--view-listen: without a cluster no token can be checked: give --kubernetes, or \
         leave it out and use `culvert --ssh HOST`"
    )]
    ViewOutsideCluster,
    #[error("--hosts-address service: give --name-service too, the Service whose address it is")]
    HostsAtNoService,
    #[error(
        "--name-service: there is a Service only in a cluster: give --kubernetes, or --name-listen \
         instead"
    )]
    NameServiceOutsideCluster,
    #[error(
        "--name-listen {0}: its port is one of --name-ports, which --name-service leads to: choose \
         another one"
    )]
    NamePort(NameListen),
    #[error("--forward {0}: the proxy uses this port of the host itself: choose another one")]
    ForwardOnOwnPort(Forward),
    #[error(
        "--forward {forward}: --forward {other} has the same port of this host: choose another one"
    )]
    ForwardTwice {
        forward: Forward,
        other: Box<Forward>,
    },
    #[error("--forward {0}: nodes have labels only in a cluster: name a node")]
    ForwardByLabels(Forward),
}

impl TryFrom<RunArgs> for Config {
    type Error = ConfigError;

    fn try_from(run: RunArgs) -> Result<Self, ConfigError> {
        if !STREAM_WINDOW_RANGE.contains(&run.buffers.stream_window) {
            return Err(ConfigError::StreamWindow(run.buffers.stream_window));
        }
        if run.listen.view_listen.is_some() && !run.kubernetes.is_in_cluster() {
            return Err(ConfigError::ViewOutsideCluster);
        }
        check_names(&run.kubernetes, &run.names.name_listen)?;
        let own_ports = own_ports(&run);
        check_forwards(&run.forwards.forward, &own_ports, &run.kubernetes)?;
        Ok(Self {
            own_ports,
            zone: run.directory.dns_zone.parse()?,
            nodes_from: nodes_from(&run)?,
            advertised: Advertised {
                given: run.trust.advertise.clone(),
                agent_listen: run.listen.agent_listen,
            },
            trust: trust(run.trust, &run.kubernetes),
            listen: run.listen,
            names: run.names,
            forwards: run.forwards,
            kubernetes: run.kubernetes,
            directory: run.directory,
            peers: run.peers,
            spans: run.spans,
            state_dir: run.state_dir,
            bpffs: run.bpffs,
            stream_window: run.buffers.stream_window,
            budget: Budget::new(run.buffers.buffer_budget as usize),
            grace: run.grace,
        })
    }
}

fn check_names(kubernetes: &KubernetesArgs, name_listen: &[NameListen]) -> Result<(), ConfigError> {
    if kubernetes.name_service.is_none() {
        return match kubernetes.hosts_address {
            HostsAddress::Vip => Ok(()),
            HostsAddress::Service => Err(ConfigError::HostsAtNoService),
        };
    }
    if !kubernetes.is_in_cluster() {
        return Err(ConfigError::NameServiceOutsideCluster);
    }
    for given in name_listen {
        if kubernetes.name_ports.contains(given.address.port()) {
            return Err(ConfigError::NamePort(*given));
        }
    }
    Ok(())
}

fn check_forwards(
    given: &[Forward],
    own_ports: &BTreeSet<u16>,
    kubernetes: &KubernetesArgs,
) -> Result<(), ConfigError> {
    for (before, forward) in given.iter().enumerate() {
        if own_ports.contains(&forward.listen.port()) {
            return Err(ConfigError::ForwardOnOwnPort(forward.clone()));
        }
        for other in &given[..before] {
            if other.conflicts_with(forward) {
                return Err(ConfigError::ForwardTwice {
                    forward: forward.clone(),
                    other: Box::new(other.clone()),
                });
            }
        }
        if matches!(forward.to, ForwardTo::Selected(_)) && !kubernetes.is_in_cluster() {
            return Err(ConfigError::ForwardByLabels(forward.clone()));
        }
    }
    Ok(())
}

fn own_ports(run: &RunArgs) -> BTreeSet<u16> {
    let listen = &run.listen;
    let mut addresses = listen.intercept_listen.clone();
    addresses.extend([listen.agent_listen, listen.admin.admin_listen]);
    addresses.push(run.peers.peer_listen);
    addresses.extend(listen.admin.metrics_listen);
    addresses.extend(listen.view_listen);
    addresses.extend(listen.connect_listen);
    let mut ports = BTreeSet::new();
    for address in addresses {
        ports.insert(address.port());
    }
    for given in &run.names.name_listen {
        ports.insert(given.address.port());
    }
    if run.kubernetes.name_service.is_some() {
        ports.extend(run.kubernetes.name_ports.all());
    }
    ports
}

fn nodes_from(run: &RunArgs) -> Result<NodesFrom, ConfigError> {
    let follows = run.peers.follow.is_some();
    if !run.kubernetes.is_in_cluster() {
        return Ok(if follows {
            NodesFrom::Primary
        } else {
            NodesFrom::Operators
        });
    }
    if follows {
        return Err(ConfigError::FollowInCluster);
    }
    if run.directory.directory_file.is_some() {
        return Err(ConfigError::FileInCluster);
    }
    Ok(NodesFrom::Cluster)
}

/// clap accepts flags of one source only, and all of them together.
fn trust(trust: TrustArgs, kubernetes: &KubernetesArgs) -> TrustSettings {
    let usual_lifetime = if kubernetes.is_in_cluster() {
        CLUSTER_LIFETIME
    } else {
        LIFETIME
    };
    let source = if let (Some(cert), Some(key), Some(agent_ca)) =
        (trust.tls_cert, trust.tls_key, trust.agent_ca)
    {
        TrustSource::Ready {
            cert,
            key,
            agent_ca,
        }
    } else if let (Some(cert), Some(key)) = (trust.ca_cert, trust.ca_key) {
        TrustSource::Authority { cert, key }
    } else {
        TrustSource::Embedded
    };
    TrustSettings {
        source,
        server_name: trust.server_name,
        certificate_lifetime: trust.certificate_lifetime.unwrap_or(usual_lifetime),
        token_lifetime: trust.token_lifetime,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn checked(flags: &[&str]) -> Result<Config, ConfigError> {
        let args = Args::try_parse_from([&["culvert-proxy"], flags].concat()).unwrap();
        Config::try_from(args.run)
    }

    #[test]
    fn flags_that_contradict_each_other_are_named() {
        let service = ["--name-service", "culvert-edge"];
        let in_cluster = [&["--kubernetes"][..], &service].concat();
        checked(&in_cluster).unwrap();
        checked(&["--name-listen", "[::]:7450=10250"]).unwrap();
        let hosts = ["--hosts-configmap", "a/b", "--hosts-address", "service"];
        for (flags, words) in [
            (service.to_vec(), "give --kubernetes"),
            (hosts.to_vec(), "give --name-service"),
            (vec!["--view-listen", "10.0.0.1"], "give --kubernetes"),
            (
                [&in_cluster[..], &["--name-listen", "[::]:7450=10250"]].concat(),
                "--name-listen [::]:7450=10250: its port is one of --name-ports",
            ),
        ] {
            let error = checked(&flags).unwrap_err().to_string();
            assert!(error.contains(words), "{flags:?}: {error}");
        }
    }

    #[test]
    fn a_cluster_has_its_own_nodes_and_no_primary() {
        assert_eq!(checked(&[]).unwrap().nodes_from, NodesFrom::Operators);
        let follows = ["--follow", "other.example:7401"];
        assert_eq!(checked(&follows).unwrap().nodes_from, NodesFrom::Primary);
        let cluster = checked(&["--kubernetes"]).unwrap();
        assert_eq!(cluster.nodes_from, NodesFrom::Cluster);
        assert_eq!(cluster.trust.certificate_lifetime, CLUSTER_LIFETIME);
        assert!(matches!(
            checked(&[&["--kubernetes"][..], &follows].concat()),
            Err(ConfigError::FollowInCluster)
        ));
        assert!(matches!(
            checked(&["--kubernetes", "--directory", "nodes.toml"]),
            Err(ConfigError::FileInCluster)
        ));
    }

    #[test]
    fn a_forward_has_a_port_of_its_own_and_labels_only_in_a_cluster() {
        checked(&["--forward", "2222=edge-1:22", "--forward", "2223=edge-1:22"]).unwrap();
        assert!(matches!(
            checked(&["--forward", "7400=edge-1:22"]),
            Err(ConfigError::ForwardOnOwnPort(_))
        ));
        assert!(matches!(
            checked(&["--forward", "2222=edge-1:22", "--forward", "2222=edge-2:22"]),
            Err(ConfigError::ForwardTwice { .. })
        ));
        let by_labels = ["--forward", "2222=site=berlin:22"];
        assert!(matches!(
            checked(&by_labels),
            Err(ConfigError::ForwardByLabels(_))
        ));
        checked(&[&["--kubernetes"][..], &by_labels].concat()).unwrap();
    }

    #[test]
    fn a_stream_window_out_of_range_is_refused() {
        assert!(matches!(
            checked(&["--stream-window", "1KiB"]),
            Err(ConfigError::StreamWindow(1024))
        ));
    }
}
