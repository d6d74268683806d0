//! The command lines of operators: `culvert-proxy node ...`, `token ...`, `status`, `streams`,
//! `explain` and `ping`, with their output.

mod client;
mod explain;
mod node_list;
mod ping;
mod streams;
mod table;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use culvert_api::proto::control as proto;
use culvert_api::{NodeName, join_command};
use culvert_daemon::parse_duration;
use culvert_proxy_core::clock::UnixTime;

pub use client::Client;
pub use explain::ExplainCommand;
pub use ping::PingCommand;
pub use streams::StreamsCommand;
use table::table;

/// Makes, lists and revokes the one-time tokens by which agents join.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Adds or changes a node, or all nodes of a file, and prints the command with which its agent
    /// joins. The command works once, until it expires.
    Create(TokenCreate),
    /// Lists the tokens.
    List,
    /// Makes a token useless.
    Revoke {
        /// The token's id, as `culvert-proxy token list` shows it.
        id: String,
    },
}

/// The node, and how it is reached.
#[derive(Args, Clone, Debug)]
pub struct TokenCreate {
    /// The node's name: lower-case letters, digits, `-` and `.`, as in edge-1.
    #[arg(required_unless_present = "nodes")]
    node: Option<NodeName>,

    /// Makes a token for every node of this file. Each line is a node's name, optionally followed by
    /// its addresses. The output has a line for each: the node, a tab, and its join command.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["node", "address"])]
    nodes: Option<PathBuf>,

    /// One token for all nodes of the file, and one command: each node may use it once. The machine
    /// that joins says which of them it is, so whoever has the token can join as any that has not
    /// joined yet.
    #[arg(long, requires = "nodes")]
    group: bool,

    /// An address that the node has in its own network; repeat it for more. Left out: those that
    /// the node has stay.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    address: Vec<IpAddr>,

    /// A port on these addresses that is steered into the proxy; repeat it for more. Default: 7429,
    /// 9100, 10250 and 10255, or those that the node has.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..),
    )]
    port: Vec<u16>,

    /// How long the token may be used, such as 30m or 2d; otherwise as the proxy's --token-lifetime
    /// says.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    lifetime: Option<Duration>,
}

/// Lists the proxies: this one, and those that it knows.
#[derive(Args, Clone, Debug)]
pub struct StatusCommand {}

impl StatusCommand {
    /// Asks the proxy behind the socket, and prints the answer.
    pub async fn run(&self, control_socket: &Path) -> Result<()> {
        let mut client = Client::connect(control_socket).await?;
        print!("{}", proxy_table(&client.list_proxies().await?));
        Ok(())
    }
}

/// Lists and removes edge nodes.
#[derive(Clone, Debug, Subcommand)]
pub enum NodeCommand {
    /// Lists the nodes with their addresses, VIPs and tunnels.
    List,
    /// Removes a node: its certificates and tokens are revoked and its tunnels closed at once.
    Remove {
        /// The node's name, as `culvert-proxy node list` shows it.
        node: NodeName,
    },
}

impl TokenCommand {
    /// Sends the command to the proxy behind the socket, and prints the answer.
    pub async fn run(&self, control_socket: &Path) -> Result<()> {
        let mut client = Client::connect(control_socket).await?;
        match self {
            Self::Create(create) => create.run(&mut client).await?,
            Self::List => print!("{}", token_table(&client.list_tokens().await?)),
            Self::Revoke { id } => {
                client.revoke_token(id).await?;
                println!("token {id} is revoked");
            }
        }
        Ok(())
    }
}

impl NodeCommand {
    /// Sends the command to the proxy behind the socket, and prints the answer.
    pub async fn run(&self, control_socket: &Path) -> Result<()> {
        let mut client = Client::connect(control_socket).await?;
        match self {
            Self::List => {
                let listed = client.list_nodes_with_note().await?;
                if !listed.note.is_empty() {
                    eprintln!("# note: {}", listed.note);
                }
                print!("{}", node_table(&listed.nodes));
            }
            Self::Remove { node } => {
                client.remove_node(node).await?;
                println!(
                    "{node} is removed: its certificates and tokens are revoked and its tunnels \
                     closed"
                );
            }
        }
        Ok(())
    }
}

impl TokenCreate {
    async fn run(&self, client: &mut Client) -> Result<()> {
        if let Some(node) = &self.node {
            self.create_one(client, node).await?;
        }
        if let Some(file) = &self.nodes {
            self.create_all(client, file).await?;
        }
        Ok(())
    }

    async fn create_one(&self, client: &mut Client, node: &NodeName) -> Result<()> {
        let request = self.request(node, &self.address);
        let created = client.create_token(request).await?;
        for note in &created.notes {
            eprintln!("# note: {note}");
        }
        let expires = UnixTime::from_seconds(created.expires);
        eprintln!(
            "# run this as root on {node}, once its user culvert is made (docs/install.md); it \
             works once, until {expires}:"
        );
        println!("{}", join_command(&created)?);
        Ok(())
    }

    async fn create_all(&self, client: &mut Client, file: &Path) -> Result<()> {
        let mut noted = BTreeSet::new();
        let mut group: Option<proto::CreateTokenResponse> = None;
        let nodes = node_list::read(file)?;
        let count = nodes.len();
        for (node, addresses) in nodes {
            let mut request = self.request(&node, &addresses);
            if let Some(group) = &group {
                request.token.clone_from(&group.token);
            }
            let created = client
                .create_token(request)
                .await
                .with_context(|| format!("{node}: it and the nodes below it have no token"))?;
            for note in &created.notes {
                if noted.insert(note.clone()) {
                    eprintln!("# note: {note}");
                }
            }
            if self.group {
                group = Some(created);
            } else {
                println!("{node}\t{}", join_command(&created)?);
            }
        }
        if let Some(group) = group {
            let expires = UnixTime::from_seconds(group.expires);
            eprintln!(
                "# run this as root on each of the {count} nodes, once its user culvert is made \
                 (docs/install.md); it works once on each, until {expires}. In place of \
                 \"$(hostname)\" write the node's name where the two differ:"
            );
            println!("{} --node \"$(hostname)\"", join_command(&group)?);
        }
        Ok(())
    }

    fn request(&self, node: &NodeName, addresses: &[IpAddr]) -> proto::CreateTokenRequest {
        proto::CreateTokenRequest {
            node: node.to_string(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            ports: self.port.iter().copied().map(u32::from).collect(),
            // Zero asks for the default: a token without lifetime would be of no use.
            lifetime_seconds: self
                .lifetime
                .map_or(0, |lifetime| lifetime.as_secs().max(1)),
            token: String::new(),
        }
    }
}

fn token_table(tokens: &[proto::TokenStatus]) -> String {
    let mut rows = Vec::new();
    for token in tokens {
        rows.push(vec![
            token.id.clone(),
            token.node.clone(),
            token.state.clone(),
            UnixTime::from_seconds(token.expires).to_string(),
        ]);
    }
    table(&["ID", "NODE", "STATE", "EXPIRES"], &rows)
}

/// A line for each proxy. The first one is the proxy that answers.
fn proxy_table(proxies: &[proto::ProxyStatus]) -> String {
    let mut rows = Vec::new();
    for (place, proxy) in proxies.iter().enumerate() {
        let ends = match proxy.certificate_ends {
            0 => "-".to_owned(),
            seconds => UnixTime::from_seconds(seconds).to_string(),
        };
        rows.push(vec![
            proxy.host.clone(),
            link(place, proxy),
            proxy.tunnels.to_string(),
            proxy.nodes.to_string(),
            proxy.streams.to_string(),
            proxy.version.clone(),
            ends,
        ]);
    }
    let head = [
        "PROXY",
        "LINK",
        "TUNNELS",
        "NODES",
        "STREAMS",
        "VERSION",
        "CERTIFICATE ENDS",
    ];
    table(&head, &rows)
}

fn link(place: usize, proxy: &proto::ProxyStatus) -> String {
    match (place, proxy.links, proxy.draining) {
        (0, ..) => "this proxy".to_owned(),
        (_, 0, _) => "no link".to_owned(),
        (_, _, true) => "draining".to_owned(),
        (..) => match proxy.round_trip_micros {
            0 => "linked".to_owned(),
            micros => format!("{:.1?} away", Duration::from_micros(micros)),
        },
    }
}

/// A line for each node, followed by a line for each address that does not route.
fn node_table(nodes: &[proto::NodeStatus]) -> String {
    let mut rows = Vec::new();
    let mut reasons = BTreeSet::new();
    for node in nodes {
        rows.push(node_row(node));
        for reason in &node.reasons {
            if !reason.is_empty() {
                reasons.insert(reason);
            }
        }
    }
    let head = ["NODE", "TUNNELS", "ADDRESSES", "VIP4", "VIP6", "PORTS"];
    let mut text = table(&head, &rows);
    for reason in reasons {
        text.push_str(&format!("* {reason}\n"));
    }
    for node in nodes {
        if !node.misplaced.is_empty() {
            text.push_str(&format!("! {}: {}\n", node.name, node.misplaced));
        }
    }
    text
}

fn node_row(node: &proto::NodeStatus) -> Vec<String> {
    let ports: Vec<String> = node.ports.iter().map(ToString::to_string).collect();
    let mut addresses = Vec::new();
    for (address, reason) in node.addresses.iter().zip(&node.reasons) {
        let mark = if reason.is_empty() { "" } else { "*" };
        addresses.push(format!("{address}{mark}"));
    }
    let elsewhere = match node.elsewhere.as_slice() {
        [] => String::new(),
        hosts => format!(" (also {})", hosts.join(",")),
    };
    vec![
        node.name.clone(),
        format!("{}{elsewhere}{}", node.tunnels, mark_of_misplaced(node)),
        or_dash(addresses.join(",")),
        node.vip4.clone(),
        node.vip6.clone(),
        or_dash(ports.join(",")),
    ]
}

fn mark_of_misplaced(node: &proto::NodeStatus) -> &'static str {
    if node.misplaced.is_empty() { "" } else { "!" }
}

fn or_dash(text: String) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_a_table_with_the_one_that_answers_first() {
        let proxy = |host: &str, links, round_trip_micros| proto::ProxyStatus {
            host: host.into(),
            version: "0.1.0".into(),
            tunnels: 3,
            nodes: 2,
            links,
            round_trip_micros,
            ..proto::ProxyStatus::default()
        };
        let proxies = [proxy("a", 0, 0), proxy("b", 2, 1500), proxy("c", 0, 0)];
        assert_eq!(
            proxy_table(&proxies),
            "PROXY  LINK        TUNNELS  NODES  STREAMS  VERSION  CERTIFICATE ENDS\n\
             a      this proxy  3        2      0        0.1.0    -\n\
             b      1.5ms away  3        2      0        0.1.0    -\n\
             c      no link     3        2      0        0.1.0    -\n"
        );
    }

    #[test]
    fn nodes_are_a_table_with_the_reasons_below() {
        let node = |name: &str, vip4: &str| proto::NodeStatus {
            name: name.into(),
            addresses: vec!["192.168.1.10".into()],
            reasons: vec!["192.168.1.10 belongs to edge-2 and edge-3: use their names".into()],
            vip4: vip4.into(),
            vip6: "fd00::1".into(),
            ports: vec![9100, 10250],
            tunnels: 2,
            ..proto::NodeStatus::default()
        };
        assert_eq!(
            node_table(&[
                node("edge-2", "198.18.0.2"),
                proto::NodeStatus {
                    misplaced: "2 agents".into(),
                    ..node("edge-3", "198.18.0.13")
                }
            ]),
            "NODE    TUNNELS  ADDRESSES      VIP4         VIP6     PORTS\n\
             edge-2  2        192.168.1.10*  198.18.0.2   fd00::1  9100,10250\n\
             edge-3  2!       192.168.1.10*  198.18.0.13  fd00::1  9100,10250\n\
             * 192.168.1.10 belongs to edge-2 and edge-3: use their names\n\
             ! edge-3: 2 agents\n"
        );
    }
}
