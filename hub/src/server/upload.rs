//! The body of a request of a client other than the node. Frames of HTTP/2 that nobody reads stay in
//! the buffers in which they came, of up to 16 KiB each, however short they are. So a body is read
//! as soon as it comes, and what it holds is what is counted.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::Request;
use hyper::body::{Body as _, Frame};
use tokio::time::timeout;

use crate::budget::Charge;
use crate::upstream::{Body, BodyError, full};

/// The API server takes no longer object.
const MAX_READ: usize = 3 << 20;
/// After this time without a frame, a body is one that its client goes on with as it likes.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// What the frames of a body may occupy that are not read: its connection has a window of 64 KiB,
/// and frames of under 256 bytes are few (h2, `data_frame_budget`).
const UNREAD: usize = 4 << 20;

/// Reads the body of a request to its end. If it has none, its rest comes as the API server takes it.
pub(super) async fn read_ahead(request: Request<Body>, charge: &mut Charge) -> Request<Body> {
    let (head, body) = request.into_parts();
    Request::from_parts(head, body_ahead(body, charge).await)
}

async fn body_ahead(mut body: Body, charge: &mut Charge) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let mut read = BytesMut::new();
    while read.len() < MAX_READ {
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
