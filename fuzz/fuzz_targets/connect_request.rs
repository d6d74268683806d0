//! The head of a CONNECT request, and the destination in it.
#![no_main]

use culvert_proxy_clients::fuzzing::{HEAD_MAX, connect_request};
use culvert_proxy_core::fuzzing::destination;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match connect_request(bytes) {
        Ok(Some((target, length))) => {
            assert!(length <= bytes.len().min(HEAD_MAX));
            assert!(bytes[..length].ends_with(b"\n"), "a head ends with a line");
            assert_eq!(
                connect_request(&bytes[..length]),
                Ok(Some((target.clone(), length))),
                "what follows is no matter"
            );
            assert_eq!(
                connect_request(&bytes[..length - 1]),
                Ok(None),
                "a part is not a head"
            );
            assert_eq!(
                destination(&target),
                Ok(target),
                "a destination is read as it is shown"
            );
        }
        Ok(None) => assert!(bytes.len() <= HEAD_MAX),
        Err(reason) => fits_a_log_line(&reason),
    }
    if let Err(reason) = std::str::from_utf8(bytes).map_or(Ok(String::new()), destination) {
        fits_a_log_line(&reason);
    }
});

fn fits_a_log_line(reason: &str) {
    assert!(
        reason.len() < 4096 && !reason.contains(char::is_control),
        "{reason:?}"
    );
}
