//! The proxy's file of join tokens.
#![no_main]

use culvert_proxy_trust::fuzzing::token_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(written) = token_file(text) {
        assert_eq!(
            token_file(&written),
            Ok(written.clone()),
            "what is written is read back"
        );
    }
});
