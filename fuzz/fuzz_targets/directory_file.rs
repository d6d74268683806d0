//! The operator's directory file.
#![no_main]

use culvert_proxy_core::fuzzing::directory_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match directory_file(text) {
        Ok(written) => assert_eq!(
            directory_file(&written),
            Ok(written.clone()),
            "a node is written one way"
        ),
        Err(reason) => assert!(!reason.contains('\n'), "one line: {reason:?}"),
    }
});
