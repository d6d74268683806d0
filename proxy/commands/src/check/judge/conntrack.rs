//! Whether the kernel can track a further connection of this host. If not, it drops its first packet,
//! also on the loopback interface.

use crate::check::conntrack::Filled;
use crate::check::facts::Facts;
use crate::check::finding::{Judged, failure, ok, warning};

/// A table that is so full may be full a minute later.
const NEARLY_FULL_PERCENT: u64 = 90;
const FIX: &str = "raise net.netfilter.nf_conntrack_max, or end what fills the table (conntrack -L): \
     while it is full, new connections of this host time out, also those that have nothing to do \
     with edge nodes";

pub(super) fn conntrack(facts: &Facts) -> Option<Judged> {
    let Filled {
        entries,
        capacity,
        dropped,
    } = facts.conntrack.filled()?;
    let mut used = format!("{entries} of {capacity} entries");
    if dropped > 0 {
        used += &format!("; {dropped} packets found it full since the host started");
    }
    Some(if entries >= capacity {
        let found = format!("the kernel's table of connections is full: {used}");
        failure(found, FIX)
    } else if entries * 100 >= capacity * NEARLY_FULL_PERCENT {
        let found = format!("the kernel's table of connections is nearly full: {used}");
        warning(found, FIX)
    } else {
        ok(format!("the kernel's table of connections has {used}"))
    })
}
