//! The PROXY protocol, version 2: a balancer says at the beginning of a connection whose it is.
//! Only connections from the addresses of balancers have a header; from others it is never read.

pub(crate) mod header;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use header::{Header, InvalidHeader, PREFIX, Source};

/// From the accepted connection to the whole header, which a balancer sends at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of balancers that speak the PROXY protocol. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Balancers(Arc<[IpNet]>);

/// Why a balancer's connection is refused.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// It did not come in time.
    #[error("no whole PROXY header within {} s", HEADER_TIMEOUT.as_secs())]
    TimedOut,
    /// The connection failed.
    #[error("the connection ended before its PROXY header did")]
    Read(#[source] io::Error),
    /// It is no such header.
    #[error("--proxy-protocol: {0}")]
    Invalid(#[from] InvalidHeader),
}

impl Balancers {
    /// `ranges` are those of `--proxy-protocol`.
    pub fn new(ranges: &[IpNet]) -> Self {
        Self(ranges.into())
    }

    /// Whether a connection from this address has to begin with a header.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(&address))
    }
}

/// Whether a connection begins with a header of either version. Any sender counts.
pub fn begins_with_header(bytes: &[u8]) -> bool {
    header::BEGINNINGS
        .iter()
        .any(|begin| bytes.starts_with(begin))
}

/// Reads the header, and nothing after it. Returns the client's address; `None`: the connection is
/// the balancer's own.
pub async fn client(connection: impl AsyncRead + Unpin) -> Result<Option<SocketAddr>, HeaderError> {
    read(connection, HEADER_TIMEOUT).await
}

async fn read(
    mut connection: impl AsyncRead + Unpin,
    limit: Duration,
) -> Result<Option<SocketAddr>, HeaderError> {
    let read = async {
        let mut prefix = [0; PREFIX];
        connection
            .read_exact(&mut prefix)
            .await
            .map_err(HeaderError::Read)?;
        let header = Header::parse_prefix(&prefix)?;
        let mut rest = vec![0; header.rest()];
        connection
            .read_exact(&mut rest)
            .await
            .map_err(HeaderError::Read)?;
        Ok(header.source(&rest)?)
    };
    match timeout(limit, read).await {
        Ok(Ok(Source::Client(client))) => Ok(Some(client)),
        Ok(Ok(Source::Balancer)) => Ok(None),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(HeaderError::TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// From 192.0.2.9, port 258.
    fn header(rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(12 + rest.len()).unwrap().to_be_bytes();
        let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x11".to_vec();
        bytes.extend(length);
        bytes.extend([192, 0, 2, 9, 10, 0, 0, 1, 1, 2, 3, 4]);
        bytes.extend(rest);
        bytes
    }

    #[tokio::test]
    async fn what_follows_the_header_is_left_to_tls() {
        let (mut balancer, mut proxy) = tokio::io::duplex(1024);
        let mut sent = header(b"\x04\0\x01x");
        sent.extend(b"hello");
        balancer.write_all(&sent).await.unwrap();
        let found = client(&mut proxy).await.unwrap();
        assert_eq!(found, Some("192.0.2.9:258".parse().unwrap()));
        let mut next = [0; 5];
        proxy.read_exact(&mut next).await.unwrap();
        assert_eq!(&next, b"hello");
    }

    #[tokio::test]
    async fn a_header_that_ends_early_and_one_that_is_none_are_told_apart() {
        let (mut balancer, proxy) = tokio::io::duplex(1024);
        balancer.write_all(&header(b"")[..20]).await.unwrap();
        drop(balancer);
        assert!(matches!(client(proxy).await, Err(HeaderError::Read(_))));
        let (mut balancer, proxy) = tokio::io::duplex(1024);
        balancer.write_all(&[22; 16]).await.unwrap();
        assert!(matches!(client(proxy).await, Err(HeaderError::Invalid(_))));
    }

    #[tokio::test]
    async fn a_balancer_that_says_nothing_is_not_waited_for() {
        let (_balancer, proxy) = tokio::io::duplex(1024);
        let read = read(proxy, Duration::from_millis(50)).await;
        assert!(matches!(read, Err(HeaderError::TimedOut)));
    }

    #[test]
    fn a_header_is_known_by_its_first_bytes_and_no_request_is_taken_for_one() {
        for begin in [
            &header(b"")[..],
            b"PROXY TCP4 192.0.2.9 10.0.0.1 258 7450\r\n",
            b"PROXY UNKNOWN\r\n",
        ] {
            assert!(begins_with_header(begin), "{begin:?}");
        }
        for other in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY / HTTP/1.1\r\n",
            b"\r\n\r\nGET / HTTP/1.1\r\n",
            b"\x16\x03\x01",
            b"",
        ] {
            assert!(!begins_with_header(other), "{other:?}");
        }
    }

    #[test]
    fn balancers_are_told_by_their_ranges_of_both_families() {
        let balancers =
            Balancers::new(&["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]);
        let contains = |address: &str| balancers.contain(address.parse().unwrap());
        assert!(contains("10.0.0.9") && contains("fd00::9"));
        assert!(!contains("10.0.1.9") && !contains("fd00:0:0:1::9"));
        assert!(!Balancers::default().contain("10.0.0.9".parse().unwrap()));
    }
}
