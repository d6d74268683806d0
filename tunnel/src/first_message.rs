//! The first message of a call's body, in either direction. It is small and read whole, unlike the
//! data after it.

use bytes::{Bytes, BytesMut};
use h2::RecvStream;

use crate::frame::{self, FrameError};

/// Why the first message could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FirstMessageError {
    /// The stream or its connection ended.
    #[error("HTTP/2")]
    Http2(#[from] h2::Error),
    /// The message is invalid.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads the first message of a body, of at most `max` bytes. Returns it and the bytes after it,
/// whose window is not released yet.
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
