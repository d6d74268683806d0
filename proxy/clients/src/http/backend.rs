//! Passes requests on to the plain HTTP server of a node, as an HTTP proxy does: Prometheus'
//! `proxy_url` asks for `http://edge-1:9100/metrics`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use culvert_daemon::Worker;
use culvert_proxy_core::directory::Destination;
use culvert_tunnel::RelayError;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::expectation::{self, RequestBody};
use super::opened::{Opened, Relay};
use super::{Body, BoxError, without_user};

/// The maximum length of an answer's head, in bytes.
const ANSWER_HEAD_MAX: usize = 64 << 10;
/// The time in which a server ends a connection whose client has ended it.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// The option of `Connection` that ends the connection.
const CLOSE: HeaderName = HeaderName::from_static("close");
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

/// A connection to a server, which serves one request at a time. Dropping it ends it.
pub(crate) struct Backend {
    sender: SendRequest<RequestBody>,
    relay: Relay,
    _connection: AbortOnDropHandle<()>,
}

/// How long a connection to a server lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasts {
    OneRequest,
    ManyRequests,
}

/// What came of a request.
pub(crate) enum Passed {
    Answer(Response<Incoming>, Backend),
    /// The server has switched to another protocol, in which it has sent these bytes already.
    Switched(Response<Incoming>, Opened, Bytes),
}

/// Why a server that was reached has not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Cut(#[from] RelayError),
    #[error("the server switched to another protocol, which the client did not ask for")]
    Unasked,
    #[error("the answer has a Transfer-Encoding that nobody asked for: only chunked is passed on")]
    Coded,
}

impl Backend {
    /// Begins HTTP/1.1 on a connection.
    pub(crate) async fn handshake(opened: Opened) -> Result<Self, NoAnswer> {
        let Opened { socket, relay } = opened;
        let mut client = http1::Builder::new();
        client
            .max_buf_size(ANSWER_HEAD_MAX)
            .preserve_header_case(true);
        let (sender, connection) = client.handshake(TokioIo::new(socket)).await?;
        let connection = Worker::current().run(async move {
            // The answer's body has the error too.
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to a plain HTTP server");
            }
        });
        Ok(Self {
            sender,
            relay,
            _connection: connection,
        })
    }

    /// Passes a request on. Dropping the future ends the connection.
    pub(crate) async fn pass_on<B>(
        mut self,
        mut request: Request<B>,
        lasts: Lasts,
    ) -> Result<Passed, NoAnswer>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let asked = protocol_asked(&request);
        to_server(&mut request, lasts);
        if let Some(protocol) = &asked {
            let upgrade = HeaderValue::from_static("upgrade");
            request.headers_mut().insert(CONNECTION, upgrade);
            request.headers_mut().insert(UPGRADE, protocol.clone());
        }
        let mut answer = tokio::select! {
            answer = self.sender.send_request(expectation::defer_body(request)) => answer?,
            cut = self.relay.cut() => return Err(cut.into()),
        };
        if is_coded(answer.headers()) {
            return Err(NoAnswer::Coded);
        }
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            to_client(&mut answer, lasts);
            return Ok(Passed::Answer(answer, self));
        }
        if asked.is_none() {
            return Err(NoAnswer::Unasked);
        }
        let upgraded = hyper::upgrade::on(&mut answer).await?;
        let parts = upgraded
            .downcast::<TokioIo<UnixStream>>()
            .expect("the connection began with this type");
        let opened = Opened {
            socket: parts.io.into_inner(),
            relay: self.relay,
        };
        Ok(Passed::Switched(answer, opened, parts.read_buf))
    }

    /// Waits until the server takes the next request.
    async fn ready(&mut self) -> Result<(), NoAnswer> {
        tokio::select! {
            biased;
            cut = self.relay.cut() => Err(cut.into()),
            ready = self.sender.ready() => Ok(ready?),
        }
    }

    /// Ends an idle connection in order.
    async fn finish(mut self) {
        if let Ok(Err(error)) = timeout(FINISH_TIMEOUT, self.relay.finish()).await {
            tracing::debug!(%error, "finish a connection to a plain HTTP server");
        }
    }
}

/// The place of a client's idle connection to a server. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct IdleBackend(Arc<Mutex<Idle>>);

#[derive(Default)]
struct Idle {
    backend: Option<(Destination, Backend)>,
    /// The connection to another server before it, which is being ended.
    finishing: Option<AbortOnDropHandle<()>>,
}

impl IdleBackend {
    /// The idle connection to `destination`, if there is one that can be used. One to another
    /// destination is ended.
    pub(crate) async fn remove(&self, destination: &Destination) -> Option<Backend> {
        let (of, mut backend) = self.lock().backend.take()?;
        if of == *destination {
            return match backend.ready().await {
                Ok(()) => Some(backend),
                Err(_) => None,
            };
        }
        self.lock().finishing = Some(Worker::current().run(backend.finish()));
        None
    }

    fn set(&self, destination: Destination, backend: Backend) {
        self.lock().backend = Some((destination, backend));
    }

    /// Ends the idle connection in order.
    pub(crate) async fn finish(&self) {
        let idle = std::mem::take(&mut *self.lock());
        if let Some((_, backend)) = idle.backend {
            backend.finish().await;
        }
        if let Some(finishing) = idle.finishing {
            // It has a time limit of its own.
            finishing.await.ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.0.lock()
    }
}

/// The body of an answer. If it is dropped before its end, so is the connection to the server.
pub(crate) struct Answer {
    body: Incoming,
    backend: Option<Backend>,
    /// Where the connection goes afterwards. `None`: it ends.
    afterwards: Option<(IdleBackend, Destination)>,
    has_ended: bool,
}

impl Answer {
    /// The answer to the client.
    pub(crate) fn response(
        answer: Response<Incoming>,
        backend: Backend,
        afterwards: Option<(IdleBackend, Destination)>,
    ) -> Response<Body> {
        answer.map(|body| {
            let answer = Self {
                body,
                backend: Some(backend),
                afterwards,
                has_ended: false,
            };
            answer.boxed_unsync()
        })
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let answer = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut answer.body).poll_frame(context) {
            answer.has_ended = frame.is_none();
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        let Some(backend) = &mut answer.backend else {
            return Poll::Pending;
        };
        let cut = ready!(backend.relay.poll_cut(context));
        Poll::Ready(Some(Err(io::Error::other(cut))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let has_ended = self.has_ended || self.body.is_end_stream();
        if has_ended
            && let Some((idle, destination)) = self.afterwards.take()
            && let Some(backend) = self.backend.take()
        {
            idle.set(destination, backend);
        }
    }
}

/// The protocol that a client asks to switch to, unless it is HTTP/2, whose requests could name
/// other servers.
fn protocol_asked<B>(request: &Request<B>) -> Option<HeaderValue> {
    let headers = request.headers();
    if request.version() != Version::HTTP_11 || !connection_options(headers).contains(&UPGRADE) {
        return None;
    }
    let protocol = headers.get(UPGRADE)?;
    for name in protocol.to_str().ok()?.split(',') {
        let name = name.trim().to_ascii_lowercase();
        if name.starts_with("h2c") || name.starts_with("http/") {
            return None;
        }
    }
    Some(protocol.clone())
}

/// Makes a request to a proxy one to the server itself.
fn to_server<B: hyper::body::Body>(request: &mut Request<B>, lasts: Lasts) {
    let authority = request.uri().authority();
    let host = authority.and_then(|url| HeaderValue::from_str(without_user(url.as_str())).ok());
    let path = match request.uri().path_and_query() {
        Some(path) => path.clone(),
        None => PathAndQuery::from_static("/"),
    };
    *request.uri_mut() = path.into();
    *request.version_mut() = Version::HTTP_11;
    let has_body = !request.body().is_end_stream();
    let headers = request.headers_mut();
    remove_hop_by_hop(headers);
    if let Some(host) = host {
        headers.insert(HOST, host);
    }
    // hyper sends no body of unknown length with GET unless it is told to.
    if has_body && !headers.contains_key(CONTENT_LENGTH) {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if lasts == Lasts::OneRequest {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Makes an answer of the server one to its client, whose connection ends with the server's.
fn to_client(answer: &mut Response<Incoming>, lasts: Lasts) {
    let headers = answer.headers();
    let is_measured = answer.body().is_end_stream()
        || headers.contains_key(CONTENT_LENGTH)
        || headers.contains_key(TRANSFER_ENCODING);
    let is_last = answer.version() != Version::HTTP_11
        || !is_measured
        || connection_options(headers).contains(&CLOSE);
    // The version is the proxy's own: only in HTTP/1.1 a client can tell a cut from an end.
    *answer.version_mut() = Version::HTTP_11;
    remove_hop_by_hop(answer.headers_mut());
    if is_last && lasts == Lasts::ManyRequests {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // A length beside chunks does not count (RFC 9112, 6.3), and alone it would cut the body.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    for name in connection_options(headers).iter().chain(&HOP_BY_HOP) {
        // Servers refuse requests without it.
        if name != HOST {
            headers.remove(name);
        }
    }
}

/// Whether a body has a coding besides its chunks, such as gzip. The one who gets it could not be
/// told.
pub(super) fn is_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// The names in `Connection`.
fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    let mut names = Vec::new();
    for value in headers.get_all(CONNECTION) {
        let Ok(value) = value.to_str() else {
            continue;
        };
        for name in value.split(',') {
            if let Ok(name) = name.trim().parse() {
                names.push(name);
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use http_body_util::{Empty, Full};

    use super::*;

    fn lines(headers: &HeaderMap) -> Vec<String> {
        let lines = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        lines.collect()
    }

    #[test]
    fn a_server_gets_its_own_request_without_what_was_for_the_proxy() {
        let mut request = Request::get("http://edge-1:9100/metrics?a=b")
            .header("proxy-authorization", "Basic x")
            .header("connection", "keep-alive, x-private")
            .header("x-private", "1")
            .header("accept", "text/plain")
            .header("host", "elsewhere")
            .body(Empty::<Bytes>::new())
            .unwrap();
        to_server(&mut request, Lasts::OneRequest);
        assert_eq!(request.uri(), "/metrics?a=b");
        assert_eq!(
            lines(request.headers()),
            [
                "host: edge-1:9100",
                "accept: text/plain",
                "connection: close"
            ]
        );
    }

    #[test]
    fn the_host_stays_though_connection_names_it() {
        let mut request = Request::get("/metrics")
            .header("connection", "host")
            .header("host", "edge-1")
            .body(Empty::<Bytes>::new())
            .unwrap();
        to_server(&mut request, Lasts::ManyRequests);
        assert_eq!(lines(request.headers()), ["host: edge-1"]);
    }

    /// RFC 9110, 4.2.4: servers refuse such a Host, or write it into their logs.
    #[test]
    fn a_user_and_a_password_in_a_url_are_no_part_of_the_host() {
        let url = "http://user:p%40ss@edge-1:9100/metrics";
        let mut request = Request::get(url).body(Empty::<Bytes>::new()).unwrap();
        to_server(&mut request, Lasts::ManyRequests);
        assert_eq!(lines(request.headers()), ["host: edge-1:9100"]);
    }

    #[test]
    fn a_body_without_a_length_is_sent_whatever_the_method() {
        for (length, sent) in [
            (None, "transfer-encoding: chunked"),
            (Some("4"), "content-length: 4"),
        ] {
            let mut request = Request::get("/search").header("host", "edge-1");
            if let Some(length) = length {
                request = request.header("content-length", length);
            }
            let mut request = request.body(Full::new(Bytes::from("body"))).unwrap();
            to_server(&mut request, Lasts::ManyRequests);
            assert_eq!(lines(request.headers()), ["host: edge-1", sent]);
        }
    }

    /// The protocol that a request with these headers asks for.
    fn asked(version: Version, connection: &str, upgrade: &str) -> Option<String> {
        let request = Request::get("/")
            .version(version)
            .header("connection", connection)
            .header("upgrade", upgrade);
        let asked = protocol_asked(&request.body(()).unwrap());
        asked.map(|protocol| protocol.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_client_may_ask_for_another_protocol_but_not_for_one_with_requests_in_it() {
        let websocket = Some("websocket".to_owned());
        assert_eq!(asked(Version::HTTP_11, "Upgrade", "websocket"), websocket);
        let several = "keep-alive, upgrade";
        assert_eq!(asked(Version::HTTP_11, several, "websocket"), websocket);
        assert_eq!(asked(Version::HTTP_11, "keep-alive", "websocket"), None);
        assert_eq!(asked(Version::HTTP_10, "Upgrade", "websocket"), None);
        for http in ["h2c", "H2C", "websocket, h2c", "HTTP/2.0"] {
            assert_eq!(
                asked(Version::HTTP_11, "Upgrade, HTTP2-Settings", http),
                None
            );
        }
    }
}
