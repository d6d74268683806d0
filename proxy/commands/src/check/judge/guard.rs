//! What the redirector keeps from the intercept ports: packets of other hosts.

use culvert_api::installed::Installed;
use culvert_daemon::counted;

use super::named;
use crate::check::facts::Facts;
use crate::check::finding::{Judged, ok, warning};

/// A bridge with a network card as its port leads out, so its containers and virtual machines count
/// as other hosts.
pub(super) fn guard(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::has_nftables)?;
    let drops = installed.guard_drops;
    let dropped = format!(
        "{} of other hosts to the intercept ports dropped",
        counted(drops, "packet", "packets")
    );
    let bridges = installed.outer_bridges.iter().map(String::as_str);
    let bridges: Vec<&str> = bridges.collect();
    Some(if drops == 0 {
        ok("no other host has tried the intercept ports")
    } else if bridges.is_empty() {
        ok(dropped)
    } else {
        warning(
            format!(
                "{dropped}; a network card is a port of {}, so what comes in by it counts as \
                 another host's",
                named(&bridges)
            ),
            "containers and virtual machines on that bridge need --guard-allow RANGE on the \
             redirector, with their range; nothing if it has none (docs/cni.md)",
        )
    })
}
