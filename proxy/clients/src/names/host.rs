//! The host that an HTTP/1.1 request names. Pure.

use culvert_proxy_streams::sockets::proxy_protocol::begins_with_header;
use http::header::HOST;
use http::{HeaderMap, Method, Request, Uri};
use httparse::{EMPTY_HEADER, Status};

use super::bad_head::BadHead;
use crate::http::HEADERS_MAX;

/// The longest name in DNS, with its final dot.
const NAME_MAX: usize = 254;
/// What a URL without a port means (RFC 9110, 4.2.1).
const HTTP_PORT: u16 = 80;
/// How a client of HTTP/2 begins.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2";

/// Whether `bytes` begin with a whole head.
pub(super) fn is_whole(bytes: &[u8]) -> Result<bool, BadHead> {
    if bytes.starts_with(HTTP2_PREFACE) {
        return Err(BadHead::Http2);
    }
    if begins_with_header(bytes) {
        return Err(BadHead::ProxyHeader);
    }
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(bytes).map_err(BadHead::NotHttp)?;
    Ok(matches!(parsed, Status::Complete(_)))
}

/// The ports that a client may mean by a name-routed port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeantPorts {
    /// The port of every node that the name-routed port stands for.
    pub(crate) of_nodes: u16,
    /// The name-routed port itself.
    pub(crate) own: u16,
}

/// The host's name, without a port: the port that was dialled decides, not the one in `Host`. A client
/// of a forward proxy dials one port for all, so the one in its URL must be the same.
pub(crate) fn named<B>(request: &Request<B>, ports: MeantPorts) -> Result<String, BadHead> {
    if request.method() == Method::CONNECT {
        return Err(BadHead::Connect);
    }
    // A client of a forward proxy writes the whole URL, which counts more than Host (RFC 9112).
    let name = match host_of_url(request.uri(), ports)? {
        Some(name) => name,
        None => without_port(host(request.headers())?),
    };
    match name.len() {
        0 => Err(BadHead::NoHost),
        1..=NAME_MAX if name.bytes().all(is_of_a_name) => Ok(name.to_owned()),
        _ => Err(BadHead::NoName),
    }
}

/// Before an `@` may be a password, which no log may have.
fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'@'
}

fn host_of_url(uri: &Uri, ports: MeantPorts) -> Result<Option<&str>, BadHead> {
    let asked = match uri.scheme_str() {
        None => uri.port_u16(),
        Some("http") => Some(uri.port_u16().unwrap_or(HTTP_PORT)),
        Some(_) => return Err(BadHead::Scheme),
    };
    if let Some(asked) = asked
        && asked != ports.of_nodes
        && asked != ports.own
    {
        let served = ports.of_nodes;
        return Err(BadHead::OtherPort { asked, served });
    }
    Ok(uri.host())
}

fn host(headers: &HeaderMap) -> Result<&str, BadHead> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().ok_or(BadHead::NoHost)?;
    if hosts.next().is_some() {
        return Err(BadHead::SeveralHosts);
    }
    host.to_str().map_err(|_| BadHead::NoName)
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const PORTS: MeantPorts = MeantPorts {
        of_nodes: 9100,
        own: 7451,
    };

    fn request(target: &str, hosts: &[&str]) -> Request<()> {
        let mut request = Request::get(target);
        for host in hosts {
            let host = HeaderValue::from_bytes(host.as_bytes()).unwrap();
            request = request.header("host", host);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn a_head_is_whole_with_its_last_byte() {
        let head = b"GET /metrics HTTP/1.1\r\nAccept: */*\r\nhOsT:  edge-1:9100 \r\n\r\n";
        for cut in 0..head.len() {
            assert!(!is_whole(&head[..cut]).unwrap(), "{cut} bytes");
        }
        assert!(is_whole(head).unwrap());
        assert!(is_whole(b"GET / HTTP/1.0\r\n\r\nbody").unwrap());
    }

    #[test]
    fn what_is_no_http_is_told_so() {
        for (head, reason) in [
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "use HTTP/1.1"),
            ("SSH-2.0-OpenSSH\r\n", "not an HTTP/1.1 request"),
            (
                "PROXY TCP4 192.0.2.9 203.0.113.1 4711 7451\r\n",
                "PROXY protocol",
            ),
            ("\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", "PROXY protocol"),
        ] {
            let error = is_whole(head.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(reason), "{head:?}: {error}");
        }
    }

    #[test]
    fn a_whole_url_counts_more_than_the_host() {
        for (target, host, name) in [
            ("/metrics", "edge-1:9100", "edge-1"),
            ("/metrics", "edge-1.edge.internal", "edge-1.edge.internal"),
            ("http://edge-1:9100/metrics", "edge-2", "edge-1"),
            ("HTTP://edge-1:9100", "edge-2", "edge-1"),
            ("http://edge-1:9100?x", "edge-2", "edge-1"),
            ("http://user@edge-1:9100/", "edge-2", "edge-1"),
            ("http://edge-1:7451/", "edge-1:7451", "edge-1"),
            ("/metrics", "edge-1:9101", "edge-1"),
            ("/metrics", "EDGE-1.:9100", "EDGE-1."),
            ("http://user:secret@edge-1:9100/", "edge-2", "edge-1"),
        ] {
            let named = named(&request(target, &[host]), PORTS).unwrap();
            assert_eq!(named, name, "{target} {host}");
        }
    }

    #[test]
    fn what_names_no_node_is_told_why() {
        let long = "a".repeat(255);
        let connect = Request::connect("edge-1:1").header("host", "a");
        for (request, reason) in [
            (request("/", &[]), "no Host"),
            (request("/", &[""]), "no Host"),
            (request("/", &[":80"]), "no Host"),
            (request("/", &["a", "b"]), "more than one Host"),
            (request("/", &["ed\u{e9}"]), "not a name"),
            (request("/", &["user:secret@edge-1"]), "not a name"),
            (request("/", &["edge-1, edge-2"]), "not a name"),
            (request("/", &[&long]), "not a name"),
            (request("https://edge-1/", &["edge-1"]), "http://"),
            (request("http://edge-1:9101/", &["edge-1:9101"]), "9101"),
            (request("http://edge-1:80/", &["edge-1"]), "port 80 "),
            (request("http://edge-1/", &["edge-1"]), "port 80 "),
            (connect.body(()).unwrap(), "CONNECT"),
        ] {
            let error = named(&request, PORTS).unwrap_err().to_string();
            assert!(error.contains(reason), "{request:?}: {error}");
        }
    }
}
