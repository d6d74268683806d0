//! The value of a label with destinations behind a node.
#![no_main]

use culvert_proxy_cluster::fuzzing::behind_label;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|value: &str| {
    let (destinations, problems) = behind_label(value);
    for destination in &destinations {
        let ip = destination.ip();
        assert!(
            destination.port() != 0 && !ip.is_loopback() && !ip.is_unspecified(),
            "{destination}"
        );
    }
    for problem in problems {
        assert!(
            problem.len() < 1024 && !problem.contains(char::is_control),
            "{problem:?}"
        );
    }
});
