//! A host, by name or address, and a port: what a client, an agent or an operator dials.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest DNS name, RFC 1035.
const MAX_NAME: usize = 253;
/// Longest part of a DNS name between two dots, RFC 1035.
const MAX_LABEL: usize = 63;

/// A DNS name or an IP address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// Never an IPv4-mapped IPv6 address.
    Address(IpAddr),
    /// In lower case, without a dot at its end.
    Name(String),
}

/// `host:port`, with an IPv6 address in brackets. Texts with the same meaning are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort {
    /// Resolved for each connection.
    pub host: Host,
    /// 1 to 65535.
    pub port: u16,
}

/// A text that is not a host, or not `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}: {problem}")]
pub struct InvalidHostPort {
    text: String,
    expected: &'static str,
    problem: Problem,
}

/// What is wrong with the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("write a host and a port, such as proxy.example:7400 or [2001:db8::1]:7400")]
    NoPort,
    #[error("the port must be a number from 1 to 65535")]
    Port,
    #[error("there is no IPv6 address between the brackets")]
    Brackets,
    #[error("write an IPv6 address in brackets, as in [2001:db8::7]:10250")]
    BareIpv6,
    #[error("the host must be a DNS name or an IP address")]
    Host,
}

impl Problem {
    fn of(self, text: &str, expected: &'static str) -> InvalidHostPort {
        // Before an `@` may be a password.
        let text = match text.rsplit_once('@') {
            Some((_, host)) => format!("...@{host}"),
            None => text.to_owned(),
        };
        InvalidHostPort {
            text: text.chars().take(MAX_NAME).collect(),
            expected,
            problem: self,
        }
    }
}

impl FromStr for Host {
    type Err = InvalidHostPort;

    /// A DNS name, or an IP address with or without brackets.
    fn from_str(text: &str) -> Result<Self, InvalidHostPort> {
        let bare = bracketed(text).unwrap_or(text);
        match bare.parse::<IpAddr>() {
            Ok(ip) => Ok(Self::Address(ip.to_canonical())),
            Err(_) => name(text).map_err(|problem| problem.of(text, "a host")),
        }
    }
}

impl FromStr for HostPort {
    type Err = InvalidHostPort;

    fn from_str(text: &str) -> Result<Self, InvalidHostPort> {
        parse(text).map_err(|problem| problem.of(text, "HOST:PORT"))
    }
}

fn parse(text: &str) -> Result<HostPort, Problem> {
    let (host, port) = text.rsplit_once(':').ok_or(Problem::NoPort)?;
    let host = match bracketed(host) {
        Some(inner) => {
            let ip: Ipv6Addr = inner.parse().map_err(|_| Problem::Brackets)?;
            Host::Address(IpAddr::V6(ip).to_canonical())
        }
        None if host.contains(':') => return Err(Problem::BareIpv6),
        None => match host.parse() {
            Ok(ip) => Host::Address(IpAddr::V4(ip)),
            Err(_) => name(host)?,
        },
    };
    let port = parse_port(port).ok_or(Problem::Port)?;
    Ok(HostPort { host, port })
}

/// Parses a port: digits only, not 0.
pub(crate) fn parse_port(text: &str) -> Option<u16> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match text.parse() {
        Ok(0) | Err(_) => None,
        Ok(port) => Some(port),
    }
}

fn bracketed(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.strip_suffix(']')
}

/// A DNS name. Underscores are accepted too: RFC 1123 forbids them, but resolvers and Docker
/// Compose allow them.
fn name(text: &str) -> Result<Host, Problem> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.len() <= MAX_NAME && text.split('.').all(is_label) {
        Ok(Host::Name(text.to_ascii_lowercase()))
    } else {
        Err(Problem::Host)
    }
}

fn is_label(label: &str) -> bool {
    let has_only_valid_bytes = label
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    (1..=MAX_LABEL).contains(&label.len())
        && has_only_valid_bytes
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => ip.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl TryFrom<String> for HostPort {
    type Error = InvalidHostPort;

    fn try_from(text: String) -> Result<Self, InvalidHostPort> {
        text.parse()
    }
}

impl From<HostPort> for String {
    fn from(host_port: HostPort) -> Self {
        host_port.to_string()
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: Host::Address(address.ip().to_canonical()),
            port: address.port(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_are_written_in_one_way() {
        for (text, written) in [
            ("Proxy.Example.:443", "proxy.example:443"),
            ("10.0.0.1:7400", "10.0.0.1:7400"),
            ("[2001:DB8::1]:7400", "[2001:db8::1]:7400"),
            ("[::ffff:10.0.3.7]:1", "10.0.3.7:1"),
            ("lb:65535", "lb:65535"),
            ("a_b:1", "a_b:1"),
            ("_sip._tcp.example:1", "_sip._tcp.example:1"),
        ] {
            let parsed: HostPort = text.parse().unwrap();
            assert_eq!(parsed.to_string(), written);
            assert_eq!(written.parse::<HostPort>().unwrap(), parsed);
        }
    }

    #[test]
    fn an_error_repeats_no_password() {
        for text in [
            "http://user:secret@proxy:7400",
            "user:secret@proxy:7400",
            "user:se@cret@proxy:0",
            "secret@",
        ] {
            let error = text.parse::<HostPort>().unwrap_err().to_string();
            assert!(!error.contains("cret") && error.contains("...@"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_dialled_is_refused_with_its_cause() {
        let long = format!("{}:80", "a".repeat(MAX_LABEL + 1));
        for (bad, cause) in [
            ("", "write a host and a port"),
            ("proxy", "write a host and a port"),
            ("proxy:", "the port must be"),
            ("proxy:0", "the port must be"),
            ("proxy:+80", "the port must be"),
            ("proxy:65536", "the port must be"),
            (":7400", "the host must be"),
            ("a b:1", "the host must be"),
            ("a..b:1", "the host must be"),
            ("-x:1", "the host must be"),
            ("u@proxy:1", "the host must be"),
            ("$(id):1", "the host must be"),
            ("http://proxy:1", "in brackets"),
            ("2001:db8::1:7400", "in brackets"),
            ("[x]:1", "between the brackets"),
            ("[::1]", "in brackets"),
            (&long, "the host must be"),
        ] {
            let error = bad.parse::<HostPort>().unwrap_err().to_string();
            assert!(error.contains(cause), "{bad:?}: {error}");
        }
    }
}
