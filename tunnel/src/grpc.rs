//! The parts of gRPC over HTTP/2 that the two ends of a tunnel use: paths, headers, trailers.

use http::{HeaderMap, HeaderValue, Request, Response, header};

/// Path of `Agent.Describe`.
pub(crate) const DESCRIBE: &str = "/culvert.tunnel.v1.Agent/Describe";
/// Path of `Agent.SetProxies`.
pub(crate) const SET_PROXIES: &str = "/culvert.tunnel.v1.Agent/SetProxies";
/// Path of `Agent.Open`.
pub(crate) const OPEN: &str = "/culvert.tunnel.v1.Agent/Open";
/// Path of `Agent.Resume`.
pub(crate) const RESUME: &str = "/culvert.tunnel.v1.Agent/Resume";
/// Path of `Agent.Dial`.
pub(crate) const DIAL: &str = "/culvert.tunnel.v1.Agent/Dial";
/// Path of `Agent.DialProxy`.
pub(crate) const DIAL_PROXY: &str = "/culvert.tunnel.v1.Agent/DialProxy";

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";
pub(crate) const OK: u8 = 0;
pub(crate) const ABORTED: u8 = 10;
pub(crate) const NOT_FOUND: u8 = 5;
pub(crate) const RESOURCE_EXHAUSTED: u8 = 8;
pub(crate) const UNIMPLEMENTED: u8 = 12;
pub(crate) const INVALID_ARGUMENT: u8 = 3;
pub(crate) const FAILED_PRECONDITION: u8 = 9;

/// A call's request headers. The authority is a constant: the connection identifies the agent.
pub(crate) fn request(path: &'static str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::builder()
        .scheme("https")
        .authority("agent")
        .path_and_query(path)
        .build()
        .expect("a constant path makes a URI");
    *request.version_mut() = http::Version::HTTP_2;
    request
        .headers_mut()
        .insert(header::CONTENT_TYPE, CONTENT_TYPE);
    request
        .headers_mut()
        .insert(header::TE, HeaderValue::from_static("trailers"));
    request
}

/// A call's response headers.
pub(crate) fn response() -> Response<()> {
    let mut response = Response::new(());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// An error response of headers only, with the status in them.
pub(crate) fn error_response(status: u8, message: &'static str) -> Response<()> {
    let mut response = response();
    response
        .headers_mut()
        .insert(STATUS, HeaderValue::from(u16::from(status)));
    response
        .headers_mut()
        .insert(MESSAGE, HeaderValue::from_static(message));
    response
}

pub(crate) fn trailers(status: u8) -> HeaderMap {
    HeaderMap::from_iter([(
        header::HeaderName::from_static(STATUS),
        HeaderValue::from(u16::from(status)),
    )])
}

pub(crate) fn is_ok(trailers: &HeaderMap) -> bool {
    trailers.get(STATUS).is_some_and(|status| status == "0")
}

/// The status in response headers; [`OK`] if there is none.
pub(crate) fn status_of(response: &Response<h2::RecvStream>) -> u8 {
    match header_text(response, STATUS) {
        Some(status) => status.parse().unwrap_or(OK),
        None => OK,
    }
}

/// The text of a header, if there is one.
fn header_text<'a>(response: &'a Response<h2::RecvStream>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// The error in response headers, if any: status and message.
pub(crate) fn error_of(response: &Response<h2::RecvStream>) -> Option<String> {
    match header_text(response, STATUS) {
        None if response.status() == http::StatusCode::OK => None,
        Some("0") => None,
        status => Some(format!(
            "HTTP status {}, gRPC status {}: {}",
            response.status().as_u16(),
            status.unwrap_or("none"),
            header_text(response, MESSAGE).unwrap_or("no message")
        )),
    }
}
