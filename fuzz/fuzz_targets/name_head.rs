//! The head of a connection to a name-routed port: a TLS ClientHello, or an HTTP request.
#![no_main]

use culvert_proxy_clients::fuzzing::{HEAD_MAX, name_head};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = name_head(bytes, bytes.len());
    match &whole {
        Ok(Some(name)) => {
            assert!(!name.is_empty() && name.len() < HEAD_MAX);
            let mut longer = bytes.to_vec();
            longer.extend(b"more");
            assert_eq!(
                name_head(&longer, longer.len()).as_ref(),
                Ok(&Some(name.clone())),
                "what follows is no matter"
            );
        }
        Ok(None) => assert!(bytes.len() <= HEAD_MAX),
        Err(reason) => fits_a_log_line(reason),
    }
    // Heads are short: in pieces of one byte a long one takes too long.
    if bytes.len() < 1024 {
        assert_eq!(name_head(bytes, 1), whole, "in pieces it is the same head");
    }
});

fn fits_a_log_line(reason: &str) {
    assert!(
        reason.len() < 4096 && !reason.contains(char::is_control),
        "{reason:?}"
    );
}
