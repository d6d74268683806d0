//! Entry points for the fuzz targets (`fuzz/`): the decoders of what the other end of a tunnel
//! sends, and their encoders.

use bytes::{Bytes, BytesMut};

use crate::frame::{self, Decoder, FrameError, HEADER_MAX};
use crate::proto::tunnel::frame::Kind;

/// The longest first message that is read, in bytes.
pub const FIRST_MESSAGE_MAX: usize = frame::MESSAGE_MAX;

/// Decodes `wire`, which arrives in pieces of `piece` bytes. Returns the payload up to the end or
/// the first error.
///
/// # Panics
/// If the decoder leaves bytes of a piece.
pub fn decode(wire: &[u8], piece: usize) -> (Vec<u8>, Result<(), FrameError>) {
    let mut decoder = Decoder::default();
    let mut payload = Vec::new();
    for piece in wire.chunks(piece) {
        let mut input = Bytes::copy_from_slice(piece);
        loop {
            match decoder.data(&mut input) {
                Ok(Some(data)) => payload.extend_from_slice(&data),
                Ok(None) => break,
                Err(error) => return (payload, Err(error)),
            }
        }
        assert!(input.is_empty(), "all input is used");
    }
    let ended = if decoder.between_messages() {
        Ok(())
    } else {
        Err(FrameError::Truncated)
    };
    (payload, ended)
}

/// The data frame that carries `payload`.
#[must_use]
pub fn encode(payload: &[u8]) -> Bytes {
    let mut buffer = BytesMut::zeroed(HEADER_MAX);
    buffer.extend_from_slice(payload);
    frame::seal(buffer)
}

/// The first message of `wire` and the bytes after it; `None`: more bytes are needed.
///
/// # Errors
/// The message is compressed or too long.
pub fn split_message(wire: &[u8]) -> Result<Option<(Bytes, Bytes)>, FrameError> {
    let mut buffer = BytesMut::from(wire);
    Ok(frame::split_message(&mut buffer, FIRST_MESSAGE_MAX)?
        .map(|message| (message, buffer.freeze())))
}

/// The kind of a first `Frame`.
///
/// # Errors
/// The message is not a `Frame`.
pub fn first_kind(message: Bytes) -> Result<Kind, FrameError> {
    frame::first_kind(message)
}
