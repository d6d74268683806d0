//! The certificate signing request of an agent that joins or renews.
#![no_main]

use culvert_proxy_trust::fuzzing::signing_request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|der: &[u8]| {
    // A signature cannot be guessed: what is taken is a seed, perhaps with something behind it.
    if let Ok(key) = signing_request(der) {
        assert_eq!(signing_request(der), Ok(key), "a key is known again");
    }
});
