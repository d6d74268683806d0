//! The connections to the API server with one credential. hyper's own client opens one connection
//! of HTTP/2 and lets what exceeds its streams wait: a node has more watches than that.
//!
//! Watches and short requests never share a connection, so that a lease or a probe does not wait
//! for watches.

mod answer_body;
mod cluster_check;
mod connection;

use std::error::Error;
use std::io;
use std::sync::Arc;

use h2::Reason;
use http::uri::Authority;
use http::{Request, Response};
use hyper::body::Body as _;
use parking_lot::Mutex;
use strum::{IntoStaticStr, VariantArray};
use tokio_util::sync::CancellationToken;

use super::connector::Connector;
use super::link::Observation;
use super::{Body, Credential, SendError, empty};
pub(crate) use answer_body::{AnswerBody, AnswerError, gunzipped};
pub(crate) use cluster_check::ClusterCheck;
use connection::{Connection, ConnectionTasks, Stream};

/// Connections of one credential, for watches and for short requests each. With the default of 100
/// streams that is several times what [`crate::limits`] admits; with 20 it is enough.
const MAX_CONNECTIONS: usize = 64;
/// The same, where the API server or what is before it speaks HTTP/1.1 only: one for each request.
const MAX_HTTP1_CONNECTIONS: usize = 1500;
/// A connection may end while a request is on its way to it.
const TRIES: usize = 3;

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
        Self {
            short: Lane::new(RequestKind::Short, connector, credential, abandoned, check),
            long: Lane::new(RequestKind::Long, connector, credential, abandoned, check),
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
            let copy = copy_without_body(&request);
            let mut error = match stream.send(request).await {
                Ok(answer) => return Ok(answer.map(|body| AnswerBody::new(body, stream))),
                Err(error) => error,
            };
            let unsent = error.take_message();
            let error = error.into_error();
            request = match (unsent, copy) {
                // The connection has ended in between.
                (Some(unsent), _) => unsent,
                (None, Some(copy)) if is_unprocessed(&error) => copy,
                (None, _) => return Err(error.into()),
            };
        }
        Err(SendError::Closed)
    }

    /// The server of the connection that the next short request goes to, if there is one.
    pub(crate) fn server(&self) -> Option<Authority> {
        let connections = self.short.connections.lock();
        Some(connections.first()?.authority().clone())
    }

    /// Closes connections that have not been used for a while.
    pub(crate) fn close_idle(&self) {
        for lane in [&self.short, &self.long] {
            let mut connections = lane.connections.lock();
            connections.retain(|connection| !connection.is_idle());
        }
    }

    /// What is open now.
    pub(crate) fn load(&self, kind: RequestKind) -> Load {
        let mut load = Load::default();
        for connection in &*self.lane(kind).connections.lock() {
            if !connection.is_closed() {
                load.connections += 1;
                load.streams += connection.streams();
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

/// A copy of a request that has no body.
fn copy_without_body(request: &Request<Body>) -> Option<Request<Body>> {
    if !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// Whether the API server says that it has not looked at a request, which may be sent again (RFC
/// 9113, section 8.7). One with `--goaway-chance` does so now and then.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.is_remote()
                && (error.reason() == Some(Reason::REFUSED_STREAM)
                    || error.is_go_away() && error.reason() == Some(Reason::NO_ERROR));
        }
        source = error.source();
    }
    false
}

/// The window of an answer to another client than the node: each of hundreds of watches may fill
/// one.
pub(crate) const BEARER_WINDOW: u32 = 64 << 10;

/// How much of one answer may be on its way. At a round trip of 50 ms, 1 MiB is 20 MB/s. The hub
/// holds as much if its client does not read, so pods get less than kubelet.
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
    tasks: ConnectionTasks,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// One is opened at a time: requests that wait for it find a stream on it.
    opening: tokio::sync::Mutex<()>,
}

impl Lane {
    fn new(
        kind: RequestKind,
        connector: &Connector,
        credential: Credential,
        abandoned: &CancellationToken,
        check: &Arc<ClusterCheck>,
    ) -> Self {
        Self {
            connector: connector.clone(),
            credential,
            check: check.clone(),
            stream_window: stream_window(credential, kind),
            tasks: ConnectionTasks::new(abandoned.clone()),
            connections: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

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
        let max_connections = if is_http1 {
            MAX_HTTP1_CONNECTIONS
        } else {
            MAX_CONNECTIONS
        };
        if self.connections.lock().len() >= max_connections {
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
        self.connections.lock().push(connection);
        Ok(stream)
    }

    /// Whether a connection carries one request. Then several are opened at a time, because no
    /// other request finds a stream on them.
    fn is_http1(&self) -> bool {
        match self.connections.lock().last() {
            Some(newest) => newest.is_http1(),
            None => false,
        }
    }

    /// A free stream of the first connection that has one, so that the last connections become
    /// idle.
    fn free_stream(&self) -> Option<Stream> {
        let mut connections = self.connections.lock();
        connections.retain(|connection| !connection.is_closed());
        let free = connections.iter().find(|it| it.has_free_stream())?;
        Some(Stream::on(free))
    }

    async fn open(&self) -> io::Result<Connection> {
        let stream = self.connector.dial().await?;
        let connection = Connection::open(stream, self.stream_window, &self.tasks).await?;
        match self.credential {
            Credential::Node => self.check.check(&connection).await?,
            Credential::Bearer => self.check.demand_same_cluster()?,
        }
        Ok(connection)
    }
}
