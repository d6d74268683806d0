//! The redirector's saved directory.
#![no_main]

use culvert_redirector::fuzzing::saved_directory;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    if let Ok(written) = saved_directory(text) {
        assert_eq!(
            saved_directory(&written).as_ref(),
            Ok(&written),
            "a directory is written one way"
        );
    }
});
