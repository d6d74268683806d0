//! Agents that are not on their node's host: two agents with one certificate, as a copied disk or
//! image makes them, or one on a host that has none of the node's addresses. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use culvert_api::NodeName;
use culvert_proxy_core::directory::NodeView;

/// A run of an agent with tunnels here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentRun {
    /// Where its tunnels come from.
    pub from: IpAddr,
    /// The node's addresses that its host has.
    pub has: Vec<IpAddr>,
}

/// What is wrong with the agents of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// Several agents live at once with the certificate of the node.
    Copies(Vec<AgentRun>),
    /// The only agent is on a host that has none of the node's addresses.
    Stranger(AgentRun),
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copies(runs) => {
                let runs: Vec<String> = runs.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "{} agents have its certificate, {}: perhaps the disk of one was copied",
                    runs.len(),
                    runs.join(", ")
                )
            }
            Self::Stranger(run) => write!(f, "its agent runs {run}"),
        }
    }
}

impl fmt::Display for AgentRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, has } = self;
        if has.is_empty() {
            return write!(f, "from {from} on a host with none of the node's addresses");
        }
        let has: Vec<String> = has.iter().map(ToString::to_string).collect();
        write!(f, "from {from} on the host with {}", has.join(" and "))
    }
}

impl Misplaced {
    /// What to do. It never lets an agent dial for a host that is not its own.
    pub fn fix(&self, node: &NodeName) -> String {
        let join_again = format!(
            "on a host that is not {node}: stop culvert-agent, empty its state directory, and join \
             with a token of its own"
        );
        match self {
            Self::Copies(_) => join_again,
            Self::Stranger(_) => format!(
                "{join_again}. If it is {node}: correct the node's address, or give --node-address to an \
                 agent in a network namespace of its own"
            ),
        }
    }
}

/// A tunnel of the node whose agent is alive, or was a moment ago.
#[derive(Clone, Debug)]
pub(crate) struct Sighting<'a> {
    /// Random for each run of an agent.
    pub(crate) instance: &'a str,
    pub(crate) run: AgentRun,
    pub(crate) age: Duration,
    /// The tunnels of a dead agent end after this time.
    pub(crate) dead_after: Duration,
    /// The agent does not say which addresses its host has, or may dial the node's all the same.
    pub(crate) may_lack_them: bool,
}

/// What is wrong with a node's agents, by its tunnels.
pub(crate) fn judged(node: &NodeView, sightings: &[Sighting<'_>]) -> Option<Misplaced> {
    // Each run by its first tunnel.
    let mut runs: BTreeMap<&str, &Sighting<'_>> = BTreeMap::new();
    for sighting in sightings {
        let first = runs.entry(sighting.instance).or_insert(sighting);
        if sighting.age > first.age {
            *first = sighting;
        }
    }
    let mut runs: Vec<&Sighting<'_>> = runs.into_values().collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.age));
    let (first, others) = runs.split_first()?;
    // An agent that was restarted leaves tunnels, but only until they are found dead.
    let mut alive = vec![first.run.clone()];
    for other in others {
        if other.age > first.dead_after {
            alive.push(other.run.clone());
        }
    }
    if alive.len() > 1 {
        alive.sort_unstable();
        return Some(Misplaced::Copies(alive));
    }
    for seen in &runs {
        if !seen.run.has.is_empty() || seen.may_lack_them {
            return None;
        }
    }
    if node.addresses.is_empty() {
        return None;
    }
    Some(Misplaced::Stranger(first.run.clone()))
}

#[cfg(test)]
mod tests {
    use culvert_proxy_core::directory::Directory;

    use super::*;

    const DEAD_AFTER: u64 = 47;

    fn sighting(instance: &'static str, age: u64, has: &[&str]) -> Sighting<'static> {
        Sighting {
            instance,
            run: AgentRun {
                from: "198.51.100.1".parse().unwrap(),
                has: has.iter().map(|ip| ip.parse().unwrap()).collect(),
            },
            age: Duration::from_secs(age),
            dead_after: Duration::from_secs(DEAD_AFTER),
            may_lack_them: false,
        }
    }

    fn edge_1() -> NodeView {
        let state = tempfile::tempdir().unwrap();
        let node: NodeName = "edge-1".parse().unwrap();
        let directory = Directory::for_tests(state.path(), &[]);
        let address = "10.0.3.7".parse().unwrap();
        let editor = directory.editor();
        editor.put(&node, vec![address], vec![9100]).unwrap();
        directory.node(&node).unwrap()
    }

    fn found(sightings: &[Sighting<'_>]) -> Option<Misplaced> {
        judged(&edge_1(), sightings)
    }

    #[test]
    fn two_runs_that_both_outlive_a_death_are_two_agents() {
        let own = &["10.0.3.7"];
        let copied = found(&[sighting("a", 900, own), sighting("b", 60, &[])]);
        let Some(Misplaced::Copies(runs)) = &copied else {
            panic!("{copied:?}");
        };
        assert_eq!(runs.len(), 2);
        let text = copied.unwrap().to_string();
        assert!(
            text.contains("with 10.0.3.7") && text.contains("none of the node's"),
            "{text}"
        );
        // The first agent came back after the copy began.
        let again = [
            sighting("a", 60, own),
            sighting("a", 5, own),
            sighting("b", 900, &[]),
        ];
        assert!(matches!(found(&again), Some(Misplaced::Copies(_))));
    }

    #[test]
    fn a_restart_is_no_copy() {
        let own = &["10.0.3.7"];
        assert_eq!(
            found(&[sighting("a", 900, own), sighting("b", 30, own)]),
            None
        );
        assert_eq!(
            found(&[sighting("a", 900, own), sighting("a", 600, own)]),
            None
        );
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn an_agent_on_a_host_without_the_nodes_addresses_is_a_stranger() {
        let strange = found(&[sighting("a", 5, &[])]);
        assert!(matches!(strange, Some(Misplaced::Stranger(_))));
        let fix = strange.unwrap().fix(&"edge-1".parse().unwrap());
        assert!(!fix.contains("--allow"), "{fix}");
        let silent = Sighting {
            may_lack_them: true,
            ..sighting("a", 5, &[])
        };
        assert_eq!(found(&[silent]), None, "an old agent does not say");
        let by_name_only = NodeView {
            addresses: Vec::new(),
            ..edge_1()
        };
        assert_eq!(judged(&by_name_only, &[sighting("a", 5, &[])]), None);
    }
}
