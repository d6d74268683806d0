//! Ends answers that their clients do not read: what the API server has sent of them would stay in
//! memory, and would occupy a stream to it, for as long as the client likes.
//!
//! The end of an answer is when its last byte was written to its connection: a client that takes no
//! bytes of a connection cannot have one answer after another wait there.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::budget::{self, Charge};
use crate::metrics::Metrics;
use crate::upstream::pool::BEARER_WINDOW;
use crate::upstream::{Body, BodyError};

/// How long a client may take for a part of an answer, which is some 16 KiB.
const MAX_UNREAD: Duration = Duration::from_secs(30);
/// How often that is checked.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// How much of one answer waits to be written. A larger part waits alone.
const MAX_QUEUED: usize = 64 << 10;
/// What the API server may send meanwhile of an answer that is not read: its window.
const WINDOW: usize = BEARER_WINDOW as usize;
/// What a part costs besides its bytes; rounded up. Events of a watch may be short, and many.
const PART_OVERHEAD: usize = 256;

tokio::task_local! {
    /// The count of the HTTP/2 stream, or of the HTTP/1.1 connection, that is served.
    static READING: Reading;
}

/// Since when a part of an answer waits for its client. `None`: the client waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading(Arc<Mutex<Option<Instant>>>);

impl Reading {
    /// Serves a stream. It ends when its client does not read, or when it holds too much: `None`.
    pub(super) async fn serve<F: Future>(self, stream: F) -> Option<F::Output> {
        let unread = self.clone();
        let end = CancellationToken::new();
        let stream = budget::with_end(end.clone(), READING.scope(self, stream));
        tokio::select! {
            ended = stream => Some(ended),
            () = unread.too_long() => None,
            () = end.cancelled() => None,
        }
    }

    async fn too_long(&self) {
        while !self.is_too_long(Instant::now()) {
            sleep(CHECK_EVERY).await;
        }
    }

    fn is_too_long(&self, now: Instant) -> bool {
        let waits = *self.0.lock();
        waits.is_some_and(|since| now.duration_since(since) >= MAX_UNREAD)
    }

    fn client_has_to_read(&self) {
        self.set(Some(Instant::now()));
    }

    fn client_waits(&self) {
        self.set(None);
    }

    fn set(&self, waits: Option<Instant>) {
        *self.0.lock() = waits;
    }
}

/// What of an answer waits to be written to its connection. Clones share it.
#[derive(Clone)]
struct Queue(Arc<Mutex<Queued>>);

struct Queued {
    bytes: usize,
    /// The client has to read before more of the answer is asked for.
    is_unread: bool,
    charge: Charge,
    waker: Option<Waker>,
}

/// A part of an answer, until it is written.
struct Part {
    bytes: Bytes,
    queue: Queue,
}

impl Queue {
    /// The answer counts as unread until hyper asks for its first part, which may be long: other
    /// answers may fill the connection.
    fn new(charge: Charge) -> Self {
        let mut queued = Queued {
            bytes: 0,
            is_unread: true,
            charge,
            waker: None,
        };
        queued.count();
        Self(Arc::new(Mutex::new(queued)))
    }

    /// Counts a part of the answer until it is written.
    fn push(&self, bytes: Bytes) -> Bytes {
        let mut queued = self.0.lock();
        queued.bytes += bytes.len() + PART_OVERHEAD;
        queued.is_unread = true;
        queued.count();
        drop(queued);
        let queue = self.clone();
        Bytes::from_owner(Part { bytes, queue })
    }

    /// Ready when so few bytes wait that more may come.
    fn poll_below(&self, most: usize, context: &Context<'_>) -> Poll<()> {
        let mut queued = self.0.lock();
        if queued.bytes < most {
            queued.is_unread = false;
            queued.count();
            return Poll::Ready(());
        }
        queued.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn has_ended(&self) -> bool {
        self.0.lock().charge.has_ended()
    }
}

impl Queued {
    fn count(&mut self) {
        let window = if self.is_unread { WINDOW } else { 0 };
        self.charge.set(self.bytes + window);
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut queued = self.queue.0.lock();
        queued.bytes -= self.bytes.len() + PART_OVERHEAD;
        queued.count();
        let waker = queued.waker.take();
        drop(queued);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The body of an answer, with what is held until it ends.
pub(super) struct WatchedBody<H> {
    /// `None`: all of it is queued.
    body: Option<Body>,
    reading: Reading,
    queue: Queue,
    begun: bool,
    metrics: Arc<Metrics>,
    _held: H,
}

impl<H: Unpin + Send + 'static> WatchedBody<H> {
    /// A body for the client of the stream that is served now.
    pub(super) fn boxed(body: Body, charge: Charge, metrics: Arc<Metrics>, held: H) -> Body {
        let reading = READING.try_with(Clone::clone).unwrap_or_default();
        reading.client_has_to_read();
        let watched = Self {
            body: Some(body),
            reading,
            queue: Queue::new(charge),
            begun: false,
            metrics,
            _held: held,
        };
        watched.boxed_unsync()
    }
}

impl<H: Unpin> hyper::body::Body for WatchedBody<H> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.as_mut().get_mut();
        this.begun = true;
        if let Some(body) = &mut this.body {
            ready!(this.queue.poll_below(MAX_QUEUED, context));
            this.reading.client_waits();
            let frame = ready!(Pin::new(body).poll_frame(context));
            this.reading.client_has_to_read();
            if let Some(frame) = frame {
                let queue = &this.queue;
                let frame = frame.map(|frame| frame.map_data(|bytes| queue.push(bytes)));
                return Poll::Ready(Some(frame));
            }
            this.body = None;
        }
        ready!(this.queue.poll_below(1, context));
        Poll::Ready(None)
    }

    /// Only of an empty body: otherwise its end is when the client has read it.
    fn is_end_stream(&self) -> bool {
        match &self.body {
            Some(body) => !self.begun && body.is_end_stream(),
            None => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::default(),
        }
    }
}

impl<H> Drop for WatchedBody<H> {
    fn drop(&mut self) {
        if self.reading.is_too_long(Instant::now()) || self.queue.has_ended() {
            self.metrics.answer_was_unread();
        }
        self.reading.client_waits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Credential;

    #[test]
    fn an_answer_that_nobody_asks_for_holds_its_window() {
        let budget = budget::Budget::default();
        let charge = budget.charge(Credential::Bearer, "sa:shop/cart");
        let queue = Queue::new(charge);
        assert_eq!(budget.bytes(), WINDOW);
        let context = Context::from_waker(Waker::noop());
        assert!(queue.poll_below(MAX_QUEUED, &context).is_ready());
        assert_eq!(budget.bytes(), 0);
        let part = queue.push(Bytes::from_static(b"part"));
        assert_eq!(budget.bytes(), WINDOW + part.len() + PART_OVERHEAD);
        drop(part);
        assert_eq!(budget.bytes(), WINDOW);
        drop(queue);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn only_a_client_that_has_to_read_and_does_not_is_too_slow() {
        let reading = Reading::default();
        let much_later = Instant::now() + 100 * MAX_UNREAD;
        assert!(!reading.is_too_long(much_later), "nothing was sent");
        reading.client_has_to_read();
        assert!(!reading.is_too_long(Instant::now()), "it has time");
        assert!(reading.is_too_long(much_later));
        reading.client_waits();
        assert!(!reading.is_too_long(much_later), "it has read all");
    }
}
