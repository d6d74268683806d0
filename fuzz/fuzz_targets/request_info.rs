//! The first line of a request: method, space, path and query.
#![no_main]

use culvert_hub::fuzzing::request_info;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &str| {
    let (method, url) = line.split_once(' ').unwrap_or(("GET", line));
    if let Err(reason) = request_info(method, url) {
        assert!(reason.len() < 256, "{reason:?}");
    }
});
