//! A stream's first message: `open` from a proxy, `opened` from an agent.
#![no_main]

use culvert_tunnel::fuzzing::{FIRST_MESSAGE_MAX, first_kind, split_message};
use culvert_tunnel::proto::tunnel::Frame;
use libfuzzer_sys::fuzz_target;
use prost::Message;

const PREFIX: usize = 5;

fuzz_target!(|wire: &[u8]| {
    let Ok(Some((message, rest))) = split_message(wire) else {
        return;
    };
    assert!(message.len() <= FIRST_MESSAGE_MAX);
    assert_eq!(
        [&wire[..PREFIX], &message, &rest].concat(),
        wire,
        "nothing is lost or moved"
    );
    for end in [0, PREFIX, wire.len() - rest.len() - 1] {
        if end < PREFIX + message.len() {
            assert_eq!(
                split_message(&wire[..end]),
                Ok(None),
                "{end} bytes are too few"
            );
        }
    }
    if let Ok(kind) = first_kind(message) {
        let again = Frame {
            kind: Some(kind.clone()),
        }
        .encode_to_vec();
        assert_eq!(first_kind(again.into()), Ok(kind));
    }
});
