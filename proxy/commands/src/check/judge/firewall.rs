//! Whether filters of this host drop what is steered, as the counters of the last minutes show.
//! Chains that may are named; whether they do, only packets show.

use culvert_api::installed::{Installed, RECENT, SteeredPackets};

use super::named;
use crate::check::facts::Facts;
use crate::check::finding::{Judged, ok, warning};

pub(super) fn firewall(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::steers)?;
    let by_nftables = installed.steered.unwrap_or_default();
    // A hook that is missing does not count.
    let are_complete = installed.hooks.iter().all(|hook| hook.link.is_some());
    let by_hooks = match installed.hooked {
        Some(hooked) if are_complete => hooked,
        _ => SteeredPackets::default(),
    };
    Some(if are_dropped(by_nftables) {
        let fix = "let pods reach TCP 7410-7413 of this host, with ufw: ufw allow proto tcp from \
             10.244.0.0/16 to any port 7410:7413; \
             with firewalld: firewall-cmd --zone=trusted --add-source=10.244.0.0/16 \
             (docs/cni.md); nothing, if a NetworkPolicy means it";
        warning(dropped("nftables", by_nftables, installed), fix)
    } else if are_dropped(by_hooks) {
        let fix = "to a filter, what the hooks steer goes from this host, or with --hooks all from \
             a pod, to TCP 7410-7413 of this host itself: accept that (docs/cni.md)";
        warning(dropped("the connect hooks", by_hooks, installed), fix)
    } else {
        ok(no_drops(by_nftables, by_hooks, installed))
    })
}

/// Some packets get lost anywhere.
fn are_dropped(packets: SteeredPackets) -> bool {
    missing(packets) * 100 > packets.begun
}

fn missing(packets: SteeredPackets) -> u64 {
    packets.begun.saturating_sub(packets.admitted)
}

fn dropped(mechanism: &str, packets: SteeredPackets, installed: &Installed) -> String {
    let suspects = suspects(installed);
    let perhaps = if suspects.is_empty() {
        String::new()
    } else {
        format!(", perhaps by {suspects}")
    };
    format!(
        "in the last {} s a filter on this host dropped or rejected {} of {} first packets of \
         connections that {mechanism} steered{perhaps}",
        RECENT.as_secs(),
        missing(packets),
        packets.begun
    )
}

fn no_drops(
    by_nftables: SteeredPackets,
    by_hooks: SteeredPackets,
    installed: &Installed,
) -> String {
    let count = by_nftables.begun + by_hooks.begun;
    let mut text = if count > 0 {
        format!(
            "no filter of this host dropped one of {count} connections of the last {} s",
            RECENT.as_secs()
        )
    } else {
        format!("nothing was steered in the last {} s", RECENT.as_secs())
    };
    if by_nftables.begun == 0 && !installed.dropping_chains.is_empty() {
        text += &format!(
            "; {} may drop those of pods: dial an edge node from a pod of this host, then check \
             again",
            installed.dropping_chains.join(", ")
        );
    }
    if !installed.owner_chains.is_empty() {
        text += &format!(
            "; {} drops packets of some users or cgroups, to which a connection to an edge node is \
             one to TCP 7410-7413 of this host",
            installed.owner_chains.join(", ")
        );
    }
    text
}

fn suspects(installed: &Installed) -> String {
    let chains = installed.dropping_chains.iter();
    let chains: Vec<&str> = chains
        .chain(&installed.owner_chains)
        .map(String::as_str)
        .collect();
    named(&chains)
}
