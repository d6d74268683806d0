//! The connections to the API server with one credential. hyper's own client opens one connection
//! of HTTP/2 and lets what exceeds its streams wait: a node has more watches than that.
//!
//! Watches and short requests never share a connection, so that a lease or a probe does not wait
//! for watches. The window of a connection is as large as those of its streams together: a stream
//! that nobody reads takes nothing from the others.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use strum::{IntoStaticStr, VariantArray};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::cloud_identity::CloudIdentity;
use super::cluster::{self, ClusterAnswer, ClusterIdentity, Verdict};
use super::connector::{CloudStream, Connector};
use super::gunzip::Gunzip;
use super::link::Observation;
use super::{Body, Credential, SendError, collect};
use crate::lock::lock;

/// Silence on a connection of HTTP/2 before it is asked whether it is alive.
const PING_AFTER: Duration = Duration::from_secs(6);
/// With [`PING_AFTER`], a dead connection ends after 18 s.
const PING_TIMEOUT: Duration = Duration::from_secs(12);
/// Larger heads are refused, as on the kubelet port.
const MAX_HEAD: u32 = 64 << 10;
/// What of one request waits for the API server to take it.
const SEND_BUFFER: usize = 64 << 10;
/// Streams of one connection at most, whatever the API server allows: 100 is what it allows by
/// default, and the window of the connection is made for as many.
const MAX_STREAMS: usize = 100;
/// This part of the streams stays free: the API server may notice the end of one late.
const SPARE_PART: usize = 10;
/// Connections of one credential, for watches and for short requests each. With the default of 100
/// streams that is several times what [`crate::limits`] admits; with 20 it is enough.
const MAX_CONNECTIONS: usize = 64;
/// The same, where the API server or what is before it speaks HTTP/1.1 only: one for each request.
const MAX_HTTP1_CONNECTIONS: usize = 1500;
/// A connection without streams ends after this time.
const IDLE: Duration = Duration::from_secs(90);
/// The API server's first frame are its settings (RFC 9113, section 3.4), and hyper does not report
/// when they come.
const LOOK_FOR_SETTINGS: Duration = Duration::from_millis(5);
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(3);
/// A connection may end while a request is on its way to it.
const TRIES: usize = 3;
/// For the answer to a question about the cluster, which is some 2 KiB, and between two of them where
/// each request has a connection of its own.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_CLUSTER_ANSWER: usize = 256 << 10;
const ASK_HTTP1_EVERY: Duration = Duration::from_secs(10);

/// How long a request occupies its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum RequestKind {
    /// It ends by itself soon.
    Short,
    /// Watches, and logs that may be followed.
    Long,
}

/// The connections of one credential.
pub(crate) struct Pool {
    short: Lane,
    long: Lane,
}

/// How many connections and streams are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) streams: usize,
}

impl Pool {
    /// `abandoned` ends all connections at once.
    pub(crate) fn new(
        connector: &Connector,
        credential: Credential,
        abandoned: &CancellationToken,
        check: &Arc<ClusterCheck>,
    ) -> Self {
        let lane = |kind| Lane {
            connector: connector.clone(),
            credential,
            check: check.clone(),
            stream_window: stream_window(credential, kind),
            tasks: Tasks {
                abandoned: abandoned.clone(),
            },
            connections: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        };
        Self {
            short: lane(RequestKind::Short),
            long: lane(RequestKind::Long),
        }
    }

    /// Sends a request, and returns when the head of the answer is there.
    pub(crate) async fn send(
        &self,
        kind: RequestKind,
        mut request: Request<Body>,
    ) -> Result<Response<AnswerBody>, SendError> {
        for _ in 0..TRIES {
            let stream = self.lane(kind).stream().await?;
            match stream.0.send(request).await {
                Ok(answer) => {
                    let stream = Some(stream);
                    return Ok(answer.map(|body| AnswerBody {
                        body,
                        stream,
                        gunzip: None,
                    }));
                }
                // It was not sent: the connection has ended in between.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        Err(SendError::Closed)
    }

    /// The server of the connection that the next short request goes to, if there is one.
    pub(crate) fn server(&self) -> Option<Authority> {
        let connections = self.short.connections();
        Some(connections.first()?.authority.clone())
    }

    /// Closes connections that have not been used for a while.
    pub(crate) fn close_idle(&self) {
        for lane in [&self.short, &self.long] {
            lane.connections()
                .retain(|connection| !connection.is_idle());
        }
    }

    /// What is open now.
    pub(crate) fn load(&self, kind: RequestKind) -> Load {
        let mut load = Load::default();
        for connection in &*self.lane(kind).connections() {
            if !connection.is_closed() {
                load.connections += 1;
                load.streams += connection.streams.load(Ordering::Relaxed);
            }
        }
        load
    }

    fn lane(&self, kind: RequestKind) -> &Lane {
        match kind {
            RequestKind::Short => &self.short,
            RequestKind::Long => &self.long,
        }
    }
}

/// Of an answer to others than the node: one for each of hundreds of watches may be full.
pub(crate) const BEARER_WINDOW: u32 = 64 << 10;

/// What one answer may have under way. At 50 ms of round trip, 1 MiB lets 20 MB/s through. What
/// nobody reads waits here, so pods have less than kubelet.
fn stream_window(credential: Credential, kind: RequestKind) -> u32 {
    match (credential, kind) {
        (Credential::Node, RequestKind::Short) => 1 << 20,
        (Credential::Node, RequestKind::Long) => 256 << 10,
        (Credential::Bearer, RequestKind::Short | RequestKind::Long) => BEARER_WINDOW,
    }
}

/// Connections for one kind of requests.
struct Lane {
    connector: Connector,
    credential: Credential,
    check: Arc<ClusterCheck>,
    stream_window: u32,
    tasks: Tasks,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// One is opened at a time: those who wait find a stream on it.
    opening: tokio::sync::Mutex<()>,
}

impl Lane {
    /// A free stream; opens a connection if none has one.
    async fn stream(&self) -> Result<Stream, SendError> {
        if let Some(stream) = self.free_stream() {
            return Ok(stream);
        }
        let opening = self.opening.lock().await;
        if let Some(stream) = self.free_stream() {
            return Ok(stream);
        }
        let is_http1 = self.is_http1();
        let most = if is_http1 {
            MAX_HTTP1_CONNECTIONS
        } else {
            MAX_CONNECTIONS
        };
        if self.connections().len() >= most {
            return Err(SendError::Full);
        }
        let _opening = (!is_http1).then_some(opening);
        let connection = self.open().await.inspect_err(|error| {
            let link = self.connector.link();
            let reason = format!("connect: {}", culvert_daemon::chain(error));
            link.observe(Observation::TryFailed, &reason);
        })?;
        let connection = Arc::new(connection);
        let stream = Stream::on(&connection);
        self.connections().push(connection);
        Ok(stream)
    }

    /// Whether its connections carry one request each, so that nobody need wait for those of others.
    fn is_http1(&self) -> bool {
        let connections = self.connections();
        let newest = connections.last();
        match newest {
            Some(newest) => matches!(newest.sender, Sender::Http1(_)),
            None => false,
        }
    }

    /// The first connection with a free stream, so that the last ones become idle.
    fn free_stream(&self) -> Option<Stream> {
        let mut connections = self.connections();
        connections.retain(|connection| !connection.is_closed());
        let free = connections.iter().find(|it| it.has_free_stream())?;
        Some(Stream::on(free))
    }

    async fn open(&self) -> io::Result<Connection> {
        let stream = self.connector.dial().await?;
        let authority = stream.authority().clone();
        let sender = if stream.speaks_http2() {
            self.open_http2(stream).await?
        } else {
            let (sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
            hyper::rt::Executor::execute(&self.tasks, async move {
                // Its end is an error or an end for the request too, which reports it.
                connection.await.ok();
            });
            Sender::Http1(Mutex::new(sender))
        };
        let connection = Connection {
            sender,
            authority,
            streams: AtomicUsize::new(0),
            used: Mutex::new(Instant::now()),
        };
        match self.credential {
            Credential::Node => self.check.check(&connection).await?,
            Credential::Bearer => self.check.demand_same_cluster()?,
        }
        Ok(connection)
    }

    async fn open_http2(&self, stream: CloudStream) -> io::Result<Sender> {
        let streams = u32::try_from(MAX_STREAMS).unwrap_or(u32::MAX);
        let (sender, connection) = http2::Builder::new(self.tasks.clone())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(self.stream_window)
            .initial_connection_window_size(self.stream_window * streams)
            .max_header_list_size(MAX_HEAD)
            .max_send_buf_size(SEND_BUFFER)
            // None until the API server says how many.
            .initial_max_send_streams(0)
            .handshake(stream)
            .await
            .map_err(io::Error::other)?;
        let (max_streams_tx, mut max_streams) = watch::channel(0);
        hyper::rt::Executor::execute(&self.tasks, drive(connection, max_streams_tx));
        let settings = max_streams.wait_for(|streams| *streams > 0);
        match timeout(SETTINGS_TIMEOUT, settings).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Err(io::ErrorKind::ConnectionReset.into()),
            Err(_) => {
                let error = "no settings of HTTP/2 that allow a stream within 3 s";
                return Err(io::Error::new(io::ErrorKind::TimedOut, error));
            }
        }
        Ok(Sender::Http2 {
            sender,
            max_streams,
        })
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        lock(&self.connections)
    }
}

/// Runs a connection, and reports how many streams the API server allows.
async fn drive(
    mut connection: http2::Connection<CloudStream, Body, Tasks>,
    max_streams_tx: watch::Sender<usize>,
) {
    let mut look = interval(LOOK_FOR_SETTINGS);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = poll_fn(|context| {
        let ended = Pin::new(&mut connection).poll(context);
        let max_streams = connection.current_max_send_streams();
        max_streams_tx.send_if_modified(|known| {
            let changed = *known != max_streams;
            *known = max_streams;
            changed
        });
        if max_streams == 0 {
            while look.poll_tick(context).is_ready() {}
        }
        ended
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "a connection to the API server ended");
    }
}

/// Asks on each new connection whether the API server there is the one of this node's cluster.
pub(crate) struct ClusterCheck {
    identity: Arc<ClusterIdentity>,
    cloud: Arc<CloudIdentity>,
    /// Of a connection of HTTP/1.1: there are many, and one question in a while is enough.
    asked: Mutex<Option<Instant>>,
}

impl ClusterCheck {
    pub(crate) fn new(identity: Arc<ClusterIdentity>, cloud: Arc<CloudIdentity>) -> Self {
        Self {
            identity,
            cloud,
            asked: Mutex::default(),
        }
    }

    async fn check(&self, connection: &Connection) -> io::Result<()> {
        let is_http1 = matches!(connection.sender, Sender::Http1(_));
        if is_http1
            && let Some(asked) = *lock(&self.asked)
            && asked.elapsed() < ASK_HTTP1_EVERY
        {
            return self.demand_same_cluster();
        }
        let service = self.demand_answer(connection, cluster::SERVICE).await?;
        let mut verdict = self.identity.judge_service(&service);
        if verdict == Verdict::AskForNode {
            let name = self.cloud.node_name();
            let node = match ClusterIdentity::question_about_node(name.as_deref()) {
                Some(question) => self.demand_answer(connection, &question).await?,
                None => ClusterAnswer::Nothing,
            };
            verdict = self.identity.judge(&service, &node);
        }
        self.identity.settle(verdict, &service);
        *lock(&self.asked) = Some(Instant::now());
        self.demand_same_cluster()
    }

    /// The same of an API server that may be another cluster's: it must answer.
    async fn demand_answer(
        &self,
        connection: &Connection,
        question: &str,
    ) -> io::Result<ClusterAnswer> {
        let answer = self.ask(connection, question).await?;
        if answer == ClusterAnswer::Later && self.identity.is_known() {
            let error = "the API server does not say yet which cluster it is";
            return Err(io::Error::other(error));
        }
        Ok(answer)
    }

    /// Asks one question on a new connection.
    async fn ask(&self, connection: &Connection, question: &str) -> io::Result<ClusterAnswer> {
        let mut request = Request::new(super::empty());
        *request.uri_mut() = question.parse().map_err(io::Error::other)?;
        let accept = HeaderValue::from_static(cluster::ACCEPT);
        request.headers_mut().insert(header::ACCEPT, accept);
        if let Some(token) = self.cloud.authorization().await.map_err(io::Error::other)? {
            request.headers_mut().insert(header::AUTHORIZATION, token);
        }
        let asked = async {
            let answer = connection.send(request).await;
            let answer = answer.map_err(|error| io::Error::other(error.into_error()))?;
            let status = answer.status();
            let body = collect(answer.into_body(), MAX_CLUSTER_ANSWER).await;
            tracing::debug!(question, status = status.as_u16(), "which cluster it is");
            Ok(match body {
                Some(body) if status == StatusCode::OK => ClusterAnswer::read(&body),
                _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                    ClusterAnswer::Later
                }
                Some(_) | None => ClusterAnswer::Nothing,
            })
        };
        // Who takes a connection and does not answer is not reached.
        timeout(ASK_TIMEOUT, asked).await.unwrap_or_else(|_| {
            let error = "no answer on a new connection within 3 s";
            Err(io::Error::new(io::ErrorKind::TimedOut, error))
        })
    }

    /// A token proves nothing about the cluster, and may not ask: the node's last question counts.
    fn demand_same_cluster(&self) -> io::Result<()> {
        if self.identity.is_other() {
            return Err(io::Error::other(
                "another cluster answers at the address of the API server",
            ));
        }
        Ok(())
    }
}

/// An open connection.
struct Connection {
    sender: Sender,
    /// Of the API server that it leads to.
    authority: Authority,
    streams: AtomicUsize,
    /// When its last stream ended.
    used: Mutex<Instant>,
}

enum Sender {
    /// One request at a time.
    Http1(Mutex<http1::SendRequest<Body>>),
    Http2 {
        sender: http2::SendRequest<Body>,
        /// As the API server says.
        max_streams: watch::Receiver<usize>,
    },
}

impl Connection {
    fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => lock(sender).is_closed(),
            Sender::Http2 { sender, .. } => sender.is_closed(),
        }
    }

    fn has_free_stream(&self) -> bool {
        let streams = self.streams.load(Ordering::Relaxed);
        match &self.sender {
            Sender::Http1(sender) => streams == 0 && lock(sender).is_ready(),
            Sender::Http2 { max_streams, .. } => streams < usable(*max_streams.borrow()),
        }
    }

    fn is_idle(&self) -> bool {
        self.streams.load(Ordering::Relaxed) == 0 && lock(&self.used).elapsed() >= IDLE
    }

    async fn send(
        &self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        match &self.sender {
            Sender::Http1(sender) => {
                *request.uri_mut() = path.into();
                if let Ok(host) = self.authority.as_str().parse() {
                    request.headers_mut().insert(header::HOST, host);
                }
                let answer = lock(sender).try_send_request(request);
                answer.await
            }
            Sender::Http2 { sender, .. } => {
                let mut parts = http::uri::Parts::default();
                parts.scheme = Some(Scheme::HTTPS);
                parts.authority = Some(self.authority.clone());
                parts.path_and_query = Some(path);
                *request.uri_mut() =
                    Uri::from_parts(parts).expect("scheme, authority and path are all there");
                sender.clone().try_send_request(request).await
            }
        }
    }
}

/// How many of the streams that the API server allows are used.
fn usable(allowed: usize) -> usize {
    let allowed = allowed.min(MAX_STREAMS);
    allowed - allowed / SPARE_PART
}

/// One of the streams of a connection; it is free again when this is dropped.
struct Stream(Arc<Connection>);

impl Stream {
    fn on(connection: &Arc<Connection>) -> Self {
        connection.streams.fetch_add(1, Ordering::Relaxed);
        Self(connection.clone())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        *lock(&self.0.used) = Instant::now();
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer of the API server. It occupies its stream until its end.
pub(crate) struct AnswerBody {
    body: Incoming,
    stream: Option<Stream>,
    /// Of a body that comes compressed.
    gunzip: Option<Box<Gunzip>>,
}

/// Why a body is not whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("read an answer of the API server")]
    Http(#[from] hyper::Error),
    #[error("decompress an answer of the API server")]
    Gzip(#[from] io::Error),
}

impl AnswerBody {
    /// The same body, decompressed.
    fn gunzipped(mut self, gunzip: Gunzip) -> Self {
        self.gunzip = Some(Box::new(gunzip));
        self
    }

    fn poll_body(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        let body = Pin::new(&mut self.body);
        let frame = ready!(hyper::body::Body::poll_frame(body, context));
        if !matches!(frame, Some(Ok(_))) {
            self.stream = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(AnswerError::from)))
    }
}

/// The answer to a request that may have been compressed, plain.
pub(crate) fn gunzipped(mut answer: Response<AnswerBody>) -> Response<AnswerBody> {
    let encoding = answer.headers().get(header::CONTENT_ENCODING);
    match encoding {
        Some(encoding) if encoding == "gzip" => {}
        Some(_) | None => return answer,
    }
    answer.headers_mut().remove(header::CONTENT_ENCODING);
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    answer.map(|body| body.gunzipped(Gunzip::new()))
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        loop {
            let Some(gunzip) = &mut self.gunzip else {
                return self.poll_body(context);
            };
            if let Some(plain) = gunzip.next()? {
                return Poll::Ready(Some(Ok(Frame::data(plain))));
            }
            match ready!(self.poll_body(context)) {
                Some(Ok(frame)) => {
                    if let (Ok(bytes), Some(gunzip)) = (frame.into_data(), &mut self.gunzip) {
                        gunzip.push(bytes);
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => match &mut self.gunzip {
                    Some(gunzip) if !gunzip.is_finished() => gunzip.finish(),
                    Some(_) | None => return Poll::Ready(None),
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.gunzip.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.gunzip {
            Some(_) => SizeHint::default(),
            None => self.body.size_hint(),
        }
    }
}

/// Runs the tasks of connections: each ends with its connection, or when the pool is abandoned.
#[derive(Clone)]
struct Tasks {
    abandoned: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let abandoned = self.abandoned.clone();
        hyper::rt::Executor::execute(&TokioExecutor::new(), async move {
            abandoned.run_until_cancelled(task).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_the_allowed_streams_stay_free_and_few_are_all_used() {
        let used = [1, 9, 10, 100, 250, usize::MAX].map(usable);
        assert_eq!(used, [1, 9, 9, 90, 90, 90]);
    }
}
