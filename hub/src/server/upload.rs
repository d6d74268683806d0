//! The body of a request of a client other than the node. Frames of HTTP/2 that nobody reads stay in
//! the buffers in which they came, of up to 16 KiB each, however short they are. So a body is read
//! as soon as it comes, and what it holds is what is counted.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::{Body as _, Frame};
use tokio::time::{Instant, timeout};

use crate::budget::Charge;
use crate::upstream::{Body, BodyError, full};

/// The API server takes no longer object.
const MAX_READ: usize = 3 << 20;
/// After this time without a frame, a body is one that its client goes on with as it likes.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// So is one that comes a little at a time. It holds one of the few requests of its client.
const MAX_TIME: Duration = Duration::from_secs(30);
/// What the frames of a body may occupy that are not read: its connection has a window of 64 KiB,
/// and frames of under 256 bytes are few (h2, `data_frame_budget`).
const UNREAD: usize = 4 << 20;

/// Reads a body to its end. If it has none, its rest comes as the API server takes it.
pub(super) async fn read_ahead(mut body: Body, charge: &mut Charge) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let began = Instant::now();
    let mut read = BytesMut::new();
    while read.len() < MAX_READ && began.elapsed() < MAX_TIME {
        let Ok(frame) = timeout(MAX_PAUSE, body.frame()).await else {
            break;
        };
        match frame {
            None => return full(read),
            Some(Err(error)) => return with_rest(read.freeze(), failed(error)),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    read.extend_from_slice(&bytes);
                    charge.add(bytes.len());
                }
            }
        }
    }
    charge.add(UNREAD);
    with_rest(read.freeze(), body)
}

fn with_rest(read: Bytes, rest: Body) -> Body {
    let begun = stream::iter([Ok(Frame::data(read))]);
    StreamBody::new(begun.chain(BodyStream::new(rest))).boxed_unsync()
}

fn failed(error: BodyError) -> Body {
    StreamBody::new(stream::iter([Err(error)])).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::upstream::Credential;

    /// Reads this ahead, and then the rest; returns it all, and what was counted.
    async fn read<F>(parts: F) -> Result<(Bytes, usize), BodyError>
    where
        F: stream::Stream<Item = Result<Frame<Bytes>, BodyError>> + Send + 'static,
    {
        let budget = Budget::default();
        let mut charge = budget.charge(Credential::Bearer, "sa:shop/cart");
        let body = read_ahead(StreamBody::new(parts).boxed_unsync(), &mut charge).await;
        Ok((body.collect().await?.to_bytes(), budget.bytes()))
    }

    fn part(bytes: impl Into<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        Ok(Frame::data(bytes.into()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_breaks_off_is_not_whole() {
        let broken = stream::iter([part("{"), Err("it broke off".into())]);
        assert!(read(broken).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_long_or_pauses_arrives_whole() {
        let long = vec![b'x'; MAX_READ / 2];
        let parts = [long.clone(), long.clone(), long].map(part);
        let (all, counted) = read(stream::iter(parts)).await.unwrap();
        assert_eq!(all.len(), MAX_READ / 2 * 3);
        assert_eq!(counted, MAX_READ + UNREAD);
        let pauses = stream::iter(["a", "b", "c"]).then(|text| async move {
            tokio::time::sleep(2 * MAX_PAUSE).await;
            part(text)
        });
        assert_eq!(read(pauses).await.unwrap().0, "abc");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_a_little_at_a_time_is_not_waited_for() {
        let budget = Budget::default();
        let mut charge = budget.charge(Credential::Bearer, "sa:shop/cart");
        let endless = stream::repeat(()).then(|()| async {
            tokio::time::sleep(MAX_PAUSE / 2).await;
            part("x")
        });
        let body = StreamBody::new(endless).boxed_unsync();
        let began = Instant::now();
        drop(read_ahead(body, &mut charge).await);
        assert!(began.elapsed() < 2 * MAX_TIME);
        assert!(budget.bytes() > UNREAD);
    }
}
