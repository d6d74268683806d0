//! The flags of certificates and tokens.

use std::path::PathBuf;
use std::time::Duration;

use culvert_api::HostPort;
use culvert_daemon::parse_duration;

/// Who agents and proxy are to each other.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Trust")]
pub(crate) struct TrustArgs {
    /// How agents reach this proxy, for join commands: a DNS name or address and a port; repeat it
    /// for more. Default: this host's own address and the port of --agent-listen.
    #[arg(
        long,
        env = "CULVERT_ADVERTISE",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    pub(crate) advertise: Vec<HostPort>,

    /// The name in the proxy's certificate, which agents verify whatever host they dial.
    #[arg(
        long,
        env = "CULVERT_SERVER_NAME",
        value_name = "NAME",
        default_value = culvert_api::PROXY_SERVER_NAME,
    )]
    pub(crate) server_name: String,

    /// Your own certificate authority (PEM) in place of the one that the proxy makes.
    #[arg(
        long,
        env = "CULVERT_CA_CERT",
        value_name = "FILE",
        requires = "ca_key",
        conflicts_with = "tls_cert"
    )]
    pub(crate) ca_cert: Option<PathBuf>,

    /// The key of --ca-cert (PEM).
    #[arg(
        long,
        env = "CULVERT_CA_KEY",
        value_name = "FILE",
        requires = "ca_cert"
    )]
    pub(crate) ca_key: Option<PathBuf>,

    /// A ready certificate for this proxy (PEM, chain included): no authority is kept here, and
    /// agents bring ready ones too.
    #[arg(
        long,
        env = "CULVERT_TLS_CERT",
        value_name = "FILE",
        requires_all = ["tls_key", "agent_ca"],
    )]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of --tls-cert (PEM).
    #[arg(
        long,
        env = "CULVERT_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(crate) tls_key: Option<PathBuf>,

    /// The authorities of the agents' certificates (PEM), to go with --tls-cert.
    #[arg(
        long,
        env = "CULVERT_AGENT_CA",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(crate) agent_ca: Option<PathBuf>,

    /// How long an agent's certificate lasts; agents renew it after half to two thirds of that.
    /// Default: 30d, and 24h in a Kubernetes cluster.
    #[arg(
        long,
        env = "CULVERT_CERTIFICATE_LIFETIME",
        value_name = "DURATION",
        value_parser = parse_duration,
    )]
    pub(crate) certificate_lifetime: Option<Duration>,

    /// How long a token may be used, unless `token create` says otherwise.
    #[arg(
        long,
        env = "CULVERT_TOKEN_LIFETIME",
        value_name = "DURATION",
        default_value = "24h",
        value_parser = parse_duration,
    )]
    pub(crate) token_lifetime: Duration,
}
