//! HTTP/2 on the mutual TLS port. Each request has a stream of its own, also each CONNECT.
//!
//! This is `h2`, not hyper's server: hyper ends the stream of a CONNECT in order even if its backend
//! was cut, and a client would take part of a file for all of it.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, ready};

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use culvert_proxy_core::directory::Destination;
use culvert_tunnel::RelayError;
use futures_util::FutureExt;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::HEAD_TIMEOUT;
use super::caller::{Caller, Page, Requested};
use crate::has_drained;
use crate::http::backend::{Answer, Backend, Lasts, NoAnswer, Passed};
use crate::http::bridge::{COPIED_AT_ONCE, STALLED, both_ways};
use crate::http::opened::Opened;
use crate::http::response::Refusal;
use crate::http::{Body, HEAD_MAX};

/// Streams that a connection may have at once.
const STREAMS: u32 = 100;
/// Bytes that one stream may have under way. The connection has room for as many of all its
/// streams, so that one whose backend takes nothing stalls no other.
pub(super) const STREAM_WINDOW: u32 = 256 << 10;
/// Bytes that wait to be sent, for each stream.
pub(super) const SEND_BUFFER: usize = 64 << 10;

/// Serves the client until its connection ends.
pub(super) async fn serve(caller: &Caller, tls: TlsStream<TcpStream>) -> Result<()> {
    let mut server = h2::server::Builder::new();
    server
        .max_concurrent_streams(STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAMS * STREAM_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(HEAD_MAX)?);
    let handshake = timeout(HEAD_TIMEOUT, server.handshake::<_, Bytes>(tls)).await;
    let mut connection = handshake
        .context("the client began no HTTP/2")?
        .context("HTTP/2")?;
    let mut calls = JoinSet::new();
    let mut drained = pin!(has_drained(&caller.connect.drain).fuse());
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(accepted) => {
                    let (request, respond) = accepted.context("HTTP/2")?;
                    calls.spawn(call(caller.clone(), request, respond));
                }
                None => return Ok(()),
            },
            Some(_) = calls.join_next() => {}
            () = &mut drained => connection.graceful_shutdown(),
        }
    }
}

/// Serves one request. A failure ends its stream only.
async fn call(caller: Caller, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
    if let Err(error) = Box::pin(serve_call(&caller, request, respond)).await {
        tracing::debug!(client.addr = %caller.address, reason = ?error, "an HTTP/2 stream was cut");
    }
}

async fn serve_call(
    caller: &Caller,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<()> {
    let prepared = tokio::select! {
        prepared = prepare(caller, request) => prepared,
        // The client gave the request up.
        reset = poll_fn(|context| respond.poll_reset(context)) => return reset.map(drop).context("wait"),
    };
    match prepared {
        Prepared::Tunnel(opened, from_client) => {
            let to_client = respond.send_response(Response::new(()), false)?;
            tunnel(opened, from_client, to_client).await
        }
        Prepared::Answer(answer) => {
            let (head, body) = answer.into_parts();
            let ended = body.is_end_stream();
            let to_client = respond.send_response(Response::from_parts(head, ()), ended)?;
            if ended {
                return Ok(());
            }
            send_body(body, to_client).await
        }
    }
}

enum Prepared {
    Tunnel(Opened, RecvStream),
    Answer(Response<Body>),
}

async fn prepare(caller: &Caller, request: Request<RecvStream>) -> Prepared {
    match caller.requested(&request) {
        Ok(Requested::Tunnel(destination)) => match caller.open(destination).await {
            Ok(opened) => Prepared::Tunnel(opened, request.into_body()),
            Err(refusal) => Prepared::Answer(refusal.response()),
        },
        Ok(Requested::Page(page)) => {
            let request = request.map(RequestBody);
            Prepared::Answer(answer(caller, page, request).await)
        }
        Err(bad) => Prepared::Answer(*bad),
    }
}

async fn answer(caller: &Caller, page: Page, request: Request<RequestBody>) -> Response<Body> {
    match page {
        Page::Targets(query) => caller.targets(&query),
        Page::Of(destination) => {
            let passed = Box::pin(pass_on(caller, request, destination)).await;
            match passed {
                Ok(answer) => answer,
                Err(refusal) => refusal.response(),
            }
        }
    }
}

/// The answer of a server. Its connection serves one request.
async fn pass_on(
    caller: &Caller,
    request: Request<RequestBody>,
    destination: Destination,
) -> Result<Response<Body>, Refusal> {
    let backend = Backend::handshake(caller.open(destination).await?).await?;
    match backend.pass_on(request, Lasts::OneRequest).await? {
        Passed::Answer(answer, backend) => Ok(Answer::response(answer, backend, None)),
        // HTTP/2 has no way to ask for it.
        Passed::Switched(..) => Err(NoAnswer::Unasked.into()),
    }
}

/// Copies between a stream and a connection until both directions have ended.
pub(super) async fn tunnel(
    opened: Opened,
    mut from_client: RecvStream,
    mut to_client: SendStream<Bytes>,
) -> Result<()> {
    let Opened { socket, mut relay } = opened;
    let (mut from_backend, mut to_backend) = socket.into_split();
    let moved = AtomicU64::new(0);
    let inward = async {
        while let Some(bytes) = from_client.data().await {
            let bytes = bytes.map_err(io::Error::other)?;
            to_backend.write_all(&bytes).await?;
            let window = from_client.flow_control();
            window
                .release_capacity(bytes.len())
                .map_err(io::Error::other)?;
        }
        to_backend.shutdown().await
    };
    let outward = async {
        loop {
            let mut bytes = BytesMut::with_capacity(COPIED_AT_ONCE);
            if from_backend.read_buf(&mut bytes).await? == 0 {
                return to_client
                    .send_data(Bytes::new(), true)
                    .map_err(io::Error::other);
            }
            send(&mut to_client, bytes.freeze(), &moved)
                .await
                .map_err(io::Error::other)?;
        }
    };
    let ended: Result<(), RelayError> =
        both_ways(relay.ended(), inward, outward, &moved, STALLED).await;
    if ended.is_err() {
        to_client.send_reset(Reason::CONNECT_ERROR);
    }
    Ok(ended?)
}

/// Sends bytes as the client takes them, and adds their number to `moved`.
async fn send(
    to_client: &mut SendStream<Bytes>,
    mut bytes: Bytes,
    moved: &AtomicU64,
) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        to_client.reserve_capacity(bytes.len());
        let room = poll_fn(|context| to_client.poll_capacity(context)).await;
        let room = room.unwrap_or_else(|| Err(Reason::CANCEL.into()))?;
        let piece = bytes.split_to(room.min(bytes.len()));
        moved.fetch_add(piece.len() as u64, Ordering::Relaxed);
        to_client.send_data(piece, false)?;
    }
    Ok(())
}

/// Sends a body. If it is cut, so is the stream.
async fn send_body(mut body: Body, mut to_client: SendStream<Bytes>) -> Result<()> {
    let moved = AtomicU64::new(0);
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            reset = poll_fn(|context| to_client.poll_reset(context)) => return reset.map(drop).context("wait"),
        };
        match frame.transpose() {
            Ok(Some(frame)) => match frame.into_data() {
                Ok(bytes) => send(&mut to_client, bytes, &moved).await?,
                // Nothing that is passed on has trailers that matter to an HTTP/1.1 client either.
                Err(_trailers) => {}
            },
            Ok(None) => return Ok(to_client.send_data(Bytes::new(), true)?),
            Err(error) => {
                to_client.send_reset(Reason::INTERNAL_ERROR);
                return Err(error).context("the answer was cut");
            }
        }
    }
}

/// The body of a request. The client may send more as it is taken.
struct RequestBody(RecvStream);

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let bytes = match ready!(self.0.poll_data(context)) {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => return Poll::Ready(None),
        };
        let released = self.0.flow_control().release_capacity(bytes.len());
        Poll::Ready(Some(released.map(|()| Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
