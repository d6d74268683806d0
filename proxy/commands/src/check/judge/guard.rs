//! What the redirector keeps from edge nodes: packets of other hosts, to the intercept ports and to
//! edge nodes.

use culvert_api::installed::Installed;
use culvert_daemon::counted;

use super::named;
use crate::check::facts::Facts;
use crate::check::finding::{Judged, ok, warning};

/// A bridge with a network card as its port leads out, so its containers and virtual machines count
/// as other hosts.
pub(super) fn guard(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::has_nftables)?;
    let bridges = installed.outer_bridges.iter().map(String::as_str);
    let bridges: Vec<&str> = bridges.collect();
    Some(match blocked(installed) {
        None => ok("no other host has tried the intercept ports"),
        Some(kept_out) if bridges.is_empty() => ok(kept_out),
        Some(kept_out) => warning(
            format!(
                "{kept_out}; a network card is a port of {}, so what comes in by it counts as \
                 another host's",
                named(&bridges)
            ),
            "containers and virtual machines on that bridge whose gateway is this host need \
             --guard-allow RANGE on the redirector, with their range; those with another gateway \
             need a port of the proxy; nothing if there are none (docs/cni.md)",
        ),
    })
}

/// What was dropped or refused lately.
fn blocked(installed: &Installed) -> Option<String> {
    let mut parts = Vec::new();
    if installed.guard_drops > 0 {
        let packets = counted(installed.guard_drops, "packet", "packets");
        parts.push(format!(
            "{packets} of other hosts to the intercept ports dropped"
        ));
    }
    if installed.refused_of_bridges > 0 {
        let packets = counted(installed.refused_of_bridges, "packet", "packets");
        parts.push(format!("{packets} to edge nodes refused"));
    }
    if parts.is_empty() {
        None
    } else {
        Some(parts.join(", "))
    }
}
