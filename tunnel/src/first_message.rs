//! The first message of a call's body, either way: small and needed whole, unlike the data behind
//! it.

use bytes::{Bytes, BytesMut};
use h2::RecvStream;

use crate::frame::{self, FrameError};

/// Why there is no first message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FirstMessageError {
    /// The stream or its connection ended.
    #[error("HTTP/2")]
    Http2(#[from] h2::Error),
    /// What came is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// The first message of a body, whole and of at most `max` bytes, and the bytes behind it, whose
/// part of the window is not given back yet.
pub(crate) async fn first_message(
    body: &mut RecvStream,
    max: usize,
) -> Result<(Bytes, Bytes), FirstMessageError> {
    let mut buffer = BytesMut::new();
    let mut taken = 0;
    loop {
        if let Some(message) = frame::split_message(&mut buffer, max)? {
            body.flow_control().release_capacity(taken - buffer.len())?;
            return Ok((message, buffer.freeze()));
        }
        let chunk = body.data().await.ok_or(FrameError::Truncated)??;
        taken += chunk.len();
        buffer.extend_from_slice(&chunk);
    }
}
