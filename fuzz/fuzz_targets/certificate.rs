//! A client certificate as its node is read from it.
#![no_main]

use culvert_proxy_trust::fuzzing::{binding, certificate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|der: &[u8]| {
    match certificate(der) {
        Ok((node, bound)) => {
            assert!(!node.is_empty() && node.len() <= 253, "{node:?}");
            if let Some(bound) = bound {
                assert_eq!(
                    binding(&bound),
                    Some(bound.clone()),
                    "a binding is written one way"
                );
            }
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
    if let Ok(uri) = std::str::from_utf8(der)
        && let Some(bound) = binding(uri)
    {
        assert_eq!(bound, uri, "there is one way to write a binding");
    }
});
