//! The command line, and the environment variables that stand in for it. [`crate::config`] checks
//! what it means.

use std::net::{AddrParseError, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use culvert_daemon::{LogCommand, LogFormat, listen_address, parse_duration};
use http::Uri;

use crate::server_order::ServerOrder;

/// The API endpoint of an edge node: passes requests to the API server, remembers its answers, and
/// answers from them while the API server cannot be reached.
#[derive(Parser, Debug)]
#[command(name = "culvert-hub", version = culvert_daemon::BUILD, next_line_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Directory with the local authority and the remembered answers; made if missing, readable by
    /// its owner only.
    #[arg(
        long,
        env = "CULVERT_HUB_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/culvert/hub",
        global = true
    )]
    pub(crate) state_dir: PathBuf,

    /// Unix socket, mode 0600, of the running hub's pages and of the `log` command.
    #[arg(
        long,
        env = "CULVERT_HUB_ADMIN_SOCKET",
        value_name = "PATH",
        default_value = "/run/culvert/hub/admin.sock",
        global = true
    )]
    pub(crate) admin_socket: PathBuf,

    /// Address of the kubelet port: what kubelet and the node's other programs ask. Loopback only.
    #[arg(
        long,
        env = "CULVERT_HUB_LISTEN",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:7440",
        global = true
    )]
    pub(crate) listen: SocketAddr,

    /// Address of /livez, /readyz, /metrics and /debug.
    #[arg(
        long,
        env = "CULVERT_HUB_ADMIN_LISTEN",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:7439",
        global = true
    )]
    pub(crate) admin_listen: SocketAddr,

    /// Address of /metrics alone, such as `[::]`, for scrapers that do not reach --admin-listen.
    /// Off by default.
    #[arg(
        long,
        env = "CULVERT_HUB_METRICS_LISTEN",
        value_name = "IP[:PORT]",
        value_parser = metrics_listen,
        global = true
    )]
    pub(crate) metrics_listen: Option<SocketAddr>,

    /// What to log: a level such as `info`, or filters such as `info,culvert_hub=debug`.
    #[arg(
        long,
        env = "CULVERT_HUB_LOG",
        value_name = "FILTER",
        default_value = "info",
        global = true
    )]
    pub(crate) log: String,

    /// How log lines look: `text` or `json`.
    #[arg(
        long,
        env = "CULVERT_HUB_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text",
        global = true
    )]
    pub(crate) log_format: LogFormat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Runs the hub.
    Run(RunArgs),
    /// Points kubelet to the hub: makes a certificate for it and changes its kubeconfig, whose
    /// original is kept.
    Install(KubeletArgs),
    /// Puts kubelet's kubeconfig back, byte for byte.
    Uninstall(KubeletArgs),
    /// Says what `install` would change, and changes nothing.
    Check(KubeletArgs),
    /// Prints what the running hub knows: the link, and whether the node would survive a reboot.
    Status,
    /// Says who answers a request now and without a link, from what, and by which grant.
    Explain(ExplainArgs),
    /// Changes what the running hub logs, until the next change or restart.
    Log(LogCommand),
}

/// What the running hub needs. All of it is in kubelet's kubeconfig.
#[derive(clap::Args, Debug)]
pub(crate) struct RunArgs {
    /// The API server, or several of one cluster: repeat it. All addresses of a name are tried too.
    /// Default: the one in --kubeconfig.
    #[arg(
        long,
        env = "CULVERT_HUB_SERVER",
        value_name = "https://HOST:PORT",
        value_delimiter = ','
    )]
    pub(crate) server: Vec<Uri>,

    /// Which of several servers a new connection goes to: the first that answers, or one after the
    /// other.
    #[arg(
        long,
        env = "CULVERT_HUB_SERVER_ORDER",
        value_enum,
        default_value_t,
        value_name = "ORDER"
    )]
    pub(crate) server_order: ServerOrder,

    /// Kubelet's kubeconfig as it was before `install`. Default: the copy that `install` has kept,
    /// or /etc/kubernetes/kubelet.conf.
    #[arg(long, env = "CULVERT_HUB_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The authority of the API server's certificate (PEM). Default: the one in --kubeconfig.
    #[arg(long, env = "CULVERT_HUB_SERVER_CA", value_name = "FILE")]
    pub(crate) server_ca: Option<PathBuf>,

    /// The node's certificate for the API server (PEM, chain included), read again when it changes.
    /// Default: the one in --kubeconfig.
    #[arg(
        long,
        env = "CULVERT_HUB_CLIENT_CERT",
        value_name = "FILE",
        requires = "client_key"
    )]
    pub(crate) client_cert: Option<PathBuf>,

    /// The key of --client-cert (PEM). Both may be in one file.
    #[arg(
        long,
        env = "CULVERT_HUB_CLIENT_KEY",
        value_name = "FILE",
        requires = "client_cert"
    )]
    pub(crate) client_key: Option<PathBuf>,

    /// Address of a pod port: what the pods of this node ask, with their tokens. In 169.254.0.0/16 or
    /// fd00:c7:74::/48, such as 169.254.74.40:7440; the host must have the address. Once for each of
    /// IPv4 and IPv6. New pods are then led there. Default: none.
    #[arg(
        long,
        env = "CULVERT_HUB_POD_LISTEN",
        value_name = "IP:PORT",
        value_delimiter = ','
    )]
    pub(crate) pod_listen: Vec<SocketAddr>,

    /// How long requests may go on after SIGTERM. Watches end at once.
    #[arg(
        long,
        env = "CULVERT_HUB_GRACE",
        value_name = "DURATION",
        default_value = "5s",
        value_parser = parse_duration,
    )]
    pub(crate) grace: Duration,
}

/// A request to the running hub, which is not sent.
#[derive(clap::Args, Debug)]
pub(crate) struct ExplainArgs {
    /// `GET`, say.
    #[arg(value_name = "METHOD")]
    pub(crate) method: String,

    /// Path and query, such as /api/v1/namespaces/shop/pods.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// Who asks: `node`, `sa:NAMESPACE/NAME` or `user:NAME`.
    #[arg(long = "as", value_name = "IDENTITY", default_value = "node")]
    pub(crate) identity: String,
}

/// The kubelet of this node.
#[derive(clap::Args, Debug)]
pub(crate) struct KubeletArgs {
    /// Kubelet's kubeconfig.
    #[arg(
        long,
        env = "CULVERT_HUB_KUBELET_KUBECONFIG",
        value_name = "FILE",
        default_value = "/etc/kubernetes/kubelet.conf"
    )]
    pub(crate) kubelet_kubeconfig: PathBuf,
}

/// `--metrics-listen`: port 7438, unless it names another.
fn metrics_listen(text: &str) -> Result<SocketAddr, AddrParseError> {
    listen_address(text, 7_438)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
