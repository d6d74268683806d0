//! The body of a watch in JSON and in protobuf, however it arrives.
#![no_main]

use culvert_hub::fuzzing::{events_json, events_protobuf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((piece, body)) = input.split_first() else {
        return;
    };
    for split in [events_json, events_protobuf] {
        let whole = split(body, usize::MAX);
        let pieces = split(body, usize::from(*piece));
        assert_eq!(pieces, whole, "pieces of {piece} make no difference");
        let written = whole.parts.concat();
        let again = split(&written, usize::MAX);
        assert_eq!(again.parts, whole.parts, "an event is written one way");
        assert!(again.whole.is_ok());
    }
});
