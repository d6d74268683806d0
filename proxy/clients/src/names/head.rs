//! The first bytes of a connection: the node of a TLS client, or a first HTTP request. Pure.

use super::bad_head::BadHead;
use super::hello::HelloReader;
use super::host;
use crate::http::HEAD_MAX;

/// The first byte of a TLS handshake record. No HTTP request begins with it.
const TLS_HANDSHAKE: u8 = 0x16;

/// How a client talks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tls,
    Http,
}

/// A whole head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A ClientHello with this server name.
    Tls(String),
    /// A request.
    Http,
}

/// Reads the head of one connection as it arrives.
#[derive(Default)]
pub(crate) enum HeadReader {
    /// No byte has arrived.
    #[default]
    Begin,
    Tls(HelloReader),
    Http,
}

impl HeadReader {
    /// The head. `bytes` are all bytes so far; `None`: more are needed.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<Option<Head>, BadHead> {
        if let (Self::Begin, Some(first)) = (&*self, bytes.first()) {
            *self = match *first {
                TLS_HANDSHAKE => Self::Tls(HelloReader::default()),
                _ => Self::Http,
            };
        }
        // What follows the head does not count.
        let head = &bytes[..bytes.len().min(HEAD_MAX)];
        let whole = match self {
            Self::Begin => return Ok(None),
            Self::Tls(reader) => reader.read(head)?.map(Head::Tls),
            Self::Http => host::is_whole(head)?.then_some(Head::Http),
        };
        if whole.is_none() && bytes.len() > HEAD_MAX {
            return Err(BadHead::TooLong);
        }
        Ok(whole)
    }

    /// Known after the first byte.
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Begin => None,
            Self::Tls(_) => Some(Protocol::Tls),
            Self::Http => Some(Protocol::Http),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<Head>, BadHead> {
        HeadReader::default().read(bytes)
    }

    #[test]
    fn the_first_byte_tells_tls_from_http() {
        let mut reader = HeadReader::default();
        assert!(matches!(reader.read(b""), Ok(None)));
        assert_eq!(reader.protocol(), None);
        assert!(matches!(reader.read(b"\x16"), Ok(None)));
        assert_eq!(reader.protocol(), Some(Protocol::Tls));
        let mut reader = HeadReader::default();
        assert!(matches!(reader.read(b"G"), Ok(None)));
        assert_eq!(reader.protocol(), Some(Protocol::Http));
    }

    #[test]
    fn a_head_ends_within_its_limit_and_what_follows_may_be_longer() {
        let request = |filling: usize| {
            let head = format!(
                "GET / HTTP/1.1\r\nHost: edge-1\r\nx: {}\r\n\r\n",
                "a".repeat(filling)
            );
            head.into_bytes()
        };
        let most = HEAD_MAX - request(0).len();
        assert_eq!(read(&request(most)).unwrap(), Some(Head::Http));
        assert!(matches!(read(&request(most + 1)), Err(BadHead::TooLong)));
        let mut with_body = request(0);
        with_body.resize(HEAD_MAX + 1, b'b');
        assert_eq!(read(&with_body).unwrap(), Some(Head::Http));
    }

    #[test]
    fn a_hello_that_never_ends_is_refused_at_the_limit() {
        // A handshake message of 64 KiB in a record of 16 KiB.
        let mut hello = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
        hello.resize(HEAD_MAX, 0);
        assert!(matches!(read(&hello), Ok(None)), "{:?}", read(&hello));
        hello.push(0);
        assert!(matches!(read(&hello), Err(BadHead::TooLong)));
    }
}
