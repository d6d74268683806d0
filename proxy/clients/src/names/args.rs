//! The flags of name-routed listeners.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

use ipnet::IpNet;

/// Where clients that name their node connect, and who they may be.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Listeners")]
pub struct NameArgs {
    /// Where clients that nothing steers reach a port of every node, such as [::]:7450=10250; repeat
    /// it for more. The node is the server name of TLS, which passes unchanged, or the Host of each
    /// HTTP/1.1 request: a node's name, alone or followed by the zone.
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "an address of IPv6 in the help is no link"
    )]
    #[arg(
        long,
        env = "CULVERT_NAME_LISTEN",
        value_name = "IP:PORT[=PORT]",
        value_delimiter = ','
    )]
    pub name_listen: Vec<NameListen>,

    /// Who may connect to --name-listen and --name-service; others are reset. Repeat it for more.
    /// Default: private, shared, link-local and loopback addresses, --pod-range, this host, and the
    /// cluster's cloud nodes.
    #[arg(
        long,
        env = "CULVERT_NAME_CLIENT",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    pub name_client: Vec<IpNet>,
}

/// A value of `--name-listen`: an own address, and the port of every node that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameListen {
    /// The address.
    pub address: SocketAddr,
    /// The port of the nodes that it stands for.
    pub node_port: NonZeroU16,
}

/// A text that is no value of `--name-listen`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?}: write IP:PORT=NODE-PORT, such as [::]:7450=10250, where clients connect and the port \
     of the nodes; without =NODE-PORT both ports are the same"
)]
pub struct InvalidNameListen(String);

impl FromStr for NameListen {
    type Err = InvalidNameListen;

    fn from_str(text: &str) -> Result<Self, InvalidNameListen> {
        parse(text).ok_or_else(|| InvalidNameListen(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<NameListen> {
    let (address, port) = match text.split_once('=') {
        Some((address, port)) => (address, Some(port)),
        None => (text, None),
    };
    let address: SocketAddr = address.parse().ok()?;
    let node_port = match port {
        Some(port) => port.parse().ok()?,
        None => NonZeroU16::new(address.port())?,
    };
    if address.port() == 0 {
        return None;
    }
    Some(NameListen { address, node_port })
}

impl fmt::Display for NameListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.address, self.node_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_names_the_port_of_the_nodes() {
        for (text, shown) in [
            ("[::]:7450=10250", "[::]:7450=10250"),
            ("192.0.2.1:9100", "192.0.2.1:9100=9100"),
        ] {
            assert_eq!(text.parse::<NameListen>().unwrap().to_string(), shown);
        }
        for wrong in [
            "7450=10250",
            "[::]:7450=",
            "[::]:7450=0",
            "[::]:0=10250",
            "[::]:0",
            "[::]:7450=kubelet",
            "",
        ] {
            let error = wrong.parse::<NameListen>().unwrap_err().to_string();
            assert!(error.contains("IP:PORT=NODE-PORT"), "{error}");
        }
    }
}
