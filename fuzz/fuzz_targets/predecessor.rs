//! A file of YurtTunnel, SuperEdge or konnectivity, as `migrate` reads it.
#![no_main]

use culvert_migrate::fuzzing::migrated;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for from in ["yurttunnel", "superedge", "konnectivity"] {
        if let Err(reason) = migrated(from, text) {
            assert!(!reason.contains('\n'), "one line: {reason:?}");
        }
    }
});
