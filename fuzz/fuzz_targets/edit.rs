//! Objects of which single fields are set, and bodies of which single objects are replaced.
#![no_main]

use culvert_hub::fuzzing::{same_objects, uid_and_namespace, with_uid};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((encoding, body)) = input.split_first() else {
        return;
    };
    let is_json = encoding % 2 == 0;
    for (kind, same) in same_objects(is_json, body).into_iter().enumerate() {
        let Some(same) = same else {
            continue;
        };
        if is_json {
            assert_eq!(same, body, "nothing else changes");
        }
        let again = same_objects(is_json, &same)[kind].clone();
        assert_eq!(again, Some(same), "a body is written one way");
    }
    let Some(changed) = with_uid(is_json, body, "new") else {
        return;
    };
    let namespace = uid_and_namespace(is_json, body).map(|[_, namespace]| namespace);
    let [uid, kept] = uid_and_namespace(is_json, &changed).expect("what was written is read");
    assert_eq!((uid.as_str(), Some(kept)), ("new", namespace));
    assert_eq!(
        with_uid(is_json, &changed, "new"),
        Some(changed),
        "an object is written one way"
    );
});
