//! Reads the head of a CONNECT request.

use culvert_api::InvalidHostPort;
use httparse::{EMPTY_HEADER, Request, Status};

use crate::directory::Destination;

/// The maximum length of a head, in bytes.
pub(crate) const HEAD_MAX: usize = 16 << 10;
/// The maximum number of headers.
const HEADERS_MAX: usize = 64;

/// A request that cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadRequest {
    #[error("not an HTTP/1.1 request: {0}")]
    NotHttp(httparse::Error),
    #[error("the request's head is longer than {HEAD_MAX} bytes")]
    TooLong,
    #[error("the request's head took too long")]
    TimedOut,
    #[error("{0:?} is not served here, only CONNECT")]
    Method(String),
    #[error(transparent)]
    Target(InvalidHostPort),
}

/// The destination and the length of the head at the start of `buffer`. `None`: more bytes are
/// needed.
pub(crate) fn parse(buffer: &[u8]) -> Result<Option<(Destination, usize)>, BadRequest> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let length = match request.parse(buffer).map_err(BadRequest::NotHttp)? {
        Status::Complete(length) if length <= HEAD_MAX => length,
        Status::Partial if buffer.len() <= HEAD_MAX => return Ok(None),
        Status::Complete(_) | Status::Partial => return Err(BadRequest::TooLong),
    };
    let method = request.method.unwrap_or_default();
    if method != "CONNECT" {
        return Err(BadRequest::Method(method.chars().take(20).collect()));
    }
    let destination = request
        .path
        .unwrap_or_default()
        .parse()
        .map_err(BadRequest::Target)?;
    Ok(Some((destination, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<(String, usize)>, String> {
        let parsed = parse(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(parsed.map(|(destination, length)| (destination.to_string(), length)))
    }

    #[test]
    fn the_target_counts_not_the_host_header() {
        let head = "CONNECT edge-1:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        assert_eq!(
            parsed(&format!("{head}\x16\x03pipelined")),
            Ok(Some(("edge-1:10250".into(), head.len())))
        );
        for cut in 0..head.len() {
            assert_eq!(parsed(&head[..cut]), Ok(None), "{cut} bytes");
        }
    }

    #[test]
    fn what_cannot_be_served_is_told_why() {
        for (head, reason) in [
            ("GET / HTTP/1.1\r\n\r\n", "only CONNECT"),
            ("CONNECT edge-1 HTTP/1.1\r\n\r\n", "write a host and a port"),
            ("CONNECT 10.0.3.7:99999 HTTP/1.1\r\n\r\n", "1 to 65535"),
            ("\x16\x03\x01\x02\x00", "not an HTTP/1.1 request"),
            (
                &format!("CONNECT edge-1:1 HTTP/1.1\r\nx: {}", "a".repeat(HEAD_MAX)),
                "longer than",
            ),
        ] {
            let error = parsed(head).unwrap_err();
            assert!(error.contains(reason), "{head:?}: {error}");
        }
    }
}
