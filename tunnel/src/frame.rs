//! gRPC's wire format for `Frame`, written and read without copying its payload.
//!
//! A message is a prefix (a flag for compression, never set here, and a big-endian length, 5
//! bytes), then protobuf. `Frame.data` is field 3, so a data frame is `prefix, 0x1a, varint length,
//! payload`. The sender reads from its socket into a buffer with space for that header in front;
//! the receiver slices the payload out of HTTP/2's buffers.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::proto::tunnel::{Frame, frame::Kind};

const PREFIX: usize = 5;
/// Field 3, length-delimited: `Frame.data`.
const DATA_TAG: u8 = 0x1a;
const DATA_FIELD: u64 = 3;
/// `Frame.moved`.
const MOVED_FIELD: u64 = 4;
/// The kind of field that both have.
const LENGTH_DELIMITED: u64 = 2;
/// The highest number that protobuf gives a field.
const LAST_FIELD: u64 = (1 << 29) - 1;
/// Longest header of a data frame: prefix, tag, and a length below 2 MiB as a varint.
pub(crate) const HEADER_MAX: usize = PREFIX + 1 + 3;
/// Longest message other than data, which is an agent's description of itself.
pub(crate) const MESSAGE_MAX: usize = 128 * 1024;

/// The peer sent an invalid gRPC message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// The compression flag is set.
    #[error("a compressed message, which was never offered")]
    Compressed,
    /// A first message longer than allowed.
    #[error("a message of {0} bytes, which is too long")]
    TooLong(usize),
    /// Protobuf that does not parse, or a frame of another kind.
    #[error("a message that is not a data frame")]
    NotData,
    /// A first message that does not parse.
    #[error("an invalid first message")]
    NotFirst,
    /// The stream ended inside a message.
    #[error("the stream ended inside a message")]
    Truncated,
}

/// A gRPC message with its prefix, for small messages.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(PREFIX + length);
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(length).expect("small messages are far below 4 GiB"));
    message.encode(&mut buffer).expect("the buffer grows");
    buffer.freeze()
}

/// Makes a data frame of `buffer` without moving its payload, which starts at [`HEADER_MAX`].
pub(crate) fn seal(mut buffer: BytesMut) -> Bytes {
    let payload = buffer.len() - HEADER_MAX;
    let mut header = [0; HEADER_MAX];
    let header = data_header(payload, &mut header);
    let start = HEADER_MAX - header.len();
    buffer[start..HEADER_MAX].copy_from_slice(header);
    buffer.advance(start);
    buffer.freeze()
}

fn data_header(payload: usize, buffer: &mut [u8; HEADER_MAX]) -> &[u8] {
    let varint = prost::length_delimiter_len(payload);
    let message = u32::try_from(1 + varint + payload).expect("a frame is at most some 64 KiB");
    let mut rest = &mut buffer[..];
    rest.put_u8(0);
    rest.put_u32(message);
    rest.put_u8(DATA_TAG);
    prost::encoding::encode_varint(payload as u64, &mut rest);
    &buffer[..PREFIX + 1 + varint]
}

/// Decodes gRPC messages, whatever the pieces in which they arrive.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    state: DecoderState,
    /// Bytes of the current message that are still to come.
    message: usize,
    /// An incomplete prefix, tag or varint.
    partial: Partial,
    /// Whether the direction goes on elsewhere. Nothing follows that message.
    has_moved: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum DecoderState {
    #[default]
    Prefix,
    Tag,
    /// The length of a length-delimited field: `true` if the field is data.
    Length(bool),
    Data(usize),
    Skip(usize),
    SkipVarint,
}

impl DecoderState {
    /// Bytes that the message must still have. A message that ends earlier is truncated and must
    /// not pass as whole.
    fn least(&self) -> usize {
        match self {
            Self::Prefix | Self::Tag => 0,
            Self::Length(_) | Self::SkipVarint => 1,
            Self::Data(left) | Self::Skip(left) => *left,
        }
    }
}

#[derive(Debug, Default)]
struct Partial {
    bytes: [u8; 10],
    len: usize,
}

impl Partial {
    /// Moves bytes from `input` until there are `want`, then returns them and starts again.
    fn fill(&mut self, input: &mut Bytes, want: usize) -> Option<[u8; 10]> {
        let take = (want - self.len).min(input.len());
        input.copy_to_slice(&mut self.bytes[self.len..self.len + take]);
        self.len += take;
        if self.len < want {
            return None;
        }
        self.len = 0;
        Some(self.bytes)
    }

    /// Moves a varint from `input` and returns its value and length; `None`: it is incomplete.
    fn varint(&mut self, input: &mut Bytes) -> Result<Option<(u64, usize)>, FrameError> {
        while input.has_remaining() {
            if self.len == self.bytes.len() {
                return Err(FrameError::NotData);
            }
            let byte = input.get_u8();
            self.bytes[self.len] = byte;
            self.len += 1;
            if byte & 0x80 == 0 {
                let length = std::mem::take(&mut self.len);
                let value = prost::encoding::decode_varint(&mut &self.bytes[..length]);
                return value
                    .map(|value| Some((value, length)))
                    .map_err(|_| FrameError::NotData);
            }
        }
        Ok(None)
    }
}

impl Decoder {
    /// Takes the next payload bytes from `input`; `None`: all of `input` has been used.
    pub(crate) fn data(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let DecoderState::Data(left) = self.state {
                let payload = input.split_to(left.min(input.len()));
                self.used(payload.len())?;
                self.state = if payload.len() == left {
                    DecoderState::Tag
                } else {
                    DecoderState::Data(left - payload.len())
                };
                if !payload.is_empty() {
                    return Ok(Some(payload));
                }
            }
            if input.is_empty() || !self.step(input)? {
                return Ok(None);
            }
        }
    }

    /// Whether the last message said that the direction goes on in another tunnel.
    pub(crate) fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Whether a stream may end here.
    pub(crate) fn between_messages(&self) -> bool {
        self.message == 0 && self.partial.len == 0
    }

    /// Moves on by one state; `false`: more input is needed.
    fn step(&mut self, input: &mut Bytes) -> Result<bool, FrameError> {
        match self.state {
            DecoderState::Prefix if self.has_moved => return Err(FrameError::NotData),
            DecoderState::Prefix => {
                let Some(prefix) = self.partial.fill(input, PREFIX) else {
                    return Ok(false);
                };
                self.message = message_length(&prefix)?;
                self.state = DecoderState::Tag;
            }
            DecoderState::Tag if self.message == 0 => self.state = DecoderState::Prefix,
            DecoderState::Tag => {
                let Some(tag) = self.varint(input)? else {
                    return Ok(false);
                };
                self.state = field(tag)?;
                self.has_moved |= tag == MOVED_FIELD << 3 | LENGTH_DELIMITED;
                if self.message < self.state.least() {
                    return Err(FrameError::NotData);
                }
            }
            DecoderState::Length(is_data) => {
                let Some(length) = self.varint(input)? else {
                    return Ok(false);
                };
                self.state = self.payload(is_data, length)?;
            }
            DecoderState::SkipVarint => {
                if self.varint(input)?.is_none() {
                    return Ok(false);
                }
                self.state = DecoderState::Tag;
            }
            DecoderState::Skip(left) => {
                let skipped = left.min(input.len());
                input.advance(skipped);
                self.used(skipped)?;
                self.state = if skipped == left {
                    DecoderState::Tag
                } else {
                    DecoderState::Skip(left - skipped)
                };
            }
            DecoderState::Data(_) => {}
        }
        Ok(true)
    }

    /// A varint of the current message; `None`: more input is needed.
    fn varint(&mut self, input: &mut Bytes) -> Result<Option<u64>, FrameError> {
        let Some((value, length)) = self.partial.varint(input)? else {
            return Ok(None);
        };
        self.used(length)?;
        Ok(Some(value))
    }

    /// The state after the length of a length-delimited field.
    fn payload(&self, is_data: bool, length: u64) -> Result<DecoderState, FrameError> {
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= self.message)
            .ok_or(FrameError::NotData)?;
        Ok(if is_data {
            DecoderState::Data(length)
        } else {
            DecoderState::Skip(length)
        })
    }

    fn used(&mut self, bytes: usize) -> Result<(), FrameError> {
        self.message = self.message.checked_sub(bytes).ok_or(FrameError::NotData)?;
        Ok(())
    }
}

fn message_length(prefix: &[u8]) -> Result<usize, FrameError> {
    if prefix[0] != 0 {
        return Err(FrameError::Compressed);
    }
    Ok(u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize)
}

/// The state after a field's tag. Unknown fields are skipped. `open` and `opened` are invalid here:
/// they are first messages.
fn field(tag: u64) -> Result<DecoderState, FrameError> {
    match (tag >> 3, tag & 7) {
        (DATA_FIELD, 2) => Ok(DecoderState::Length(true)),
        (0..=DATA_FIELD, _) => Err(FrameError::NotData),
        (number, _) if number > LAST_FIELD => Err(FrameError::NotData),
        (_, 0) => Ok(DecoderState::SkipVarint),
        (_, 1) => Ok(DecoderState::Skip(8)),
        (_, 2) => Ok(DecoderState::Length(false)),
        (_, 5) => Ok(DecoderState::Skip(4)),
        _ => Err(FrameError::NotData),
    }
}

/// Splits one whole message of at most `max` bytes off `buffer`; `None`: more bytes are needed.
pub(crate) fn split_message(
    buffer: &mut BytesMut,
    max: usize,
) -> Result<Option<Bytes>, FrameError> {
    if buffer.len() < PREFIX {
        return Ok(None);
    }
    let length = message_length(&buffer[..PREFIX])?;
    if length > max {
        return Err(FrameError::TooLong(length));
    }
    if buffer.len() < PREFIX + length {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// The kind of a first `Frame`.
pub(crate) fn first_kind(message: Bytes) -> Result<Kind, FrameError> {
    Frame::decode(message)
        .ok()
        .and_then(|frame| frame.kind)
        .ok_or(FrameError::NotFirst)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &[u8]) -> Bytes {
        let mut buffer = BytesMut::zeroed(HEADER_MAX);
        buffer.extend_from_slice(payload);
        seal(buffer)
    }

    fn decode(wire: &[u8], piece: usize) -> Result<Vec<u8>, FrameError> {
        let mut decoder = Decoder::default();
        let mut decoded = Vec::new();
        for piece in wire.chunks(piece) {
            let mut input = Bytes::copy_from_slice(piece);
            while let Some(bytes) = decoder.data(&mut input)? {
                decoded.extend_from_slice(&bytes);
            }
            assert!(input.is_empty(), "all input is used");
        }
        if decoder.between_messages() {
            Ok(decoded)
        } else {
            Err(FrameError::Truncated)
        }
    }

    #[test]
    fn a_sealed_frame_is_what_prost_would_write() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 65_000] {
            let payload = vec![7; length];
            let message = Frame {
                kind: Some(Kind::Data(payload.clone().into())),
            };
            assert_eq!(frame(&payload), encode(&message), "{length} bytes");
        }
    }

    #[test]
    fn frames_decode_however_they_are_cut() {
        let payloads: [&[u8]; 4] = [b"first", b"", &[9; 300], b"last"];
        let wire: Vec<u8> = payloads.iter().flat_map(|payload| frame(payload)).collect();
        for piece in 1..wire.len() {
            assert_eq!(
                decode(&wire, piece).unwrap(),
                payloads.concat(),
                "pieces of {piece}"
            );
        }
    }

    #[test]
    fn unknown_fields_are_skipped() {
        // Field 4 varint, field 5 bytes, field 6 fixed32, field 7 fixed64, around `data`.
        let message = [
            &[0x20, 0xff, 0x01, 0x2a, 2, 1, 2][..],
            &[0x1a, 3],
            b"abc",
            &[0x35, 0, 0, 0, 0, 0x39],
            &[0; 8],
        ]
        .concat();
        let mut wire = vec![0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
        wire.extend(message);
        for piece in 1..wire.len() {
            assert_eq!(decode(&wire, piece).unwrap(), b"abc");
        }
    }

    #[test]
    fn rubbish_is_an_error_not_data() {
        let open = Frame {
            kind: Some(Kind::Open(crate::proto::tunnel::Open::default())),
        };
        assert_eq!(
            decode(&encode(&open), 99),
            Err(FrameError::NotData),
            "open is a first message"
        );
        assert_eq!(decode(&[1, 0, 0, 0, 0], 99), Err(FrameError::Compressed));
        assert_eq!(
            decode(&[0, 0, 0, 0, 3, 0x1a, 9, 0], 99),
            Err(FrameError::NotData),
            "longer than its message"
        );
        assert_eq!(
            decode(&[0, 0, 0, 0, 1, 0x1a, 0x01], 99),
            Err(FrameError::NotData),
            "length outside the message"
        );
        assert_eq!(decode(&frame(b"cut")[..7], 99), Err(FrameError::Truncated));
        assert_eq!(
            decode(
                &[
                    0, 0, 0, 0, 12, 0xff, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1
                ],
                99
            ),
            Err(FrameError::NotData)
        );
    }

    #[test]
    fn a_field_cut_by_the_end_of_its_message_is_rubbish() {
        for (what, message) in [
            ("a varint", &[0x20][..]),
            ("a length", &[0x2a]),
            ("data without a length", &[0x1a]),
            ("a fixed32", &[0x35, 0, 0, 0]),
            ("a fixed64", &[0x39]),
            (
                "a field beyond protobuf's last",
                &[0x80, 0x80, 0x80, 0x80, 0x10, 0],
            ),
        ] {
            let wire = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message].concat();
            for piece in [1, 99] {
                assert_eq!(decode(&wire, piece), Err(FrameError::NotData), "{what}");
            }
        }
    }

    #[test]
    fn nothing_follows_the_message_that_a_direction_has_moved() {
        let moved = encode(&Frame {
            kind: Some(Kind::Moved(crate::proto::tunnel::Moved {})),
        });
        for piece in [1, 99] {
            let mut decoder = Decoder::default();
            for piece in [frame(b"last"), moved.clone()].concat().chunks(piece) {
                let mut input = Bytes::copy_from_slice(piece);
                while decoder.data(&mut input).unwrap().is_some() {}
            }
            assert!(decoder.has_moved() && decoder.between_messages());
            let more = decoder.data(&mut frame(b"more"));
            assert_eq!(more, Err(FrameError::NotData));
        }
    }

    #[test]
    fn a_first_message_is_bounded() {
        let mut buffer = BytesMut::from(&[0, 0xff, 0, 0, 0][..]);
        assert_eq!(
            split_message(&mut buffer, MESSAGE_MAX),
            Err(FrameError::TooLong(0xff00_0000))
        );
        let mut wire = BytesMut::from(
            &encode(&Frame {
                kind: Some(Kind::Data("x".into())),
            })[..],
        );
        wire.extend_from_slice(b"rest");
        let message = split_message(&mut wire, MESSAGE_MAX).unwrap().unwrap();
        assert_eq!(first_kind(message).unwrap(), Kind::Data("x".into()));
        assert_eq!(&wire[..], b"rest");
    }
}
