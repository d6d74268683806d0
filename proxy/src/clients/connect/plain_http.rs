//! Passes a request on to the plain HTTP server of a node, as an HTTP proxy does: Prometheus'
//! `proxy_url` asks for `http://edge-1:9100/metrics`.

use std::io;

use bytes::Bytes;
use culvert_daemon::Worker;
use futures_util::stream;
use http::header::{CONNECTION, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio_util::task::AbortOnDropHandle;

use super::opened::{Opened, Relay};
use super::request::BadRequest;
use super::response::Refusal;
use super::tls_port::{Body, BoxError, Caller};
use crate::directory::Destination;

/// The maximum length of an answer's head, in bytes.
const ANSWER_HEAD_MAX: usize = 64 << 10;
/// The headers between two neighbours, besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
];

/// The server that a URI such as `http://edge-1:9100/metrics` names.
pub(super) fn destination(uri: &Uri) -> Result<Destination, BadRequest> {
    let authority = uri.authority().map(|authority| authority.as_str());
    let authority = authority.unwrap_or_default();
    let named = if uri.port().is_some() {
        authority.parse()
    } else {
        format!("{authority}:80").parse()
    };
    named.map_err(BadRequest::Target)
}

/// The answer of the server. Dropping the future or the answer ends the connection to it.
pub(super) async fn pass_on<B>(
    caller: &Caller,
    mut request: Request<B>,
    destination: Destination,
) -> Result<Response<Body>, Refusal>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let client = caller.address.to_string();
    let opened = caller.connect.open(destination, client).await;
    let Opened { socket, mut relay } = opened.map_err(|unopened| Refusal::from(&unopened))?;
    let mut server = http1::Builder::new();
    server.max_buf_size(ANSWER_HEAD_MAX);
    let shaken = server.handshake(TokioIo::new(socket)).await;
    let (mut sender, connection) = shaken.map_err(|error| Refusal::no_answer(&error))?;
    let connection = Worker::current().run(async move {
        // The answer's body has the error too.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a plain HTTP server");
        }
    });
    to_server(&mut request);
    let answer = tokio::select! {
        answer = sender.send_request(request) => answer.map_err(|error| Refusal::no_answer(&error)),
        cut = relay.cut() => Err(Refusal::no_answer(&cut)),
    };
    let mut answer = answer?;
    remove_hop_by_hop(answer.headers_mut());
    Ok(answer.map(|body| {
        let body = Answer {
            body,
            relay,
            _connection: connection,
        };
        StreamBody::new(stream::unfold(Some(body), next_frame)).boxed_unsync()
    }))
}

/// The body of an answer.
struct Answer {
    body: Incoming,
    relay: Relay,
    _connection: AbortOnDropHandle<()>,
}

type FrameResult = io::Result<Frame<Bytes>>;

/// The next frame of a body. A body that was cut ends with an error.
async fn next_frame(answer: Option<Answer>) -> Option<(FrameResult, Option<Answer>)> {
    let mut answer = answer?;
    tokio::select! {
        biased;
        frame = answer.body.frame() => match frame? {
            Ok(frame) => Some((Ok(frame), Some(answer))),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        },
        cut = answer.relay.cut() => Some((Err(io::Error::other(cut)), None)),
    }
}

/// Makes a request to a proxy one to the server itself. Its connection serves one request.
fn to_server<B>(request: &mut Request<B>) {
    let authority = request.uri().authority();
    let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path
        .unwrap_or_else(|| PathAndQuery::from_static("/"))
        .into();
    *request.version_mut() = Version::HTTP_11;
    remove_hop_by_hop(request.headers_mut());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    let close = HeaderValue::from_static("close");
    request.headers_mut().insert(CONNECTION, close);
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<_> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse::<HeaderName>().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_its_own_request_without_what_was_for_the_proxy() {
        let mut request = Request::get("http://edge-1:9100/metrics?a=b")
            .header("proxy-authorization", "Basic x")
            .header("connection", "keep-alive, x-private")
            .header("x-private", "1")
            .header("accept", "text/plain")
            .header("host", "elsewhere")
            .body(())
            .unwrap();
        to_server(&mut request);
        assert_eq!(request.uri(), "/metrics?a=b");
        let headers: Vec<_> = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        assert_eq!(
            headers,
            [
                "host: edge-1:9100",
                "accept: text/plain",
                "connection: close"
            ]
        );
    }

    #[test]
    fn a_uri_without_a_port_means_port_80() {
        let named =
            |uri: &'static str| destination(&Uri::from_static(uri)).map(|to| to.to_string());
        assert_eq!(named("http://edge-1/metrics").unwrap(), "edge-1:80");
        assert_eq!(named("http://[fd00::1]:9100/").unwrap(), "[fd00::1]:9100");
        assert_eq!(named("http://[fd00::1]/").unwrap(), "[fd00::1]:80");
    }
}
