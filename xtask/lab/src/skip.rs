//! Tests that cannot run here say so, which `cargo xtask test` counts.

use std::io::Write;

use crate::workspace;

/// Says that a test is skipped, and why.
///
/// # Panics
/// Under `REQUIRE_PRIVILEGED=1`.
pub fn skip(why: &str) {
    assert!(
        std::env::var("REQUIRE_PRIVILEGED").as_deref() != Ok("1"),
        "REQUIRE_PRIVILEGED=1, but {why}"
    );
    // Not by eprintln, which libtest keeps to itself while a test passes.
    writeln!(std::io::stderr(), "skipped: {why}").ok();
}

/// Whether this process may make labs; says that the test is skipped if not.
///
/// # Panics
/// Under `REQUIRE_PRIVILEGED=1` if it may not.
pub fn may_make_labs() -> bool {
    if !workspace::is_root() {
        skip("making network namespaces and loading eBPF programs needs root");
    }
    workspace::is_root()
}
