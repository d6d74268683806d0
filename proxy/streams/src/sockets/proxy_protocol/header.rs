//! The header of version 2, as HAProxy's `proxy-protocol.txt`, section 2.2, defines it. Pure.
//!
//! A parser of our own: it is smaller than what would have to be said about another one, and reads
//! nothing that is not used.

use std::net::{IpAddr, SocketAddr};

/// The part of fixed length: the signature, version and command, family, and the length of the rest.
pub(crate) const PREFIX: usize = 16;
/// The longest rest. Balancers add some hundred bytes to the addresses at most.
pub(crate) const MAX_REST: usize = 2048;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// How a header of version 1 begins.
const VERSION_1: &[u8] = b"PROXY ";

/// How headers of both versions begin.
pub(super) const BEGINNINGS: [&[u8]; 3] = [SIGNATURE, b"PROXY TCP", b"PROXY UNKNOWN"];

/// Why the header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeader {
    #[error(
        "this address is that of a balancer, and the connection does not begin with a PROXY \
         header: let the balancer send one, version 2, or leave its address out"
    )]
    Missing,
    #[error("the PROXY header is of version 1: let the balancer send version 2")]
    Version1,
    #[error("the PROXY header is of version {0}, not of 2")]
    Version(u8),
    #[error("the PROXY header has the unknown command {0}")]
    Command(u8),
    #[error("the PROXY header is not about TCP over IPv4 or IPv6: its family is {0:#04x}")]
    Family(u8),
    #[error("the PROXY header has {0} bytes, which are too few for its addresses")]
    Short(usize),
    #[error("the PROXY header has {0} bytes, at most {MAX_REST} are read")]
    Long(usize),
}

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client's, passed on.
    Client(SocketAddr),
    /// The balancer's own, such as a test of whether the proxy is there.
    Balancer,
}

/// The beginning of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    family: Family,
    rest: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Tcp4,
    Tcp6,
    /// The command LOCAL, whose addresses mean nothing.
    Local,
}

impl Header {
    pub(crate) fn parse_prefix(prefix: &[u8; PREFIX]) -> Result<Self, InvalidHeader> {
        if prefix.starts_with(VERSION_1) {
            return Err(InvalidHeader::Version1);
        }
        if !prefix.starts_with(SIGNATURE) {
            return Err(InvalidHeader::Missing);
        }
        let [.., version_and_command, family, high, low] = *prefix;
        let version = version_and_command >> 4;
        let command = version_and_command & 0xf;
        if version != 2 {
            return Err(InvalidHeader::Version(version));
        }
        let family = match (command, family) {
            (0, _) => Family::Local,
            (1, 0x11) => Family::Tcp4,
            (1, 0x21) => Family::Tcp6,
            (1, other) => return Err(InvalidHeader::Family(other)),
            (other, _) => return Err(InvalidHeader::Command(other)),
        };
        let rest = usize::from(u16::from_be_bytes([high, low]));
        if rest > MAX_REST {
            return Err(InvalidHeader::Long(rest));
        }
        Ok(Self { family, rest })
    }

    /// The number of bytes that follow the prefix.
    pub(crate) fn rest(&self) -> usize {
        self.rest
    }

    /// Whose connection it is. The rest is both addresses, both ports, and what is not used.
    pub(crate) fn source(&self, rest: &[u8]) -> Result<Source, InvalidHeader> {
        let short = InvalidHeader::Short(rest.len());
        let client = match self.family {
            Family::Local => return Ok(Source::Balancer),
            Family::Tcp4 => {
                let (address, ports) = rest.split_first_chunk::<4>().ok_or(short)?;
                client(IpAddr::from(*address), ports.get(4..8))
            }
            Family::Tcp6 => {
                let (address, ports) = rest.split_first_chunk::<16>().ok_or(short)?;
                client(IpAddr::from(*address), ports.get(16..20))
            }
        };
        client.map(Source::Client).ok_or(short)
    }
}

/// The client's address, with the first of two ports.
fn client(address: IpAddr, ports: Option<&[u8]>) -> Option<SocketAddr> {
    let port = ports?.first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    Some(SocketAddr::new(address.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(version_and_command: u8, family: u8, rest: u16) -> [u8; PREFIX] {
        let mut bytes = [0; PREFIX];
        bytes[..12].copy_from_slice(SIGNATURE);
        bytes[12..14].copy_from_slice(&[version_and_command, family]);
        bytes[14..].copy_from_slice(&rest.to_be_bytes());
        bytes
    }

    #[test]
    fn a_client_is_known_by_its_address_of_either_family() {
        let tcp4 = Header::parse_prefix(&prefix(0x21, 0x11, 12)).unwrap();
        let source = tcp4.source(&[192, 0, 2, 9, 10, 0, 0, 1, 0x1c, 0xe8, 1, 2]);
        assert_eq!(
            source,
            Ok(Source::Client("192.0.2.9:7400".parse().unwrap()))
        );
        let mut rest = [0; 40];
        rest[..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
        rest[15] = 9;
        rest[32..34].copy_from_slice(&[0x1c, 0xe8]);
        let tcp6 = Header::parse_prefix(&prefix(0x21, 0x21, 40)).unwrap();
        assert_eq!(
            tcp6.source(&rest),
            Ok(Source::Client("[2001:db8::9]:7400".parse().unwrap())),
            "what follows the addresses does not matter"
        );
        rest[..16].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 9]);
        assert_eq!(
            tcp6.source(&rest),
            Ok(Source::Client("192.0.2.9:7400".parse().unwrap())),
            "a mapped address is the IPv4 one"
        );
    }

    #[test]
    fn a_connection_of_the_balancers_own_needs_no_addresses() {
        for family in [0, 0x11, 0xff] {
            let local = Header::parse_prefix(&prefix(0x20, family, 0)).unwrap();
            assert_eq!(local.source(&[]), Ok(Source::Balancer));
        }
    }

    #[test]
    fn what_is_no_header_is_refused_with_its_cause() {
        let refused = |bytes: &[u8; PREFIX]| Header::parse_prefix(bytes).unwrap_err();
        assert_eq!(refused(&[22; PREFIX]), InvalidHeader::Missing);
        assert_eq!(refused(b"PROXY TCP4 192.0"), InvalidHeader::Version1);
        assert_eq!(refused(&prefix(0x11, 0x11, 12)), InvalidHeader::Version(1));
        assert_eq!(refused(&prefix(0x22, 0x11, 12)), InvalidHeader::Command(2));
        for family in [0x00, 0x12, 0x31] {
            let bytes = prefix(0x21, family, 12);
            assert_eq!(refused(&bytes), InvalidHeader::Family(family));
        }
        assert_eq!(
            refused(&prefix(0x21, 0x11, 2049)),
            InvalidHeader::Long(2049)
        );
        let cut = Header::parse_prefix(&prefix(0x21, 0x21, 12)).unwrap();
        assert_eq!(cut.source(&[0; 12]), Err(InvalidHeader::Short(12)));
        let cut = Header::parse_prefix(&prefix(0x21, 0x11, 11)).unwrap();
        assert_eq!(cut.source(&[0; 11]), Err(InvalidHeader::Short(11)));
    }
}
