//! The host in the head of an HTTP/1.1 request. Pure.

use httparse::{EMPTY_HEADER, Header, Request, Status};

use super::head::BadHead;

/// The maximum number of headers.
const HEADERS_MAX: usize = 128;
/// The longest name in DNS, with its final dot.
const NAME_MAX: usize = 254;
/// How a client of HTTP/2 begins.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2";

/// The host's name, without a port. `None`: more bytes are needed.
pub(super) fn read(bytes: &[u8]) -> Result<Option<String>, BadHead> {
    if bytes.starts_with(HTTP2_PREFACE) {
        return Err(BadHead::Http2);
    }
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    if request.parse(bytes).map_err(BadHead::NotHttp)? == Status::Partial {
        return Ok(None);
    }
    if request.method == Some("CONNECT") {
        return Err(BadHead::Connect);
    }
    // A client of a forward proxy writes the whole URL, which counts more than Host (RFC 9112).
    let authority = match request.path.and_then(authority_of_url) {
        Some(authority) => authority,
        None => host(request.headers)?,
    };
    let name = without_port(authority);
    match name.len() {
        0 => Err(BadHead::NoHost),
        1..=NAME_MAX if name.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(Some(name.to_owned()))
        }
        _ => Err(BadHead::NoName),
    }
}

fn authority_of_url(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    scheme.eq_ignore_ascii_case("http").then(|| &rest[..end])
}

fn host<'a>(headers: &[Header<'a>]) -> Result<&'a str, BadHead> {
    let mut hosts = headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = hosts.next().ok_or(BadHead::NoHost)?;
    if hosts.next().is_some() {
        return Err(BadHead::SeveralHosts);
    }
    let host = std::str::from_utf8(host.value).map_err(|_| BadHead::NoName)?;
    Ok(host.trim())
}

/// The port that was dialled decides, not the one in the text.
fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(head: &str) -> Option<String> {
        read(head.as_bytes()).unwrap()
    }

    #[test]
    fn the_host_is_read_once_the_head_is_whole() {
        let head = "GET /metrics HTTP/1.1\r\nAccept: */*\r\nhOsT:  edge-1:9100 \r\n\r\n";
        for cut in 0..head.len() {
            assert_eq!(name(&head[..cut]), None, "{cut} bytes");
        }
        assert_eq!(name(head).as_deref(), Some("edge-1"));
        assert_eq!(
            name("GET / HTTP/1.0\r\nHost: edge-1.edge.internal\r\n\r\nbody").as_deref(),
            Some("edge-1.edge.internal")
        );
    }

    #[test]
    fn a_whole_url_counts_more_than_the_host() {
        for url in [
            "http://edge-1:9100/metrics",
            "HTTP://edge-1",
            "http://edge-1?x",
        ] {
            let head = format!("GET {url} HTTP/1.1\r\nHost: edge-2\r\n\r\n");
            assert_eq!(name(&head).as_deref(), Some("edge-1"), "{url}");
        }
    }

    #[test]
    fn what_names_no_node_is_told_why() {
        for (head, reason) in [
            ("GET / HTTP/1.1\r\n\r\n", "no Host"),
            ("GET / HTTP/1.1\r\nHost: \r\n\r\n", "no Host"),
            ("GET / HTTP/1.1\r\nHost: :80\r\n\r\n", "no Host"),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                "more than one Host",
            ),
            ("GET / HTTP/1.1\r\nHost: ed\u{e9}\r\n\r\n", "not a name"),
            (
                &format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(255)),
                "not a name",
            ),
            ("CONNECT edge-1:1 HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "use HTTP/1.1"),
            ("SSH-2.0-OpenSSH\r\n", "not an HTTP/1.1 request"),
        ] {
            let error = read(head.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(reason), "{head:?}: {error}");
        }
    }
}
