//! Further destinations that an agent dials: one port of an address, or of all addresses of a range.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;

/// `192.168.1.20:502`, `192.168.1.0/24:502`, `[fd00::20]:443` or `[fd00::/64]:443`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllowedRange {
    range: IpNet,
    port: u16,
}

/// Why a text is not a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAllowedRange {
    /// It has another form.
    #[error(
        "{0:?} is not ADDRESS:PORT or CIDR:PORT: write 192.168.1.20:502, 192.168.1.0/24:502, \
         [fd00::20]:443 or [fd00::/64]:443"
    )]
    Form(String),
    /// The address is not the first one of the range.
    #[error("{given} is not the beginning of a range: write {meant} for all of it")]
    HostBits {
        /// The text.
        given: String,
        /// The range that contains it.
        meant: AllowedRange,
    },
}

impl AllowedRange {
    /// Whether the destination is in it. Addresses are canonical.
    #[must_use]
    pub fn contains(&self, destination: SocketAddr) -> bool {
        self.port == destination.port() && self.range.contains(&destination.ip())
    }
}

impl From<SocketAddr> for AllowedRange {
    fn from(destination: SocketAddr) -> Self {
        Self {
            range: destination.ip().to_canonical().into(),
            port: destination.port(),
        }
    }
}

impl FromStr for AllowedRange {
    type Err = InvalidAllowedRange;

    fn from_str(text: &str) -> Result<Self, InvalidAllowedRange> {
        let Some((range, port)) = parse_parts(text) else {
            return Err(InvalidAllowedRange::Form(text.to_owned()));
        };
        let meant = Self {
            range: range.trunc(),
            port,
        };
        if meant.range == range {
            Ok(meant)
        } else {
            let given = text.to_owned();
            Err(InvalidAllowedRange::HostBits { given, meant })
        }
    }
}

/// The range, or single address, and the port, which is not 0. IPv6 is in brackets.
fn parse_parts(text: &str) -> Option<(IpNet, u16)> {
    if let Ok(destination) = text.parse::<SocketAddr>() {
        let single = AllowedRange::from(destination);
        return (single.port != 0).then_some((single.range, single.port));
    }
    let (range, port) = text.rsplit_once(':')?;
    let (range, has_brackets) = match range.strip_prefix('[') {
        Some(rest) => (rest.strip_suffix(']')?, true),
        None => (range, false),
    };
    let range: IpNet = range.parse().ok()?;
    let port = port.parse().ok()?;
    if port == 0 || range.addr().is_ipv6() != has_brackets {
        return None;
    }
    Some((range, port))
}

impl fmt::Display for AllowedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, port } = self;
        match range.addr() {
            address if range.prefix_len() == range.max_prefix_len() => {
                SocketAddr::new(address, *port).fmt(f)
            }
            IpAddr::V4(_) => write!(f, "{range}:{port}"),
            IpAddr::V6(_) => write!(f, "[{range}]:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_ranges_are_written_as_they_are_read() {
        for text in [
            "192.168.1.20:502",
            "192.168.1.0/24:502",
            "[fd00::20]:443",
            "[fd00::/64]:443",
        ] {
            assert_eq!(text.parse::<AllowedRange>().unwrap().to_string(), text);
        }
        let mapped: AllowedRange = "[::ffff:10.0.0.1]:502".parse().unwrap();
        assert_eq!(mapped.to_string(), "10.0.0.1:502");
    }

    #[test]
    fn a_range_is_of_one_port() {
        let range: AllowedRange = "192.168.1.0/24:502".parse().unwrap();
        let contains = |text: &str| range.contains(text.parse().unwrap());
        assert!(contains("192.168.1.20:502"));
        assert!(!contains("192.168.1.20:503") && !contains("192.168.2.20:502"));
        assert!(!contains("[fd00::20]:502"));
    }

    #[test]
    fn what_is_no_range_is_told_with_what_to_write() {
        for text in [
            "192.168.1.0/24",
            "192.168.1.0/24:0",
            "192.168.1.20:0",
            "fd00::/64:443",
            "[192.168.1.0/24]:80",
            "camera:80",
            "192.168.1.0/33:80",
        ] {
            let error = text.parse::<AllowedRange>().unwrap_err();
            assert!(matches!(error, InvalidAllowedRange::Form(_)), "{text}");
        }
        let error = "192.168.1.20/24:502".parse::<AllowedRange>().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("write 192.168.1.0/24:502 for all of it")
        );
    }
}
