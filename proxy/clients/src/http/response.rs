//! Answers of the proxy itself. Refusals carry `Proxy-Status` (RFC 9209).

use bytes::Bytes;
use culvert_daemon::chain;
use culvert_proxy_core::directory::ResolveError;
use culvert_proxy_streams::error::RouteError;
use culvert_tunnel::{OpenError, proto::tunnel::DialCode};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};

use super::Body;
use super::backend::NoAnswer;
use super::opened::Unopened;

/// A status code, and the error type of RFC 9209.
type Class = (StatusCode, &'static str);

/// Why a request gets no connection, as its client reads it.
pub(crate) struct Refusal {
    class: Class,
    details: String,
}

impl Refusal {
    /// `error` is a type of RFC 9209.
    pub(crate) fn new(status: StatusCode, error: &'static str, details: String) -> Self {
        let class = (status, error);
        Self { class, details }
    }

    /// Whether it is the destination that the client may not reach, rather than a failure.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.class.0 == StatusCode::FORBIDDEN
    }

    /// The answer with its `Proxy-Status`, as HTTP/1.1; the connection ends with it.
    pub(crate) fn render(&self) -> Vec<u8> {
        let status = self.class.0;
        let body = self.body();
        format!(
            "HTTP/1.1 {status}\r\nProxy-Status: {}\r\nContent-Type: text/plain; \
             charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.proxy_status(),
            body.len(),
        )
        .into_bytes()
    }

    /// The answer with its `Proxy-Status`.
    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = text(self.class.0, "text/plain; charset=utf-8", self.body());
        // It is printable ASCII.
        if let Ok(status) = HeaderValue::from_str(&self.proxy_status()) {
            response.headers_mut().insert("proxy-status", status);
        }
        response
    }

    fn proxy_status(&self) -> String {
        let details = quoted(&self.details);
        format!("culvert; error={}; details={details}", self.class.1)
    }

    fn body(&self) -> String {
        format!("culvert: {}\n", self.details)
    }
}

impl From<&RouteError> for Refusal {
    fn from(error: &RouteError) -> Self {
        let class = classify(error);
        let details = chain(error);
        Self { class, details }
    }
}

impl From<NoAnswer> for Refusal {
    /// A connection was made, and no HTTP answer came.
    fn from(error: NoAnswer) -> Self {
        let details = chain(&error);
        Self::new(StatusCode::BAD_GATEWAY, "http_response_incomplete", details)
    }
}

impl From<&Unopened> for Refusal {
    fn from(unopened: &Unopened) -> Self {
        match unopened {
            Unopened::Route(error) => error.into(),
            Unopened::Socket(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "proxy_internal_error",
                chain(unopened),
            ),
        }
    }
}

fn classify(error: &RouteError) -> Class {
    use StatusCode as S;
    match error {
        RouteError::Resolve(
            ResolveError::Shared { .. }
            | ResolveError::Protected { .. }
            | ResolveError::Contested { .. }
            | ResolveError::Behind { .. },
        ) => (S::FORBIDDEN, "destination_ip_prohibited"),
        RouteError::Resolve(
            ResolveError::UnknownAddress { .. }
            | ResolveError::UnknownName { .. }
            | ResolveError::OtherMeaning { .. }
            | ResolveError::UnassignedVip { .. },
        ) => (S::FORBIDDEN, "destination_not_found"),
        RouteError::Offline { .. } => (S::SERVICE_UNAVAILABLE, "destination_unavailable"),
        RouteError::TooManyStreams { .. } | RouteError::ShareTaken { .. } => {
            (S::SERVICE_UNAVAILABLE, "connection_limit_reached")
        }
        RouteError::Dial { failure, .. } | RouteError::Direct { failure, .. } => {
            classify_dial(failure.code)
        }
        RouteError::Tunnel {
            source: OpenError::TimedOut,
            ..
        } => (S::GATEWAY_TIMEOUT, "connection_timeout"),
        RouteError::Tunnel { .. } => (S::BAD_GATEWAY, "connection_terminated"),
    }
}

fn classify_dial(code: DialCode) -> Class {
    use StatusCode as S;
    match code {
        DialCode::Forbidden => (S::FORBIDDEN, "http_request_denied"),
        DialCode::Refused => (S::BAD_GATEWAY, "connection_refused"),
        DialCode::TimedOut => (S::GATEWAY_TIMEOUT, "connection_timeout"),
        DialCode::Unreachable => (S::BAD_GATEWAY, "destination_ip_unroutable"),
        DialCode::TooManyStreams => (S::SERVICE_UNAVAILABLE, "connection_limit_reached"),
        DialCode::Offline => (S::SERVICE_UNAVAILABLE, "destination_unavailable"),
        DialCode::Ok | DialCode::Unspecified | DialCode::Invalid | DialCode::Failed => {
            (S::BAD_GATEWAY, "proxy_internal_error")
        }
    }
}

/// An answer with a body.
pub(crate) fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
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
        let text = String::from_utf8(Refusal::from(error).render()).unwrap();
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
