//! One connection to the API server, and its streams.
//!
//! The window of a connection is as large as those of its streams together: a stream that no client
//! reads takes nothing from the others.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::upstream::Body;
use crate::upstream::connector::CloudStream;

/// After so much silence, a ping asks whether a connection of HTTP/2 still works.
const PING_AFTER: Duration = Duration::from_secs(6);
/// With [`PING_AFTER`], a dead connection ends after 18 s.
const PING_TIMEOUT: Duration = Duration::from_secs(12);
/// Larger heads are refused, as on the kubelet port.
const MAX_HEAD: u32 = 64 << 10;
/// How much of one request waits for the API server to read it.
const SEND_BUFFER: usize = 64 << 10;
/// Streams of one connection at most, whatever the API server allows: 100 is what it allows by
/// default, and the window of the connection is made for as many.
const MAX_STREAMS: usize = 100;
/// One stream in so many stays free: the API server may notice late that one has ended.
const SPARE_PART: usize = 10;
/// A connection without streams is closed after this time.
const IDLE: Duration = Duration::from_secs(90);
/// The API server's first frame are its settings (RFC 9113, section 3.4), and hyper does not report
/// when they come.
const SETTINGS_POLL: Duration = Duration::from_millis(5);
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(3);

/// An open connection.
pub(super) struct Connection {
    sender: Sender,
    /// The authority of the API server that it leads to.
    authority: Authority,
    streams: AtomicUsize,
    last_used: Mutex<Instant>,
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
    /// Begins to speak HTTP on a new stream. `stream_window` is how much of one answer may be on
    /// its way.
    pub(super) async fn open(
        stream: CloudStream,
        stream_window: u32,
        tasks: &ConnectionTasks,
    ) -> io::Result<Self> {
        let authority = stream.authority().clone();
        let sender = if stream.speaks_http2() {
            open_http2(stream, stream_window, tasks).await?
        } else {
            open_http1(stream, tasks).await?
        };
        Ok(Self {
            sender,
            authority,
            streams: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
        })
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    pub(super) fn is_http1(&self) -> bool {
        matches!(self.sender, Sender::Http1(_))
    }

    pub(super) fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.lock().is_closed(),
            Sender::Http2 { sender, .. } => sender.is_closed(),
        }
    }

    /// How many streams are open.
    pub(super) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub(super) fn has_free_stream(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => self.streams() == 0 && sender.lock().is_ready(),
            Sender::Http2 { max_streams, .. } => self.streams() < usable(*max_streams.borrow()),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.streams() == 0 && self.last_used.lock().elapsed() >= IDLE
    }

    /// Sends a request, and returns when the head of the answer is there.
    pub(super) async fn send(
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
                let answer = sender.lock().try_send_request(request);
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

async fn open_http1(stream: CloudStream, tasks: &ConnectionTasks) -> io::Result<Sender> {
    let (sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
    hyper::rt::Executor::execute(tasks, async move {
        // An error here is also one of the request, which reports it.
        connection.await.ok();
    });
    Ok(Sender::Http1(Mutex::new(sender)))
}

async fn open_http2(
    stream: CloudStream,
    stream_window: u32,
    tasks: &ConnectionTasks,
) -> io::Result<Sender> {
    let streams = u32::try_from(MAX_STREAMS).unwrap_or(u32::MAX);
    let (sender, connection) = http2::Builder::new(tasks.clone())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(stream_window)
        .initial_connection_window_size(stream_window * streams)
        .max_header_list_size(MAX_HEAD)
        .max_send_buf_size(SEND_BUFFER)
        // None until the API server says how many.
        .initial_max_send_streams(0)
        .handshake(stream)
        .await
        .map_err(io::Error::other)?;
    let (max_streams_tx, mut max_streams) = watch::channel(0);
    hyper::rt::Executor::execute(tasks, drive(connection, max_streams_tx));
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

/// Runs a connection of HTTP/2, and reports how many streams the API server allows.
async fn drive(
    mut connection: http2::Connection<CloudStream, Body, ConnectionTasks>,
    max_streams_tx: watch::Sender<usize>,
) {
    let mut settings_poll = interval(SETTINGS_POLL);
    settings_poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = poll_fn(|context| {
        let ended = Pin::new(&mut connection).poll(context);
        let max_streams = connection.current_max_send_streams();
        max_streams_tx.send_if_modified(|known| {
            let changed = *known != max_streams;
            *known = max_streams;
            changed
        });
        if max_streams == 0 {
            while settings_poll.poll_tick(context).is_ready() {}
        }
        ended
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "a connection to the API server ended");
    }
}

/// How many of the streams that the API server allows are used.
fn usable(allowed: usize) -> usize {
    let allowed = allowed.min(MAX_STREAMS);
    allowed - allowed / SPARE_PART
}

/// One of the streams of a connection; it is free again when this is dropped.
pub(super) struct Stream(Arc<Connection>);

impl Stream {
    pub(super) fn on(connection: &Arc<Connection>) -> Self {
        connection.streams.fetch_add(1, Ordering::Relaxed);
        Self(connection.clone())
    }

    /// Sends a request, and returns when the head of the answer is there.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        self.0.send(request).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        *self.0.last_used.lock() = Instant::now();
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs the tasks of connections: each ends with its connection, or when the pool is abandoned.
#[derive(Clone)]
pub(super) struct ConnectionTasks {
    abandoned: CancellationToken,
}

impl ConnectionTasks {
    pub(super) const fn new(abandoned: CancellationToken) -> Self {
        Self { abandoned }
    }
}

impl<F> hyper::rt::Executor<F> for ConnectionTasks
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
