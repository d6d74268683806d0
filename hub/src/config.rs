//! The checked form of the command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_daemon::{AdminListen, ForwardProxies, InvalidForwardProxy, Logs};

use crate::args::{Args, Command, KubeletArgs, RunArgs};
use crate::authority::is_pod_address;
use crate::install::Installation;
use crate::kubeconfig::{Kubeconfig, KubeconfigError, NodeCredential, PemSource};
use crate::server_order::ServerOrder;
use crate::state_dir::StateDir;

/// Where kubeadm puts kubelet's kubeconfig.
const KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";

/// Settings of the running hub.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) state: StateDir,
    pub(crate) listen: SocketAddr,
    /// Empty: pods are not served.
    pub(crate) pod_listen: Vec<SocketAddr>,
    pub(crate) admin: AdminListen,
    /// The API server, and how the node proves to it who it is.
    pub(crate) cloud: Kubeconfig,
    /// The file that `cloud` was read from.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// All API servers of the cluster; not empty.
    pub(crate) servers: Vec<http::Uri>,
    pub(crate) server_order: ServerOrder,
    /// `HTTPS_PROXY` of the environment.
    pub(crate) forward: ForwardProxies,
    pub(crate) grace: Duration,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error(
        "--listen {0} is not a loopback address: programs on this node only may use the kubelet port"
    )]
    NotLoopback(SocketAddr),
    #[error(
        "--pod-listen {0} is in neither 169.254.0.0/16 nor fd00:c7:74::/48: other hosts might reach it"
    )]
    NotForPods(SocketAddr),
    #[error("--server {0} is not an https address")]
    NotHttps(http::Uri),
    #[error(
        "no kubeconfig leads to the API server: {} has none of `culvert-hub install`, and {} is \
         missing: run install, or give --kubeconfig",
        state.display(), path.display()
    )]
    NoKubeconfig { path: PathBuf, state: PathBuf },
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    ForwardProxy(#[from] InvalidForwardProxy),
}

impl Args {
    pub(crate) fn chosen_command(&self) -> &Command {
        &self.command
    }

    /// Begins the log.
    pub(crate) fn logs(&self) -> anyhow::Result<Logs> {
        Logs::init(&self.log, self.log_format)
    }

    /// Where a running hub serves its pages.
    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.admin_listen
    }

    /// The socket at which the `log` command asks a running hub.
    pub(crate) fn admin_socket(&self) -> &Path {
        &self.admin_socket
    }

    /// Checks the settings of the running hub, for which it reads a kubeconfig.
    pub(crate) fn config(&self, run: &RunArgs) -> Result<Config, ConfigError> {
        if !self.listen.ip().is_loopback() {
            return Err(ConfigError::NotLoopback(self.listen));
        }
        if let Some(address) = run.pod_listen.iter().find(|it| !is_pod_address(it.ip())) {
            return Err(ConfigError::NotForPods(*address));
        }
        let state = StateDir::new(self.state_dir.clone());
        let (cloud, kubeconfig) = cloud(run, &state)?;
        let servers = match &*run.server {
            [] => vec![cloud.server.clone()],
            given => given.to_vec(),
        };
        Ok(Config {
            pod_listen: run.pod_listen.clone(),
            cloud,
            kubeconfig,
            servers,
            server_order: run.server_order,
            forward: ForwardProxies::from_environment(|name| std::env::var(name).ok())?,
            state,
            listen: self.listen,
            admin: AdminListen {
                program: "culvert-hub",
                address: self.admin_listen,
                metrics: self.metrics_listen,
                socket: self.admin_socket.clone(),
            },
            grace: run.grace,
        })
    }
}

impl Args {
    /// What `install` and its like work on.
    pub(crate) fn installation(&self, kubelet: &KubeletArgs) -> Installation {
        Installation {
            state: StateDir::new(self.state_dir.clone()),
            kubeconfig: kubelet.kubelet_kubeconfig.clone(),
            listen: self.listen,
        }
    }
}

/// The flags go before the kubeconfig, which is not read if they say everything. Returns its path
/// too.
fn cloud(run: &RunArgs, state: &StateDir) -> Result<(Kubeconfig, Option<PathBuf>), ConfigError> {
    for server in &run.server {
        if server.scheme_str() != Some("https") || server.host().is_none() {
            return Err(ConfigError::NotHttps(server.clone()));
        }
    }
    if let RunArgs {
        server_ca: Some(authority),
        client_cert: Some(certificate),
        client_key: Some(key),
        ..
    } = run
        && let Some(server) = run.server.first()
    {
        let cloud = Kubeconfig {
            server: server.clone(),
            authority: PemSource::File(authority.clone()),
            credential: NodeCredential::Certificate {
                certificate: PemSource::File(certificate.clone()),
                key: PemSource::File(key.clone()),
            },
        };
        return Ok((cloud, None));
    }
    let path = match &run.kubeconfig {
        Some(path) => path.clone(),
        None => kubeconfig_of_node(state)?,
    };
    let read = Kubeconfig::read(&path)?;
    let cloud = Kubeconfig {
        server: run.server.first().cloned().unwrap_or(read.server),
        authority: match &run.server_ca {
            Some(authority) => PemSource::File(authority.clone()),
            None => read.authority,
        },
        credential: match (&run.client_cert, &run.client_key) {
            (Some(certificate), Some(key)) => NodeCredential::Certificate {
                certificate: PemSource::File(certificate.clone()),
                key: PemSource::File(key.clone()),
            },
            (Some(_) | None, Some(_) | None) => read.credential,
        },
    };
    Ok((cloud, Some(path)))
}

/// The copy of `install`, or what `uninstall` has put back, or kubeadm's.
fn kubeconfig_of_node(state: &StateDir) -> Result<PathBuf, ConfigError> {
    let kept = state.cloud_kubeconfig();
    if kept.exists() {
        return Ok(kept);
    }
    let path = match std::fs::read(state.uninstalled()) {
        Ok(named) => PathBuf::from(OsString::from_vec(named)),
        Err(_) => KUBELET_KUBECONFIG.into(),
    };
    if !path.exists() {
        return Err(ConfigError::NoKubeconfig {
            path,
            state: state.path().to_owned(),
        });
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::install;

    fn config(line: &[&str]) -> Result<Config, ConfigError> {
        let args = Args::parse_from([&["culvert-hub", "run"], line].concat());
        let Command::Run(run) = &args.command else {
            unreachable!("the line is a run");
        };
        args.config(run)
    }

    const FLAGS: [&str; 8] = [
        "--server",
        "https://api:6443",
        "--server-ca",
        "/ca",
        "--client-cert",
        "/cert",
        "--client-key",
        "/key",
    ];

    #[test]
    fn with_all_flags_no_kubeconfig_is_read() {
        let config = config(&FLAGS).unwrap();
        assert_eq!(config.cloud.server.host(), Some("api"));
        let file = |path: &str| PemSource::File(path.into());
        let expected = NodeCredential::Certificate {
            certificate: file("/cert"),
            key: file("/key"),
        };
        assert_eq!(config.cloud.credential, expected);
    }

    #[test]
    fn after_uninstall_the_kubeconfig_is_where_kubelet_has_it() {
        const KUBECONFIG: &str = "clusters: [{name: k, cluster: {server: 'https://api:6443', certificate-authority: /ca}}]\n\
            users: [{name: n, user: {client-certificate: /c, client-key: /k}}]\n\
            contexts: [{name: x, context: {cluster: k, user: n}}]\ncurrent-context: x\n";
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("hub");
        let kubeconfig = directory.path().join("kubelet.kubeconfig");
        std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
        let installation = Installation {
            state: StateDir::new(state.clone()),
            kubeconfig: kubeconfig.clone(),
            listen: "127.0.0.1:7440".parse().unwrap(),
        };
        let line = ["--state-dir", state.to_str().unwrap()];
        install::install(&installation).unwrap();
        let kept = config(&line).unwrap().kubeconfig.unwrap();
        assert_eq!(kept, installation.state.cloud_kubeconfig());
        install::uninstall(&installation).unwrap();
        assert_eq!(config(&line).unwrap().kubeconfig.unwrap(), kubeconfig);
        std::fs::remove_file(&kubeconfig).unwrap();
        let error = config(&line).unwrap_err();
        assert!(matches!(error, ConfigError::NoKubeconfig { .. }), "{error}");
    }

    #[test]
    fn the_node_port_is_for_this_node_only() {
        let line = [&FLAGS[..], &["--listen", "0.0.0.0:7440"]].concat();
        let error = config(&line).unwrap_err();
        assert!(matches!(error, ConfigError::NotLoopback(_)), "{error}");
    }

    #[test]
    fn a_pod_port_is_where_no_other_host_has_a_route_to_by_itself() {
        let pods = ["--pod-listen", "169.254.74.40:7440,[fd00:c7:74::40]:7440"];
        let config_of = |pods: &[&'static str]| config(&[&FLAGS[..], pods].concat());
        assert_eq!(config_of(&pods).unwrap().pod_listen.len(), 2);
        assert!(config(&FLAGS).unwrap().pod_listen.is_empty());
        let error = config_of(&["--pod-listen", "10.0.0.1:7440"]).unwrap_err();
        assert!(matches!(error, ConfigError::NotForPods(_)), "{error}");
    }
}
