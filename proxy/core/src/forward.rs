//! One entry of the TCP map: `[IP:]PORT=NODE:PORT`, or `[IP:]PORT=SELECTOR:PORT`.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::str::FromStr;

use culvert_api::NodeName;

use crate::selector::NodeSelector;

/// The length at which an invalid text is cut in messages.
const SHOWN_CHARS: usize = 100;

/// A port of this host that leads to one port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where the proxy listens.
    pub listen: SocketAddr,
    /// Where it leads.
    pub to: ForwardTo,
    /// The port.
    pub port: NonZeroU16,
}

/// Where a forwarded port leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardTo {
    /// To this node.
    Node(NodeName),
    /// Some connected node of those that the selector selects.
    Selected(NodeSelector),
}

/// A text that is no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?}: {problem}: write [IP:]PORT=NODE:PORT, such as 2222=edge-1:22, or a label selector \
     in place of the node, such as 2222=node-restriction.kubernetes.io/site=berlin:22"
)]
pub struct InvalidForward {
    text: String,
    problem: String,
}

impl Forward {
    /// Whether both cannot listen at once.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let own = self.listen;
        let other = other.listen;
        let is_every = own.ip().is_unspecified() || other.ip().is_unspecified();
        own.port() == other.port() && (is_every || own.ip() == other.ip())
    }
}

impl FromStr for Forward {
    type Err = InvalidForward;

    fn from_str(text: &str) -> Result<Self, InvalidForward> {
        parse(text).map_err(|problem| InvalidForward {
            text: excerpt(text),
            problem,
        })
    }
}

/// The part of a text that a message repeats.
fn excerpt(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

fn parse(text: &str) -> Result<Forward, String> {
    let (listen, target) = text.split_once('=').ok_or("it has no `=`")?;
    let (to, port) = target
        .rsplit_once(':')
        .ok_or("it has no port of the node")?;
    let port = port
        .parse()
        .map_err(|_| format!("{:?} is not a port of a node", excerpt(port)))?;
    Ok(Forward {
        listen: own_address(listen)
            .ok_or_else(|| format!("{:?} is not a port of this host", excerpt(listen)))?,
        to: to.parse()?,
        port,
    })
}

/// Without an address: every one.
fn own_address(text: &str) -> Option<SocketAddr> {
    let address = match text.parse() {
        Ok(port) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        Err(_) => text.parse().ok()?,
    };
    if address.port() == 0 {
        return None;
    }
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

impl FromStr for ForwardTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(node) => Ok(Self::Node(node)),
            Err(_) => match text.parse() {
                Ok(selector) => Ok(Self::Selected(selector)),
                Err(_) => Err(format!(
                    "{:?} is neither a node's name nor a label selector",
                    excerpt(text)
                )),
            },
        }
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:{}", self.listen, self.to, self.port)
    }
}

impl fmt::Display for ForwardTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => node.fmt(f),
            Self::Selected(selector) => selector.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_a_node_or_selects_some() {
        for (text, shown) in [
            ("2222=edge-1:22", "[::]:2222=edge-1:22"),
            ("127.0.0.1:2222=edge-1:22", "127.0.0.1:2222=edge-1:22"),
            ("[::1]:2222=edge-1.site-a:22", "[::1]:2222=edge-1.site-a:22"),
            ("2222=site=berlin:22", "[::]:2222=site=berlin:22"),
            (
                "2222=example.com/gateway,site!=berlin:22",
                "[::]:2222=example.com/gateway,site!=berlin:22",
            ),
        ] {
            let forward: Forward = text.parse().unwrap();
            assert_eq!(forward.to_string(), shown);
            assert_eq!(shown.parse(), Ok(forward), "{shown}");
        }
    }

    #[test]
    fn entries_that_cannot_listen_at_once_conflict() {
        let conflict = |one: &str, other: &str| {
            let entry = |listen| -> Forward { format!("{listen}=edge-1:22").parse().unwrap() };
            entry(one).conflicts_with(&entry(other))
        };
        for (one, other) in [
            ("2222", "2222"),
            ("2222", "127.0.0.1:2222"),
            ("0.0.0.0:2222", "[::1]:2222"),
            ("[::ffff:127.0.0.1]:2222", "127.0.0.1:2222"),
        ] {
            assert!(conflict(one, other), "{one} and {other}");
        }
        assert!(!conflict("2222", "2223"));
        assert!(!conflict("127.0.0.1:2222", "127.0.0.2:2222"));
    }

    #[test]
    fn what_is_wrong_in_an_entry_is_named() {
        for (text, problem) in [
            ("", "no `=`"),
            ("2222", "no `=`"),
            ("2222=edge-1", "no port of the node"),
            ("2222=edge-1:ssh", "\"ssh\" is not a port of a node"),
            ("2222=edge-1:0", "\"0\" is not a port of a node"),
            ("0=edge-1:22", "\"0\" is not a port of this host"),
            ("x=edge-1:22", "\"x\" is not a port of this host"),
            ("2222=:22", "neither a node's name nor a label selector"),
            ("2222=site in berlin:22", "neither a node's name nor"),
        ] {
            let error = text.parse::<Forward>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
            assert!(error.contains("write [IP:]PORT=NODE:PORT"), "{error}");
        }
    }
}
