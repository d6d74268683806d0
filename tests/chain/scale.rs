//! `cargo xtask scale` in a small form: its agents all come up and all come back, and nothing of
//! them is left. No time is judged here.

use culvert_lab::skip;
use culvert_scale::{Args, Programs};

#[test]
fn two_hundred_agents_on_three_proxies_come_up_come_back_and_leave_nothing() {
    if !skip::may_make_labs() {
        return;
    }
    let report = culvert_scale::measure(&Args::small(), &Programs::of_tests())
        .unwrap_or_else(|error| panic!("{error:#}"));
    println!("{}", report.table());
    assert_eq!(report.json()["agents"], 200);
}
