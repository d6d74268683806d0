//! The first line of a request: method, space, path and query. The second line is its `Accept`.
#![no_main]

use culvert_hub::fuzzing::{plans, request_info};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|head: &str| {
    let (line, accept) = head.split_once('\n').unwrap_or((head, ""));
    let (method, url) = line.split_once(' ').unwrap_or(("GET", line));
    if let Err(reason) = request_info(method, url) {
        assert!(reason.len() < 256, "{reason:?}");
    }
    if let Some([plan, sent]) = plans(method, url, accept)
        && plan.starts_with("Read(")
    {
        assert_eq!(plan, sent, "what is remembered is what was asked for");
    }
});
