//! Answers to CONNECT requests. Refusals carry `Proxy-Status` (RFC 9209).

use culvert_daemon::chain;
use culvert_tunnel::{OpenError, proto::tunnel::DialCode};

use super::request::BadRequest;
use crate::directory::ResolveError;
use crate::streams::error::RouteError;

/// The backend has answered. All following bytes are its own.
pub(super) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// A status code with its phrase, and the error type of RFC 9209.
type Refusal = (&'static str, &'static str);

const BAD_REQUEST: Refusal = ("400 Bad Request", "http_request_error");

/// The answer to a malformed request.
pub(super) fn bad_request(bad: &BadRequest) -> Vec<u8> {
    render(BAD_REQUEST, &bad.to_string())
}

/// The answer to a request whose connection was not made.
pub(super) fn refusal(error: &RouteError) -> Vec<u8> {
    render(classify(error), &chain(error))
}

fn classify(error: &RouteError) -> Refusal {
    match error {
        RouteError::Resolve(
            ResolveError::Shared { .. }
            | ResolveError::Protected { .. }
            | ResolveError::Contested { .. },
        ) => ("403 Forbidden", "destination_ip_prohibited"),
        RouteError::Resolve(
            ResolveError::UnknownAddress { .. }
            | ResolveError::UnknownName { .. }
            | ResolveError::UnassignedVip { .. },
        ) => ("403 Forbidden", "destination_not_found"),
        RouteError::Offline { .. } => ("503 Service Unavailable", "destination_unavailable"),
        RouteError::TooManyStreams { .. } | RouteError::ShareTaken { .. } => {
            ("503 Service Unavailable", "connection_limit_reached")
        }
        RouteError::Dial { failure, .. } | RouteError::Direct { failure, .. } => {
            classify_dial(failure.code)
        }
        RouteError::Tunnel {
            source: OpenError::TimedOut,
            ..
        } => ("504 Gateway Timeout", "connection_timeout"),
        RouteError::Tunnel { .. } => ("502 Bad Gateway", "connection_terminated"),
    }
}

fn classify_dial(code: DialCode) -> Refusal {
    match code {
        DialCode::Forbidden => ("403 Forbidden", "http_request_denied"),
        DialCode::Refused => ("502 Bad Gateway", "connection_refused"),
        DialCode::TimedOut => ("504 Gateway Timeout", "connection_timeout"),
        DialCode::Unreachable => ("502 Bad Gateway", "destination_ip_unroutable"),
        DialCode::TooManyStreams => ("503 Service Unavailable", "connection_limit_reached"),
        DialCode::Offline => ("503 Service Unavailable", "destination_unavailable"),
        DialCode::Ok | DialCode::Unspecified | DialCode::Invalid | DialCode::Failed => {
            ("502 Bad Gateway", "proxy_internal_error")
        }
    }
}

fn render((status, error): Refusal, details: &str) -> Vec<u8> {
    let body = format!("culvert: {details}\n");
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nProxy-Status: culvert; error={error}; details={}\r\nContent-Type: \
         text/plain; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}",
        quoted(details)
    )
    .into_bytes()
}

/// A string of a structured field (RFC 8941): printable ASCII, with `"` and `\` escaped.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use culvert_tunnel::DialFailure;

    use super::*;

    fn status(error: &RouteError) -> String {
        let text = String::from_utf8(refusal(error)).unwrap();
        text.lines().take(2).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn refusals_tell_the_agents_no_from_the_backends() {
        let node = "edge-1".parse().unwrap();
        let dial = |code| {
            let message = "dial \"10.0.3.7:9100\": no".to_owned();
            status(&RouteError::Dial {
                node: "edge-1".parse().unwrap(),
                failure: DialFailure { code, message },
            })
        };
        assert_eq!(
            dial(DialCode::Forbidden),
            "HTTP/1.1 403 Forbidden | Proxy-Status: culvert; error=http_request_denied; \
             details=\"edge-1: dial \\\"10.0.3.7:9100\\\": no\""
        );
        assert!(dial(DialCode::Refused).starts_with(
            "HTTP/1.1 502 Bad Gateway | Proxy-Status: culvert; error=connection_refused"
        ));
        assert!(dial(DialCode::TimedOut).starts_with("HTTP/1.1 504 "));
        assert!(status(&RouteError::Offline { node }).starts_with("HTTP/1.1 503 "));
    }

    #[test]
    fn nothing_in_an_error_can_end_its_header() {
        assert_eq!(
            quoted("a\r\nSet-Cookie: é\"\\"),
            r#""a??Set-Cookie: ?\"\\""#
        );
    }
}
