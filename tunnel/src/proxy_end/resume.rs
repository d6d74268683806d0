//! Moves a stream from the tunnel that it was opened in to another one of the same agent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{Refusal, Tunnel};
use crate::error::TunnelError;
use crate::frame;
use crate::grpc;
use crate::load::StreamPermit;
use crate::proto::tunnel::{
    DialProxyRequest, DialRequest, DialResponse, Frame, Resume, frame::Kind,
};
use crate::relay::{Incoming, Relocation, SendHalf};
use crate::role::Role;

/// A stream that can move. Clones are the same one.
#[derive(Clone, Debug)]
pub struct MovableStream {
    /// Random. The agent knows the stream by it, in whichever tunnel, and by whichever proxy.
    key: [u8; 16],
    relocation: Arc<Relocation>,
}

/// Why a stream did not move. It goes on where it is.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// It moves already, or one of its directions has ended.
    #[error("the stream moves already, or is about to end")]
    Unmovable,
    /// The other tunnel has as many streams as it may.
    #[error("the other tunnel has as many streams as it may")]
    TooManyStreams,
    /// The other tunnel failed, or its agent refused.
    #[error("the other tunnel")]
    Tunnel(#[source] TunnelError),
}

impl From<h2::Error> for MoveError {
    fn from(error: h2::Error) -> Self {
        Self::Tunnel(error.into())
    }
}

impl MovableStream {
    pub(super) fn new() -> Self {
        Self {
            key: rand::random(),
            relocation: Arc::new(Relocation::new(Role::Proxy)),
        }
    }

    pub(super) fn key(&self) -> Bytes {
        Bytes::copy_from_slice(&self.key)
    }

    pub(super) fn relocation(&self) -> &Arc<Relocation> {
        &self.relocation
    }

    /// How often it has moved.
    #[must_use]
    pub fn moves(&self) -> u32 {
        self.relocation.moves()
    }
}

impl Tunnel {
    /// Whether the agent moves streams to other tunnels, and takes [`Self::dial`].
    #[must_use]
    pub fn moves_streams(&self) -> bool {
        self.load.moves.load(Ordering::Relaxed)
    }

    /// Moves a stream of another tunnel into this one, which ends at the same agent: returns once the agent agrees, when both
    /// directions begin to move. It takes as long as the agent, this tunnel and the stream live.
    ///
    /// # Errors
    /// The stream stays where it is.
    pub async fn resume(&self, stream: &MovableStream) -> Result<(), MoveError> {
        let relocation = &stream.relocation;
        relocation.claim().map_err(|_| MoveError::Unmovable)?;
        let abandoned = scopeguard::guard((), |()| relocation.abandon());
        let permit = StreamPermit::acquire(&self.load, self.max_streams);
        let permit = permit.ok_or(MoveError::TooManyStreams)?;
        let resume = frame::encode(&Frame {
            kind: Some(Kind::Resume(Resume { key: stream.key() })),
        });
        let (response, send) = self.call(grpc::RESUME, resume, false).await?;
        let response = tokio::select! {
            response = response => response?,
            () = relocation.closed() => return Err(MoveError::Unmovable),
        };
        if let Some(error) = grpc::error_of(&response) {
            return Err(MoveError::Tunnel(TunnelError::Call(error)));
        }
        scopeguard::ScopeGuard::into_inner(abandoned);
        let send = SendHalf {
            stream: send,
            budget: self.budget.clone(),
        };
        let incoming = Incoming::new(response.into_body(), self.budget.share());
        relocation.offer(send, incoming.with_permit(permit));
        Ok(())
    }

    /// Asks the agent for `count` further tunnels to this proxy, at once.
    ///
    /// # Errors
    /// The tunnel fails, or the agent answers late or with an error.
    pub async fn dial(&self, count: u32) -> Result<(), TunnelError> {
        let request = frame::encode(&DialRequest { count });
        let answered: Result<DialResponse, Refusal> = self.ask(grpc::DIAL, request).await;
        answered?;
        Ok(())
    }

    /// Asks the agent, or by way of a proxy that of the named node, for tunnels to another proxy.
    ///
    /// # Errors
    /// The tunnel fails, or the far end answers late, with an error, or is too old.
    pub async fn dial_proxy(&self, request: &DialProxyRequest) -> Result<(), TunnelError> {
        let request = frame::encode(request);
        let answered: Result<DialResponse, Refusal> = self.ask(grpc::DIAL_PROXY, request).await;
        answered?;
        Ok(())
    }
}
