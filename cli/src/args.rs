//! The command line.

mod edge_nodes;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use culvert_api::{NodeName, Query};
use culvert_daemon::parse_duration;
use culvert_migrate::MigrateCommand;

pub(crate) use edge_nodes::{NodeArgs, NodeCommand, TokenCommand, TokenCreate};

/// The namespace of the manifests.
pub(crate) const USUAL_NAMESPACE: &str = "culvert-system";
/// Where programs of Culvert make their sockets.
pub(crate) const USUAL_RUN_DIR: &str = "/run/culvert";

const EXAMPLES: &str = "\
Examples:
  culvert status                             this host, or the cluster of your kubeconfig
  culvert status --ssh root@cloud-1 --ssh root@cloud-2
  kubectl culvert why edge-7:10250           from every cloud node, hop by hop
  culvert dashboard --open                   all of it in the browser
  culvert nodes -o json | jq '.nodes[] | select(.online | not) .node'

Exit status: 0 all is well, or warnings alone; 1 something is wrong; 2 called wrongly.";

const BUNDLE_EXAMPLES: &str = "\
Examples:
  kubectl culvert bundle --anonymize         of the cluster of your kubeconfig
  culvert bundle --ssh root@cloud-1 --ssh root@cloud-2 tuesday.tar.gz";
const CLIENT_EXAMPLES: &str = "\
Example:
  culvert client create prometheus --proxy 203.0.113.1:7402 --ca state/ca.crt";
const TOP_KEYS: &str = "\
Keys:
  1 2 3, Tab   nodes, connections, proxies     s      another order
  arrows, j k  another row                     /      only what has a text
  Enter        why: from every host, hop by    i      only what needs a look
               hop, without a dial             q      leave

Example:
  culvert top --ssh root@cloud-1 --ssh root@cloud-2";
const DASHBOARD_EXAMPLES: &str = "\
Examples:
  culvert dashboard --open                   this host, or the cluster of your kubeconfig
  culvert dashboard --listen 127.0.0.1:7480  there: ssh -L 7480:127.0.0.1:7480 HOST";

/// What Culvert's proxies, nodes and connections do, from all proxies at once.
#[derive(Parser, Debug)]
#[command(
    name = "culvert",
    version = culvert_daemon::BUILD,
    after_help = EXAMPLES,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,

    #[command(flatten)]
    pub(crate) whom: Whom,

    /// How answers are printed: text or json.
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Text, hide_possible_values = true)]
    pub(crate) output: Output,
}

/// Whom to ask. Without any of these flags: the programs of this host, or if there are none, the
/// proxies of the kubeconfig's cluster.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Whom to ask")]
pub(crate) struct Whom {
    /// This host, beside those of other flags.
    #[arg(long, global = true)]
    pub(crate) local: bool,

    /// Another host, by ssh; repeat it for more.
    ///
    /// As ssh takes it: a name, USER@HOST, or ssh://USER@HOST:PORT.
    #[arg(long, global = true, value_name = "HOST", value_parser = ssh_host)]
    pub(crate) ssh: Vec<String>,

    /// The proxies of a cluster, by exec in their pods.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// The same with another file than kubectl's.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The same by the proxies' view, without exec.
    ///
    /// Where exec is forbidden, the view is tried anyway.
    #[arg(long, global = true)]
    pub(crate) view: bool,

    /// The namespace of the proxies' pods.
    #[arg(
        short,
        long,
        global = true,
        value_name = "NAME",
        default_value = USUAL_NAMESPACE
    )]
    pub(crate) namespace: String,

    /// How long each host may take.
    ///
    /// Hosts that take longer are listed as such.
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = parse_duration
    )]
    pub(crate) timeout: Duration,

    /// The folder of this host's sockets.
    #[arg(
        long,
        global = true,
        env = "CULVERT_RUN_DIR",
        hide_env = true,
        hide_short_help = true,
        value_name = "DIR",
        default_value = USUAL_RUN_DIR
    )]
    pub(crate) run_dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// For programs: docs/json.md has the fields.
    Json,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    #[command(flatten)]
    Ask(Question),
    /// A port of this host that leads to a port of a node.
    Forward(ForwardArgs),
    /// Lines for ~/.ssh/config, with which `ssh NODE` comes through a tunnel.
    SshConfig,
    /// Nodes, connections and proxies on this terminal, as they change.
    Top(TopArgs),
    /// Pages for a browser on this host: a map, nodes, connections, failures.
    ///
    /// They renew themselves until ^C. Nothing listens on other hosts.
    Dashboard(DashboardArgs),
    /// Makes certificates of clients that come by TLS, such as Prometheus.
    #[command(subcommand)]
    Client(ClientCommand),
    /// The settings of another tunnel as manifests of Culvert.
    ///
    /// For YurtTunnel, SuperEdge and konnectivity. Reads files, or else the objects of the kubeconfig's cluster. Comments say what has no equal.
    Migrate(MigrateCommand),
    /// The version of this program, or of all.
    Version {
        /// Ask proxies and redirectors, and proxies for the versions of agents.
        #[arg(long)]
        all: bool,
    },
    /// Prints a script by which a shell completes commands and nodes.
    ///
    /// For bash: source <(culvert completion bash). Names come from the proxies that the command
    /// would ask, within a second.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// Commands that ask others.
#[derive(Subcommand, Debug)]
pub(crate) enum Question {
    /// What is wrong and its fix; then nodes, streams and proxies.
    Status(StatusArgs),
    /// The edge nodes: online or not, tunnels, round trips, addresses.
    Nodes(NodesArgs),
    /// All that is known of one node, and what its agent says; or removes it.
    Node(NodeArgs),
    /// Clients' connections, those that wait for their backend first.
    Streams(StreamsArgs),
    /// Connections as they begin and end, refused ones too.
    ///
    /// Shows the last ones, and with -f all that come.
    Observe(ObserveArgs),
    /// Checks all that connections rest on, on every cloud host.
    Check(CheckArgs),
    /// What happens to a connection from every cloud host, and the fix.
    ///
    /// With a port the node's agent dials it; nothing is sent.
    Why {
        /// A node's name, an address or a VIP, with or without a port: edge-7:10250.
        destination: Query,
    },
    /// Whether each node is reached from each cloud host.
    ///
    /// The node's agent dials a port; nothing is sent.
    ConnectivityTest(ConnectivityArgs),
    /// Round trips to a node's agent, in each of its tunnels.
    Ping(PingArgs),
    /// One archive with all that helps to find out later what was wrong.
    ///
    /// Checks, pages, logs, events and rules of every host, and why nodes are offline. Keys and
    /// tokens are in none of it. What cannot be had is listed with the reason.
    Bundle(BundleArgs),
    /// Standard input and output lead to a port of a node, by its agent.
    ///
    /// For ssh: ssh -o ProxyCommand='culvert connect %h:%p' root@edge-7.
    Connect {
        /// The node, with a port or that of ssh.
        destination: Query,
    },
    /// Makes, lists and revokes the tokens by which agents join.
    #[command(subcommand)]
    Token(TokenCommand),
}

#[derive(Subcommand, Debug)]
pub(crate) enum ClientCommand {
    /// Makes a key and a certificate, and prints what Prometheus needs to use them.
    ///
    /// They are signed by clients.crt and clients.key of the same folder, which are made too if they
    /// are missing: the proxy takes clients.crt as the authority of its clients. No proxy is asked.
    Create(ClientCreate),
}

#[derive(Args, Debug)]
#[command(after_help = CLIENT_EXAMPLES)]
pub(crate) struct ClientCreate {
    /// The client's name, as in prometheus: NAME.crt and NAME.key are made.
    pub(crate) name: NodeName,

    /// Where they are made.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) folder: PathBuf,

    /// How long the certificate is valid.
    #[arg(long, value_name = "DURATION", default_value = "365d", value_parser = parse_duration)]
    pub(crate) lifetime: Duration,

    /// The proxy's port for clients with certificates, as this one reaches it.
    #[arg(long, value_name = "HOST:PORT", default_value = "PROXY:7402")]
    pub(crate) proxy: String,

    /// The authority of the proxy, as the client finds it.
    #[arg(long, value_name = "FILE", default_value = "ca.crt")]
    pub(crate) ca: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct ForwardArgs {
    /// The node and its port: edge-7:9100.
    pub(crate) destination: Query,

    /// An address of loopback (default 127.0.0.1 and the same port). Port 0 is any that is free.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: Option<SocketAddr>,
}

#[derive(Args, Debug)]
#[command(after_help = BUNDLE_EXAMPLES)]
pub(crate) struct BundleArgs {
    /// Where it goes (default culvert-bundle-SECONDS.tar.gz). It must not exist.
    pub(crate) file: Option<PathBuf>,

    /// Give nodes, hosts and addresses other names, the same in all of it.
    #[arg(long)]
    pub(crate) anonymize: bool,
}

#[derive(Args, Debug)]
#[command(after_help = TOP_KEYS)]
pub(crate) struct TopArgs {
    /// The pause before all hosts are asked again.
    #[arg(long, short, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub(crate) interval: Duration,
}

#[derive(Args, Debug)]
#[command(after_help = DASHBOARD_EXAMPLES)]
pub(crate) struct DashboardArgs {
    /// Where browsers of this host find the pages: an address of loopback. Port 0 is any that is
    /// free.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,

    /// Show the first page in the user's browser.
    #[arg(long)]
    pub(crate) open: bool,

    /// The pause before all hosts are asked again.
    #[arg(long, short, value_name = "DURATION", default_value = "5s", value_parser = interval)]
    pub(crate) interval: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Ask again until nothing is wrong, for this long at most (default 5m).
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5m",
        value_parser = parse_duration
    )]
    pub(crate) wait: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct NodesArgs {
    /// Only those that no proxy reaches.
    #[arg(long)]
    pub(crate) offline: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StreamsArgs {
    /// Only those to this node.
    pub(crate) node: Option<NodeName>,

    /// Only those without a byte in either direction for this long, such as 10s.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) idle: Option<Duration>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ObserveArgs {
    /// Go on with what comes, until interrupted.
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Without --follow: how many events at most. Each proxy keeps some thousand.
    ///
    /// 100, or all with --since.
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<usize>,

    /// Only those within this time until now, such as 10m.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "follow")]
    pub(crate) since: Option<Duration>,

    /// Instead of these, connections in which nothing has moved for this long, such as 10s.
    ///
    /// With --follow each one when it has been idle for this long, and again after bytes have moved.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = interval,
        conflicts_with_all = ["last", "since", "outcome"]
    )]
    pub(crate) idle: Option<Duration>,

    /// Only those to this node.
    #[arg(long)]
    pub(crate) node: Option<NodeName>,

    /// Only those to this port.
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,

    /// Only those from this address.
    #[arg(long, value_name = "IP")]
    pub(crate) client: Option<IpAddr>,

    /// Only those that ended so, such as finished, refused or offline: the words of the log.
    #[arg(long, value_name = "WORD")]
    pub(crate) outcome: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Flags that the proxies were started with and a check needs too, after `--`.
    ///
    /// Such as --kubeconfig FILE.
    #[arg(last = true, value_name = "FLAG")]
    pub(crate) proxy_flags: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ConnectivityArgs {
    /// Only these nodes.
    pub(crate) nodes: Vec<NodeName>,

    /// The port that is dialled (default: that of kubelet).
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10250,
        hide_default_value = true
    )]
    pub(crate) port: u16,

    /// Also write a report as JUnit has it.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct PingArgs {
    /// The node's name.
    pub(crate) node: NodeName,

    /// How many times each tunnel is asked.
    #[arg(long, short, value_name = "N", default_value = "4")]
    pub(crate) count: NonZeroU32,

    /// The pause between two times.
    #[arg(long, short, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) interval: Duration,
}

/// Hosts are not asked more often than once in a second, and count in seconds.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    if interval < Duration::from_secs(1) {
        return Err("1s is the least".to_owned());
    }
    Ok(interval)
}

/// A word that ssh does not take for an option.
fn ssh_host(text: &str) -> Result<String, String> {
    if text.is_empty() || text.starts_with('-') {
        return Err("write a host's name, USER@HOST or ssh://USER@HOST:PORT".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn short_help_is_one_screen() {
        let help = Arguments::command().render_help().to_string();
        assert!(help.lines().count() <= 48, "{help}");
        assert!(
            help.lines().all(|line| line.chars().count() <= 90),
            "{help}"
        );
    }

    #[test]
    fn a_host_is_no_option_of_ssh() {
        let parsed =
            |host: &str| Arguments::try_parse_from(["culvert", "status", &format!("--ssh={host}")]);
        parsed("root@cloud-1").expect("a host");
        parsed("-oProxyCommand=true").expect_err("an option");
    }

    #[test]
    fn wait_has_a_default_and_takes_no_word_of_others() {
        let wait = |words: &[&str]| {
            let line = [&["culvert", "status"], words].concat();
            let parsed = Arguments::try_parse_from(line).expect("it parses");
            let Command::Ask(Question::Status(status)) = parsed.command else {
                panic!("{parsed:?}");
            };
            status.wait
        };
        assert_eq!(wait(&[]), None);
        assert_eq!(wait(&["--wait"]), Some(Duration::from_mins(5)));
        assert_eq!(wait(&["--wait=9s"]), Some(Duration::from_secs(9)));
    }
}
