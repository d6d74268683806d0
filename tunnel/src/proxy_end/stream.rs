//! A stream of a tunnel, from the request for its backend to the end of its relay.

use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use scopeguard::ScopeGuard;
use tokio::time::timeout;

use super::resume::MovableStream;
use super::{FarEnd, Tunnel, printable_char};
use crate::budget::Budget;
use crate::budget::outbox::Payload;
use crate::dial_failure::DialFailure;
use crate::first_message::FirstMessageError;
use crate::frame::{self, FrameError};
use crate::grpc;
use crate::load::StreamPermit;
use crate::proto::tunnel::{DialCode, Frame, Open, Opened, frame::Kind};
use crate::relay::{self, Incoming, RelayError};
use crate::role::Role;
use crate::socket::Socket;
use crate::transferred::Transferred;

/// How long an agent may take to dial a backend.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the proxy waits for the agent's answer: its dial and two round trips of a slow link.
const OPEN_TIMEOUT: Duration = Duration::from_secs(8);

/// Longest message of an agent in logs and answers, in characters.
const MESSAGE_MAX: usize = 512;

/// Why a stream was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The tunnel has as many streams as it may.
    #[error("{0} streams are open in the tunnel already")]
    TooManyStreams(u32),
    /// The tunnel failed before the agent answered. Another tunnel of the node can be tried, unless
    /// the client's bytes went [`EarlyClient`].
    #[error("the tunnel was lost while opening")]
    Tunnel(#[source] h2::Error),
    /// The agent did not report the result of its dial in time.
    #[error("the agent did not answer within {} s", OPEN_TIMEOUT.as_secs())]
    TimedOut,
    /// The agent's answer is invalid.
    #[error("the agent answered {0}")]
    Answer(String),
    /// The agent could not reach the backend, or must not dial it.
    #[error("{}", .0.message)]
    Refused(DialFailure),
    /// The client failed while its first bytes were read.
    #[error("the client's connection failed")]
    Client(#[source] io::Error),
}

impl From<FrameError> for OpenError {
    fn from(error: FrameError) -> Self {
        Self::Answer(error.to_string())
    }
}

impl From<FirstMessageError> for OpenError {
    fn from(error: FirstMessageError) -> Self {
        match error {
            FirstMessageError::Http2(error) => Self::Tunnel(error),
            FirstMessageError::Frame(error) => error.into(),
        }
    }
}

/// A client whose first bytes are sent before its backend has answered, which saves a round trip.
/// After that ([`Self::has_gone`]) the request must not be repeated in another tunnel: the backend
/// may have received them.
#[derive(Clone, Copy, Debug)]
pub struct EarlyClient<'a> {
    /// The client.
    pub client: &'a Socket,
    /// Its bytes so far.
    pub transferred: &'a Transferred,
}

impl EarlyClient<'_> {
    /// Whether bytes have been sent.
    #[must_use]
    pub fn has_gone(self) -> bool {
        self.transferred.into_tunnel.bytes() > 0
    }

    async fn send(self, stream: &mut SendStream<Payload>, budget: &Budget) -> io::Result<()> {
        relay::send_first(self.client, stream, budget, &self.transferred.into_tunnel).await
    }
}

/// A stream that was requested and not answered yet.
#[derive(Debug)]
pub(crate) struct RequestedStream {
    pub(crate) response: ResponseFuture,
    pub(crate) send: SendStream<Payload>,
    /// The budget of the stream's tunnel.
    pub(crate) budget: Budget,
    pub(crate) permit: StreamPermit,
}

/// A stream whose backend has answered. Dropping it resets it.
#[derive(Debug)]
pub struct Stream {
    send: SendStream<Payload>,
    incoming: Incoming,
    /// What the agent tried before, for people. Boxed: few streams have it.
    tried: Option<Box<str>>,
    /// `None`: it stays in its tunnel.
    movable: Option<MovableStream>,
}

impl Tunnel {
    /// Opens a stream: returns once the agent has connected to the backend. Dropping the future
    /// cancels the agent's dial. The first bytes of an `early` client are sent meanwhile.
    ///
    /// # Errors
    /// After [`OpenError::Tunnel`] another tunnel of the node can be tried, unless bytes were sent
    /// early. Other errors are final.
    pub fn open(
        &self,
        mut open: Open,
        early: Option<EarlyClient<'_>>,
    ) -> impl Future<Output = Result<Stream, OpenError>> {
        let mut movable = None;
        // Whether the agent behind another proxy moves streams shows when one is to move.
        if self.moves_streams() || self.far_end == FarEnd::Proxy {
            let stream = MovableStream::new();
            open.key = stream.key();
            movable = Some(stream);
        }
        // The future need not store the request.
        let first = first_frame(open);
        async move {
            let opened = timeout(OPEN_TIMEOUT, self.open_in_time(first, early));
            let mut stream = opened.await.map_err(|_| OpenError::TimedOut)??;
            if let Some(movable) = &movable {
                stream.incoming.set_relocation(movable.relocation().clone());
            }
            stream.movable = movable;
            Ok(stream)
        }
    }

    /// Requests a stream with its first frame, of [`first_frame`]. The answer is still to come.
    pub(crate) async fn request_stream(&self, first: Bytes) -> Result<RequestedStream, OpenError> {
        let permit = StreamPermit::acquire(&self.load, self.max_streams)
            .ok_or(OpenError::TooManyStreams(self.max_streams))?;
        let (response, send) = self
            .call(grpc::OPEN, first, false)
            .await
            .map_err(OpenError::Tunnel)?;
        Ok(RequestedStream {
            response,
            send,
            budget: self.budget.clone(),
            permit,
        })
    }

    async fn open_in_time(
        &self,
        first: Bytes,
        early: Option<EarlyClient<'_>>,
    ) -> Result<Stream, OpenError> {
        let RequestedStream {
            response,
            send,
            budget,
            permit,
        } = self.request_stream(first).await?;
        // A dropped stream alone would keep its unsent data until the connection takes bytes again.
        let mut send = scopeguard::guard(send, |mut send| send.send_reset(Reason::CANCEL));
        let (before, after) = match self.far_end {
            FarEnd::Agent => (early, None),
            FarEnd::Proxy => (None, early),
        };
        let response = {
            let response = pin!(async { response.await.map_err(OpenError::Tunnel) });
            sending(before, &mut send, &budget, response).await?
        };
        if let Some(error) = grpc::error_of(&response) {
            return Err(OpenError::Answer(error));
        }
        let incoming = Incoming::new(response.into_body(), budget.share());
        let mut incoming = incoming.with_permit(permit);
        let tried = {
            let message = pin!(async { Ok(incoming.first_message(frame::MESSAGE_MAX).await?) });
            parse_opened(sending(after, &mut send, &budget, message).await?)?
        };
        Ok(Stream {
            send: ScopeGuard::into_inner(send),
            incoming,
            tried,
            movable: None,
        })
    }
}

/// The frame with which a stream begins.
pub(crate) fn first_frame(open: Open) -> Bytes {
    frame::encode(&Frame {
        kind: Some(Kind::Open(open)),
    })
}

/// Waits for an answer, and sends an `early` client's first bytes meanwhile.
async fn sending<T>(
    early: Option<EarlyClient<'_>>,
    send: &mut SendStream<Payload>,
    budget: &Budget,
    mut answer: Pin<&mut impl Future<Output = Result<T, OpenError>>>,
) -> Result<T, OpenError> {
    if let Some(early) = early {
        tokio::select! {
            biased;
            answer = answer.as_mut() => return answer,
            sent = early.send(send, budget) => sent.map_err(OpenError::Client)?,
        }
    }
    answer.await
}

/// Reads an agent's `opened`: whether its dial reached the backend, and what it tried before.
fn parse_opened(message: Bytes) -> Result<Option<Box<str>>, OpenError> {
    let Kind::Opened(Opened { code, message }) = frame::first_kind(message)? else {
        return Err(OpenError::Answer("a frame other than `opened`".to_owned()));
    };
    let code = DialCode::try_from(code).unwrap_or(DialCode::Failed);
    let message = message.chars().take(MESSAGE_MAX).map(printable_char);
    let message: String = message.collect();
    if code != DialCode::Ok {
        return Err(OpenError::Refused(DialFailure { code, message }));
    }
    Ok((!message.is_empty()).then(|| message.into()))
}

impl Stream {
    /// What the agent tried before it reached the backend, for people.
    #[must_use]
    pub fn tried(&self) -> Option<&str> {
        self.tried.as_deref()
    }

    /// What moves it to other tunnels of its agent, while it is relayed. `None`: the agent does not
    /// move streams.
    #[must_use]
    pub fn movable(&self) -> Option<MovableStream> {
        self.movable.clone()
    }

    /// Sends what a client has sent already. A failure is returned by [`Self::relay`].
    pub fn send_pipelined(&mut self, pipelined: &[u8], transferred: &Transferred) {
        let budget = self.incoming.budget();
        relay::send_now(pipelined, &mut self.send, &budget, &transferred.into_tunnel);
    }

    /// Relays between `client` and the backend until both directions have ended or one has failed.
    /// After a failure dropping `client` sends RST. To be called once.
    ///
    /// # Errors
    /// The first failure of either side or of the tunnel.
    pub fn relay(
        &mut self,
        client: &Socket,
        transferred: &Transferred,
    ) -> impl Future<Output = Result<(), RelayError>> {
        relay::relay(
            client,
            &mut self.send,
            &mut self.incoming,
            Role::Proxy,
            transferred,
        )
    }
}
