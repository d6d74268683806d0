//! Reports tests that cannot run here. `cargo xtask test` counts the reports.

use std::io::Write;

use crate::workspace;

/// Reports that a test is skipped, and why.
///
/// # Panics
/// Under `REQUIRE_PRIVILEGED=1`.
pub fn skip(why: &str) {
    assert!(
        std::env::var("REQUIRE_PRIVILEGED").as_deref() != Ok("1"),
        "REQUIRE_PRIVILEGED=1, but {why}"
    );
    // Not with eprintln, which libtest captures while a test passes.
    // It may have printed the name of the test without the end of its line.
    writeln!(std::io::stderr(), "\nskipped: {why}").ok();
}

/// Whether this process may create labs; otherwise reports that the test is skipped.
///
/// # Panics
/// Under `REQUIRE_PRIVILEGED=1`, if it may not.
pub fn may_make_labs() -> bool {
    if !workspace::is_root() {
        skip("making network namespaces and loading eBPF programs needs root");
    }
    workspace::is_root()
}
