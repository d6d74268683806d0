//! The token that a stranger shows.
#![no_main]

use culvert_proxy_trust::fuzzing::join_token;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match join_token(text) {
        Ok(token) => assert_eq!(token, text.trim(), "there is one way to write a token"),
        // A token that was copied in part must not get into a log.
        Err(reason) => assert_eq!(
            Err(reason),
            join_token(""),
            "the reason tells nothing of the text"
        ),
    }
});
