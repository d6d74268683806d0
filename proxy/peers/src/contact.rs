//! Readiness by contact with peers: a proxy that is cut off from all others refuses the nodes that
//! have tunnels only there.

use std::collections::BTreeSet;

use anyhow::Result;
use culvert_daemon::Gate;
use culvert_proxy_core::listed_peer::ListedPeer;
use culvert_proxy_streams::registry::Registry;
use tokio::sync::watch;

/// Keeps `gate` closed while this proxy reaches no peer, and a Lease says that one has tunnels. The
/// Lease of a peer that is dead expires, which opens the gate. A peer that was lost a moment ago
/// counts as reached, as its nodes count as online.
pub async fn follow_contact(
    gate: Gate,
    mut listed: watch::Receiver<BTreeSet<ListedPeer>>,
    registry: Registry,
) -> Result<()> {
    let mut peers = registry.peer_changes();
    loop {
        let cut_off = cut_off(&listed.borrow_and_update(), registry.peers().len());
        match cut_off {
            None => gate.open(),
            Some(reason) => gate.close(reason),
        }
        tokio::select! {
            Ok(()) = listed.changed() => {}
            Ok(()) = peers.changed() => {}
            else => return std::future::pending().await,
        }
    }
}

/// The reason why this proxy, which reaches so many peers, is not ready.
fn cut_off(listed: &BTreeSet<ListedPeer>, reached: usize) -> Option<String> {
    let mut holders = Vec::new();
    for peer in listed {
        if peer.tunnels > 0 {
            holders.push(peer.address.to_string());
        }
    }
    if reached > 0 || holders.is_empty() {
        return None;
    }
    Some(format!(
        "no other proxy can be reached, and by their Leases these have tunnels: {}. Is their peer \
         port open to this host? The Lease of a proxy that is gone expires after 40 s",
        holders.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use culvert_daemon::Readiness;
    use culvert_proxy_core::directory::Directory;
    use culvert_proxy_core::instance::Instance;
    use culvert_proxy_core::metrics::Metrics;
    use tokio::time::timeout;

    use super::*;
    use crate::own_info;

    fn listed(peers: &[(&str, u32)]) -> BTreeSet<ListedPeer> {
        let peers = peers.iter().map(|(instance, tunnels)| ListedPeer {
            instance: (*instance).into(),
            address: format!("{instance}.example:7401").parse().unwrap(),
            tunnels: *tunnels,
        });
        peers.collect()
    }

    #[test]
    fn a_proxy_that_reaches_no_peer_is_cut_off_if_one_has_tunnels() {
        let peers = listed(&[("a", 0), ("b", 7)]);
        let reason = cut_off(&peers, 0).unwrap();
        assert!(
            reason.contains("b.example:7401") && !reason.contains("a.example"),
            "{reason}"
        );
        assert_eq!(cut_off(&peers, 1), None);
    }

    #[test]
    fn proxies_that_all_start_at_once_are_not_cut_off() {
        assert_eq!(cut_off(&listed(&[("a", 0), ("b", 0)]), 0), None);
        assert_eq!(cut_off(&listed(&[]), 0), None);
    }

    #[tokio::test]
    async fn readiness_follows_contact_and_ends_with_the_lease_of_the_last_peer() {
        let state = tempfile::tempdir().unwrap();
        let directory = Directory::for_tests(state.path(), &[]);
        let registry = Registry::new(directory, Metrics::default());
        let readiness = Readiness::default();
        let leases = watch::Sender::new(listed(&[("b", 7)]));
        let followed = follow_contact(
            readiness.gate("peers"),
            leases.subscribe(),
            registry.clone(),
        );
        let looks = async {
            until(&readiness, false).await;
            let peer = registry.register_peer(own_info(Instance::random(), Vec::new()));
            until(&readiness, true).await;
            drop(peer);
            until(&readiness, false).await;
            leases.send_replace(listed(&[]));
            until(&readiness, true).await;
        };
        tokio::select! {
            ended = followed => panic!("it ended: {ended:?}"),
            () = looks => {}
        }
    }

    async fn until(readiness: &Readiness, is_ready: bool) {
        let wanted = async {
            while readiness.missing().is_empty() != is_ready
                || readiness.missing() == [("peers", "not there yet".to_owned())]
            {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), wanted).await.unwrap();
    }
}
