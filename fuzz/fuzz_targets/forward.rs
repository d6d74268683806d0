//! An entry of the TCP map.
#![no_main]

use culvert_proxy_core::fuzzing::forward;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match forward(text) {
        Ok(written) => assert_eq!(
            forward(&written),
            Ok(written.clone()),
            "an entry is written one way"
        ),
        Err(reason) => assert!(
            reason.len() < 2048 && !reason.contains(char::is_control),
            "{reason:?}"
        ),
    }
});
