//! The body of a table in JSON, however it arrives.
#![no_main]

use culvert_hub::fuzzing::table_json;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((piece, body)) = input.split_first() else {
        return;
    };
    let whole = table_json(body, usize::MAX);
    let pieces = table_json(body, usize::from(*piece));
    assert_eq!(pieces, whole, "pieces of {piece} make no difference");
    if let Ok(written) = &whole.whole {
        let again = table_json(written, usize::MAX);
        assert_eq!(again, whole, "a table is written one way");
    }
});
