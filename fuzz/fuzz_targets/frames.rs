//! What follows a stream's first message: gRPC messages with data in them, however they are cut.
#![no_main]

use culvert_tunnel::fuzzing::{decode, encode};
use culvert_tunnel::proto::tunnel::{Frame, frame::Kind};
use libfuzzer_sys::fuzz_target;
use prost::Message;

const PREFIX: usize = 5;

fuzz_target!(|input: &[u8]| {
    let Some((piece, wire)) = input.split_first() else {
        return;
    };
    let piece = usize::from(*piece).max(1);
    let whole = decode(wire, usize::MAX);
    assert_eq!(
        decode(wire, piece),
        whole,
        "pieces of {piece} make no difference"
    );
    let (payload, ended) = whole;
    assert!(payload.len() <= wire.len(), "no byte comes from nowhere");
    if ended.is_ok() {
        protobuf_agrees(wire, &payload);
    }
    let sealed = encode(wire);
    assert_eq!(
        decode(&sealed, piece),
        (wire.to_vec(), Ok(())),
        "what is sealed comes out"
    );
    let message = Frame {
        kind: Some(Kind::Data(wire.to_vec().into())),
    }
    .encode_to_vec();
    assert_eq!(
        &sealed[PREFIX..],
        message,
        "and is what any gRPC client would write"
    );
});

/// What the decoder takes is protobuf, with the same data. Of several in one message protobuf keeps
/// the last.
fn protobuf_agrees(mut wire: &[u8], mut payload: &[u8]) {
    while !wire.is_empty() {
        let length = u32::from_be_bytes(wire[1..PREFIX].try_into().expect("four bytes")) as usize;
        let (message, rest) = wire[PREFIX..].split_at(length);
        let (own, ended) = decode(&wire[..PREFIX + length], usize::MAX);
        assert_eq!(ended, Ok(()), "a message alone is as good as among others");
        payload = payload
            .strip_prefix(&own[..])
            .expect("payload comes in the order of its messages");
        match Frame::decode(message).expect("protobuf").kind {
            Some(Kind::Data(last)) => assert!(own.ends_with(&last)),
            None => assert!(own.is_empty()),
            Some(Kind::Open(_) | Kind::Opened(_)) => {
                panic!("`open` and `opened` come first or not at all")
            }
        }
        wire = rest;
    }
    assert!(payload.is_empty());
}
