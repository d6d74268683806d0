//! Ends answers that their clients do not read: what the API server has sent of them would wait in
//! memory, and would hold a stream to it, for as long as the client likes.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, sleep};

use crate::lock::lock;
use crate::metrics::Metrics;
use crate::upstream::{Body, BodyError};

/// How long a client may take for a part of an answer, which is some 16 KiB.
const MAX_UNREAD: Duration = Duration::from_secs(30);
/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// Of the stream of HTTP/2, or the connection of HTTP/1.1, that is served.
    static READING: Reading;
}

/// Since when a part of an answer waits for its client. `None`: the client waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading(Arc<Mutex<Option<Instant>>>);

impl Reading {
    /// Serves a stream. It ends when its client does not read: `None`.
    pub(super) async fn serve<F: Future>(self, stream: F) -> Option<F::Output> {
        let unread = self.clone();
        tokio::select! {
            ended = READING.scope(self, stream) => Some(ended),
            () = unread.too_long() => None,
        }
    }

    async fn too_long(&self) {
        while !self.is_too_long(Instant::now()) {
            sleep(LOOK).await;
        }
    }

    fn is_too_long(&self, now: Instant) -> bool {
        let waits = *lock(&self.0);
        waits.is_some_and(|since| now.duration_since(since) >= MAX_UNREAD)
    }

    fn client_has_to_read(&self) {
        self.set(Some(Instant::now()));
    }

    fn client_waits(&self) {
        self.set(None);
    }

    fn set(&self, waits: Option<Instant>) {
        *lock(&self.0) = waits;
    }
}

/// The body of an answer, with what is held until it ends.
pub(super) struct WatchedBody<H> {
    body: Body,
    reading: Reading,
    begun: bool,
    metrics: Arc<Metrics>,
    _held: H,
}

impl<H: Unpin + Send + 'static> WatchedBody<H> {
    /// A body for the client of the stream that is served now.
    pub(super) fn boxed(body: Body, metrics: Arc<Metrics>, held: H) -> Body {
        let reading = READING.try_with(Clone::clone).unwrap_or_default();
        reading.client_has_to_read();
        let watched = Self {
            body,
            reading,
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
        self.begun = true;
        self.reading.client_waits();
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_some() {
            self.reading.client_has_to_read();
        }
        Poll::Ready(frame)
    }

    /// Only of an empty body: otherwise its end is when the client has read it.
    fn is_end_stream(&self) -> bool {
        !self.begun && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<H> Drop for WatchedBody<H> {
    fn drop(&mut self) {
        if self.reading.is_too_long(Instant::now()) {
            self.metrics.answer_was_unread();
        }
        self.reading.client_waits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
