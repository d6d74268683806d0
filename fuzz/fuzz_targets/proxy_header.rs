//! A header of the PROXY protocol at the agent port.
#![no_main]

use culvert_proxy_streams::fuzzing::{PROXY_HEADER_MAX, proxy_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match proxy_header(bytes) {
        Ok(Some((client, length))) => {
            assert!(length <= bytes.len().min(PROXY_HEADER_MAX));
            assert_eq!(
                proxy_header(&bytes[..length]),
                Ok(Some((client, length))),
                "what follows is no matter"
            );
            assert_eq!(
                proxy_header(&bytes[..length - 1]),
                Ok(None),
                "a part is not a header"
            );
            if let Some(client) = client {
                assert_eq!(client.ip(), client.ip().to_canonical());
            }
        }
        Ok(None) => assert!(bytes.len() < PROXY_HEADER_MAX),
        Err(reason) => assert!(
            reason.len() < 4096 && !reason.contains(char::is_control),
            "{reason:?}"
        ),
    }
});
