//! One call of the proxy: `Open` relays a stream, `Describe` answers at once.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use prost::Message;
use tokio::time::timeout;

use super::state::Slot;
use super::{AgentTunnel, AgentTunnelState, Backends, LiveStream, StreamError};
use crate::dial_failure::DialFailure;
use crate::error::TunnelError;
use crate::frame;
use crate::grpc;
use crate::outbox::Payload;
use crate::proto::tunnel::{DescribeRequest, DialCode, Frame, Open, Opened, frame::Kind};
use crate::relay::{self, Incoming, RelayError, Role};
use crate::socket::Socket;

/// A stream whose first message does not come is reset.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// A `Describe` request holds a version, `Open` an address and what the client dialled.
const FIRST_MAX: usize = 4096;

/// What the proxy asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    Open,
    Describe,
    Unknown,
}

impl Method {
    pub(super) fn of(request: &Request<RecvStream>) -> Self {
        match request.uri().path() {
            grpc::OPEN => Self::Open,
            grpc::DESCRIBE => Self::Describe,
            _ => Self::Unknown,
        }
    }
}

/// One call of the proxy. Its functions take it by reference: a task keeps what is passed on by
/// value once for each of them.
pub(super) struct Call<B> {
    pub(super) tunnel: Arc<AgentTunnel>,
    pub(super) state: AgentTunnelState,
    pub(super) backends: Arc<B>,
    pub(super) incoming: Incoming,
    pub(super) respond: SendResponse<Payload>,
}

impl<B: Backends> Call<B> {
    pub(super) async fn serve(&mut self, method: Method) {
        let served = match method {
            Method::Open => self.open().await,
            Method::Describe => self.describe().await,
            Method::Unknown => reject(&mut self.respond, grpc::UNIMPLEMENTED, "no such method"),
        };
        if let Err(error) = served {
            tracing::debug!(?method, %error, "call failed");
        }
    }

    /// What the proxy says first; `None` if it is no message.
    async fn first_message(&mut self) -> Result<Option<Bytes>, TunnelError> {
        let first = timeout(OPEN_TIMEOUT, self.incoming.first_message(FIRST_MAX)).await;
        Ok(first.map_err(|_| TunnelError::HandshakeTimedOut)?.ok())
    }

    async fn describe(&mut self) -> Result<(), TunnelError> {
        let request = self.first_message().await?;
        let Some(request) = request.and_then(|message| DescribeRequest::decode(message).ok())
        else {
            return reject(
                &mut self.respond,
                grpc::INVALID_ARGUMENT,
                "no DescribeRequest",
            );
        };
        tracing::debug!(proxy.version = request.version, "described");
        let mut send = self
            .respond
            .send_response(grpc::response(), false)
            .map_err(TunnelError::Http2)?;
        send.send_data(frame::encode(&self.tunnel.describe).into(), false)
            .map_err(TunnelError::Http2)?;
        send.send_trailers(grpc::trailers(grpc::OK))
            .map_err(TunnelError::Http2)
    }

    async fn open(&mut self) -> Result<(), TunnelError> {
        let Some(open) = self.first_message().await?.and_then(as_open) else {
            return refuse(
                &mut self.respond,
                &invalid("the first message is no `open`"),
            );
        };
        let Some(slot) = Slot::take(&self.state, self.tunnel.max_streams, open) else {
            refuse(
                &mut self.respond,
                &too_many_streams(self.tunnel.max_streams),
            )?;
            discard(&mut self.incoming).await;
            return Ok(());
        };
        let result = self.dial_and_relay(&slot.stream).await;
        let was_refused = matches!(result, Err(StreamError::Dial(_)));
        self.backends
            .stream_ended(&slot.stream.open, &slot.stream.end(result));
        drop(slot);
        if was_refused {
            discard(&mut self.incoming).await;
        }
        Ok(())
    }

    async fn dial_and_relay(&mut self, stream: &LiveStream) -> Result<(), StreamError> {
        // Boxed: it takes as much room as a relay, and what it returns would stay beside that.
        let socket = Box::pin(self.dial(&stream.open)).await?;
        let lost = |error| StreamError::Relay(RelayError::from(error));
        let mut send = self
            .respond
            .send_response(grpc::response(), false)
            .map_err(lost)?;
        let opened = Opened {
            code: DialCode::Ok.into(),
            message: String::new(),
        };
        send.send_data(
            frame::encode(&Frame {
                kind: Some(Kind::Opened(opened)),
            })
            .into(),
            false,
        )
        .map_err(lost)?;
        let relayed = relay::relay(
            &socket,
            &mut send,
            &mut self.incoming,
            Role::Server,
            &stream.transferred,
        );
        relayed.await.map_err(StreamError::Relay)
    }

    /// The backend, unless the client leaves first; a refusal is answered.
    async fn dial(&mut self, open: &Open) -> Result<Socket, StreamError> {
        let dialled = tokio::select! {
            dialled = self.backends.dial(open) => dialled,
            left = std::future::poll_fn(|context| self.respond.poll_reset(context)) => {
                return Err(StreamError::Relay(left.map_or_else(RelayError::from, RelayError::Reset)));
            }
            ended = self.incoming.gather() => return Err(StreamError::Relay(ended)),
        };
        dialled.map(Socket::from).map_err(|failure| {
            // It is refused all the same where the proxy cannot hear of it any more.
            refuse(&mut self.respond, &failure).ok();
            StreamError::Dial(failure)
        })
    }
}

fn as_open(message: Bytes) -> Option<Open> {
    match frame::first_kind(message) {
        Ok(Kind::Open(open)) => Some(open),
        Ok(_) | Err(_) => None,
    }
}

fn invalid(message: &str) -> DialFailure {
    DialFailure {
        code: DialCode::Invalid,
        message: message.to_owned(),
    }
}

fn too_many_streams(limit: u32) -> DialFailure {
    DialFailure {
        code: DialCode::TooManyStreams,
        message: format!("the agent relays {limit} streams in this tunnel already"),
    }
}

/// Answers an `Open` with the reason why there is no connection.
fn refuse(respond: &mut SendResponse<Payload>, failure: &DialFailure) -> Result<(), TunnelError> {
    let opened = Opened {
        code: failure.code.into(),
        message: failure.message.clone(),
    };
    let mut send = respond
        .send_response(grpc::response(), false)
        .map_err(TunnelError::Http2)?;
    send.send_data(
        frame::encode(&Frame {
            kind: Some(Kind::Opened(opened)),
        })
        .into(),
        false,
    )
    .map_err(TunnelError::Http2)?;
    send.send_trailers(grpc::trailers(grpc::OK))
        .map_err(TunnelError::Http2)
}

/// Reads what comes behind a refusal: its client may speak until the proxy has heard of it. Behind
/// a stream that was dropped that would be an error of the proxy's, of which a tunnel has so many
/// in its life.
///
/// Boxed: few streams get here, and all would be that much larger.
fn discard(incoming: &mut Incoming) -> Pin<Box<impl Future<Output = ()>>> {
    Box::pin(async {
        timeout(OPEN_TIMEOUT, incoming.discard())
            .await
            .unwrap_or_default()
    })
}

fn reject(
    respond: &mut SendResponse<Payload>,
    status: u8,
    message: &'static str,
) -> Result<(), TunnelError> {
    respond
        .send_response(grpc::error_response(status, message), true)
        .map(|_| ())
        .map_err(TunnelError::Http2)
}
