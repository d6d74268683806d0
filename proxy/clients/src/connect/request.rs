//! Reads the head of a CONNECT request on the Unix socket.

use std::net::IpAddr;

use culvert_api::{
    CLAIMED_USER_HEADER, ClaimedUser, FRAMING_HEADER, FRAMING_HTTP2, InvalidClaimedUser,
    InvalidHostPort, InvalidNodeName, NodeName,
};
use culvert_daemon::chain;
use culvert_proxy_core::directory::{Destination, Directory, NodeView};
use http::StatusCode;
use httparse::{EMPTY_HEADER, Request, Status};

use crate::http::HEAD_MAX;
use crate::http::response::Refusal;

/// The maximum number of headers.
const HEADERS_MAX: usize = 64;
/// YurtTunnel's header. Its value is a node, alone or followed by a port that means nothing.
const NODE_HEADER: &str = "X-Tunnel-Proxy-Host";

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct ConnectHead {
    destination: Destination,
    /// What the header says, with or without a zone.
    header: Option<NodeName>,
    /// Who the client says it is.
    claimed_user: Option<ClaimedUser>,
    framing: Framing,
}

/// How the bytes go after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// As they are. A cut looks like an end.
    Raw,
    /// In a stream of HTTP/2.
    Http2,
}

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
    #[error(
        "{0:?} is not served here: only CONNECT, requests for http://..., and GET /sd/prometheus?port=N"
    )]
    NotServed(String),
    #[error(transparent)]
    Target(InvalidHostPort),
    #[error("{NODE_HEADER} names no node")]
    Node(#[from] InvalidNodeName),
    #[error("{CLAIMED_USER_HEADER}")]
    ClaimedUser(#[source] InvalidClaimedUser),
    #[error("{FRAMING_HEADER} may be {FRAMING_HTTP2} only")]
    Framing,
    #[error(
        "{NODE_HEADER}: {node} is not the node of {destination}: name a node that has this \
         address, or leave the header out"
    )]
    OtherNode {
        node: NodeName,
        destination: Destination,
    },
}

impl From<&BadRequest> for Refusal {
    fn from(bad: &BadRequest) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "http_request_error", chain(bad))
    }
}

impl ConnectHead {
    /// Who the client says it is.
    pub(crate) fn claimed_user(&self) -> Option<&ClaimedUser> {
        self.claimed_user.as_ref()
    }

    /// How the client wants its bytes.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Where the request itself leads.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn target(&self) -> &Destination {
        &self.destination
    }

    /// The destination at the node that the header names, of several that have the address.
    ///
    /// # Errors
    ///
    /// The destination is not that node's.
    pub(crate) fn destination(self, directory: &Directory) -> Result<Destination, BadRequest> {
        let Self {
            destination,
            header,
            ..
        } = self;
        let Some(header) = header else {
            return Ok(destination);
        };
        let node = directory.named(header.as_str()).unwrap_or(header);
        let port;
        let is_its_own;
        match &destination {
            Destination::Address(address) => {
                port = address.port();
                is_its_own = match directory.node(&node) {
                    Some(found) => has_address(&found, address.ip()),
                    None => false,
                };
            }
            Destination::Name(name, named_port) => {
                let Some(named) = directory.named(name) else {
                    // It leads nowhere: the router says why.
                    return Ok(destination);
                };
                port = *named_port;
                is_its_own = named == node;
            }
            Destination::Node(named, named_port) => {
                port = *named_port;
                is_its_own = *named == node;
            }
        }
        if is_its_own {
            Ok(Destination::Node(node, port))
        } else {
            Err(BadRequest::OtherNode { node, destination })
        }
    }
}

fn has_address(node: &NodeView, ip: IpAddr) -> bool {
    ip.is_loopback()
        || node.addresses.iter().any(|own| own.ip == ip)
        || ip == node.vip4
        || ip == node.vip6
}

/// The request and the length of its head at the start of `buffer`. `None`: more bytes are needed.
pub(crate) fn parse(buffer: &[u8]) -> Result<Option<(ConnectHead, usize)>, BadRequest> {
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
    let mut asked = ConnectHead {
        destination,
        header: None,
        claimed_user: None,
        framing: Framing::Raw,
    };
    if let Some(value) = header(&request, NODE_HEADER) {
        let value = String::from_utf8_lossy(value);
        let (node, _) = value.split_once(':').unwrap_or((&value, ""));
        asked.header = Some(node.trim().parse()?);
    }
    if let Some(value) = header(&request, CLAIMED_USER_HEADER) {
        // What is no text of Unicode gets a character that says so.
        let name = String::from_utf8_lossy(value);
        let claimed = name.trim().parse();
        asked.claimed_user = Some(claimed.map_err(BadRequest::ClaimedUser)?);
    }
    if let Some(value) = header(&request, FRAMING_HEADER) {
        if value != FRAMING_HTTP2.as_bytes() {
            return Err(BadRequest::Framing);
        }
        asked.framing = Framing::Http2;
    }
    Ok(Some((asked, length)))
}

/// The first header of a name.
fn header<'a>(request: &Request<'_, 'a>, name: &str) -> Option<&'a [u8]> {
    let mut headers = request.headers.iter();
    let header = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
    Some(header.value)
}

#[cfg(test)]
mod tests {
    use culvert_proxy_core::directory::Directory;

    use super::*;

    fn parsed(text: &str) -> Result<Option<(String, usize)>, String> {
        let parsed = parse(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(parsed.map(|(asked, length)| (asked.target().to_string(), length)))
    }

    /// Where a request with this header leads.
    fn chosen(directory: &Directory, target: &str, header: &str) -> Result<String, String> {
        let head = format!("CONNECT {target} HTTP/1.1\r\n{header}\r\n\r\n");
        let (asked, _) = parse(head.as_bytes()).unwrap().unwrap();
        let chosen = asked.destination(directory);
        chosen
            .map(|destination| destination.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_header_and_the_target_are_read_as_dns_reads_names() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = ["edge-1", "edge-1.edge.internal", "edge-2"];
        let nodes = nodes.map(|name| name.parse().unwrap());
        let directory = Directory::for_tests(folder.path(), &nodes);
        for (target, header, wanted) in [
            ("edge-1:1", "edge-1", Some("edge-1:1")),
            (
                "edge-1.edge.internal:1",
                "edge-1.edge.internal",
                Some("edge-1.edge.internal:1"),
            ),
            ("edge-2:1", "edge-2.edge.internal:10250", Some("edge-2:1")),
            ("EDGE-2.edge.internal:1", "edge-2", Some("edge-2:1")),
            ("127.0.0.1:1", "edge-2.edge.internal", Some("edge-2:1")),
            ("edge-1.edge.internal:1", "edge-1", None),
            ("edge-1:1", "edge-1.edge.internal", None),
            ("127.0.0.1:1", "edge-1.example.com", None),
        ] {
            let chosen = chosen(
                &directory,
                target,
                &format!("X-Tunnel-Proxy-Host: {header}"),
            );
            assert_eq!(chosen.ok().as_deref(), wanted, "{target} with {header}");
        }
        // No header makes a node of a name that is another host's.
        let foreign = "edge-1.example.com:443";
        for header in ["edge-1", "edge-1.example.com", "edge-2"] {
            let header = format!("X-Tunnel-Proxy-Host: {header}");
            let chosen = chosen(&directory, foreign, &header).unwrap();
            assert!(
                directory.resolve(&chosen.parse().unwrap()).is_err(),
                "{header}"
            );
        }
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
    fn the_header_names_one_of_the_nodes_with_an_address() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = ["edge-2", "edge-3"].map(|name| name.parse().unwrap());
        let directory = Directory::for_tests(folder.path(), &nodes);
        let found = directory.node(&nodes[0]).unwrap();
        let vip = format!("{}:10250", found.vip4);
        for (target, header, destination) in [
            ("10.0.3.7:10250", "Host: edge-2", "10.0.3.7:10250"),
            (&vip, "X-Tunnel-Proxy-Host: edge-2:10250", "edge-2:10250"),
            (&vip, "x-tunnel-proxy-host:  edge-2", "edge-2:10250"),
            (
                "127.0.0.1:10266",
                "X-Tunnel-Proxy-Host: edge-2",
                "edge-2:10266",
            ),
            (
                "edge-2.edge.internal:1",
                "X-Tunnel-Proxy-Host: edge-2",
                "edge-2:1",
            ),
        ] {
            let chosen = chosen(&directory, target, header);
            assert_eq!(chosen.as_deref(), Ok(destination));
        }
        for target in ["10.9.9.9:10250", "edge-3:10250"] {
            let header = "X-Tunnel-Proxy-Host: edge-2";
            let error = chosen(&directory, target, header).unwrap_err();
            assert!(error.contains("edge-2 is not the node of"), "{error}");
        }
        let head = "CONNECT edge-2:1 HTTP/1.1\r\nX-Tunnel-Proxy-Host: \r\n\r\n";
        assert!(matches!(parse(head.as_bytes()), Err(BadRequest::Node(_))));
    }

    #[test]
    fn a_client_may_say_who_it_is_in_one_line() {
        let claimed = |value: &str| {
            let head = format!("CONNECT edge-1:1 HTTP/1.1\r\nculvert-user:{value}\r\n\r\n");
            let (asked, _) = parse(head.as_bytes())?.unwrap();
            Ok::<_, BadRequest>(asked.claimed_user().map(ToString::to_string))
        };
        let named = claimed(" ada@example.org ").unwrap();
        assert_eq!(named.as_deref(), Some("ada@example.org"));
        for value in ["", " ", "a\u{85}b", &"a".repeat(1_000)] {
            assert!(
                matches!(claimed(value), Err(BadRequest::ClaimedUser(_))),
                "{value:?}"
            );
        }
        let (asked, _) = parse(b"CONNECT edge-1:1 HTTP/1.1\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(asked.claimed_user(), None);
    }

    #[test]
    fn bytes_are_framed_only_for_a_client_that_asks_for_http2() {
        for (header, framing) in [
            ("culvert-framing: h2\r\n", Some(Framing::Http2)),
            ("", Some(Framing::Raw)),
            ("culvert-framing: h3\r\n", None),
        ] {
            let head = format!("CONNECT edge-1:1 HTTP/1.1\r\n{header}\r\n");
            let parsed = parse(head.as_bytes());
            let found = parsed.ok().map(|whole| whole.unwrap().0.framing());
            assert_eq!(found, framing, "{header}");
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
