//! Whether this agent moves its tunnels away from a proxy that has far more nodes than others, as
//! after one of them was away. Each agent decides by itself, with a probability that makes as many
//! nodes move in all as there are too many. Bulk data makes tunnels come and go, but not nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::ProxyId;
use super::addresses::ReportedProxy;

/// A proxy has too many nodes when it has this many times the mean, and
const TIMES_MEAN: f64 = 1.25;
/// as many more: with few nodes the numbers differ by chance.
const FEW: f64 = 2.0;

/// The proxy that this agent should leave for another one; `chance` is a random number from 0 to
/// 1. `ours` are the proxies to which it has tunnels.
pub(super) fn to_leave(
    proxies: &BTreeMap<ProxyId, ReportedProxy>,
    ours: &BTreeSet<&ProxyId>,
    chance: f64,
) -> Option<ProxyId> {
    let mean = mean(proxies)?;
    let staying: Vec<_> = proxies
        .iter()
        .filter(|(_, proxy)| !proxy.draining)
        .collect();
    let has_another = staying
        .iter()
        .any(|(id, proxy)| !ours.contains(id) && f64::from(proxy.nodes) < mean);
    if !has_another {
        return None;
    }
    let with_tunnels = staying.into_iter().filter(|(id, _)| ours.contains(id));
    let (fullest, proxy) = with_tunnels.max_by_key(|(_, proxy)| proxy.nodes)?;
    let load = f64::from(proxy.nodes);
    let is_too_full = load > mean * TIMES_MEAN + FEW;
    if is_too_full && chance < (load - mean) / load {
        Some(fullest.clone())
    } else {
        None
    }
}

/// Nodes of a proxy on average, without those that drain; `None` without any.
pub(super) fn mean(proxies: &BTreeMap<ProxyId, ReportedProxy>) -> Option<f64> {
    let mut count = 0.0;
    let mut sum = 0.0;
    for proxy in proxies.values() {
        if !proxy.draining {
            count += 1.0;
            sum += f64::from(proxy.nodes);
        }
    }
    if count > 0.0 { Some(sum / count) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(nodes: &[(&str, u32)], ours: [&str; 2], chance: f64) -> Option<String> {
        let proxies = nodes.iter().map(|(name, nodes)| {
            let proxy = ReportedProxy {
                nodes: *nodes,
                draining: name.ends_with("draining"),
                ..ReportedProxy::default()
            };
            (ProxyId::from(*name), proxy)
        });
        let ours = ours.map(ProxyId::from);
        to_leave(&proxies.collect(), &ours.iter().collect(), chance).map(|id| id.to_string())
    }

    #[test]
    fn a_proxy_that_came_back_gets_its_part() {
        let returned = [("a", 300), ("b", 290), ("c", 10)];
        assert_eq!(decide(&returned, ["a", "b"], 0.0).as_deref(), Some("a"));
        // A third of its 300 nodes is too many.
        assert_eq!(decide(&returned, ["a", "b"], 0.32).as_deref(), Some("a"));
        assert_eq!(decide(&returned, ["a", "b"], 0.34), None);
    }

    #[test]
    fn numbers_that_differ_by_chance_move_nothing() {
        assert_eq!(
            decide(&[("a", 120), ("b", 110), ("c", 70)], ["a", "b"], 0.0),
            None
        );
        assert_eq!(
            decide(&[("a", 4), ("b", 2), ("c", 0)], ["a", "b"], 0.0),
            None
        );
        assert_eq!(decide(&[], ["a", "b"], 0.0), None);
    }

    #[test]
    fn tunnels_move_only_where_there_is_another_proxy_to_go_to() {
        assert_eq!(
            decide(&[("a", 300), ("b", 10)], ["a", "b"], 0.0),
            None,
            "both are ours"
        );
        assert_eq!(
            decide(
                &[("a", 300), ("b", 290), ("c draining", 0)],
                ["a", "b"],
                0.0
            ),
            None
        );
        let with_b = decide(&[("a", 10), ("b", 300), ("c", 20)], ["a", "c"], 0.0);
        assert_eq!(with_b, None, "the full one is not ours");
    }

    /// Nodes with tunnels to two of three proxies, one of which has just come back.
    #[test]
    fn a_few_rounds_even_out_without_swinging_over() {
        let mut nodes = vec![["a", "b"]; 1000];
        let loads = |nodes: &[[&str; 2]]| {
            ["a", "b", "c"].map(|name| {
                let count = nodes.iter().flatten().filter(|at| **at == name).count();
                (name, u32::try_from(count).unwrap())
            })
        };
        for round in 0..6_u32 {
            let told = loads(&nodes);
            for (number, node) in nodes.iter_mut().enumerate() {
                let chance = f64::from((u32::try_from(number).unwrap() * 617 + round * 311) % 1000);
                if let Some(full) = decide(&told, *node, chance / 1000.0) {
                    let at = node.iter_mut().find(|at| **at == full).unwrap();
                    *at = "c";
                }
            }
        }
        let told = loads(&nodes).map(|(_, nodes)| nodes);
        assert!(
            told.iter().all(|nodes| (500..850).contains(nodes)),
            "{told:?}"
        );
    }
}
