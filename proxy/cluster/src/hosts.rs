//! Keeps a ConfigMap in the format of a hosts file, for the CoreDNS of other tunnels'
//! installations. Edge nodes have their VIPs, or the ClusterIP of the Service of name-routed ports.
//! Cloud nodes have their own addresses.
//!
//! Every proxy does this, and all of them would write the same. Each waits a random time before it
//! writes, and then usually finds that another one has written. A write names the version that it
//! replaces, so no change is lost.

mod lines;
mod place;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use culvert_api::NodeName;
use culvert_daemon::{Drain, Problem, chain};
use culvert_proxy_core::directory::{Directory, Freshness, Source};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::watch;

use super::Cluster;
use super::configmap::{MAX_BYTES, empty, write};
use super::debounce::{debounced, sleep_until};
use super::name_service::NameService;
use lines::{Merged, merged};
pub use place::HostsAddress;
pub(crate) use place::HostsPlace;

/// The pause after a failed write, and while the cluster has not confirmed the directory.
const PAUSE: Duration = Duration::from_secs(15);

impl Cluster {
    /// Keeps the ConfigMap up to date until the drain begins, if one is configured. Its last
    /// content stays. `service_rx` is the Service of --name-service.
    pub(crate) async fn write_hosts(
        self,
        directory: Directory,
        mut service_rx: watch::Receiver<NameService>,
        drain: Drain,
    ) -> Result<()> {
        let Some(place) = self.config.hosts_configmap.clone() else {
            drain.begun().await;
            return Ok(());
        };
        let mut found = std::pin::pin!(self.follow(place.config_map.clone()));
        let mut watcher = directory.watch();
        let mut hosts = Hosts {
            cluster: self.clone(),
            place,
            there: None,
            problem: Problem::default(),
            left_out: 0,
        };
        let mut due: Option<Instant> = None;
        loop {
            tokio::select! {
                found = found.next() => {
                    let Some(found) = found else { bail!("the watch of the ConfigMap of hosts has \
                        ended") };
                    hosts.there = Some(found);
                    due.get_or_insert_with(debounced);
                }
                Ok(()) = service_rx.changed() => drop(due.get_or_insert_with(debounced)),
                _ = watcher.next() => drop(due.get_or_insert_with(debounced)),
                () = sleep_until(due) => {
                    let service = service_rx.borrow().address;
                    due = hosts.bring_up_to_date(&directory, service).await;
                }
                () = drain.begun() => return Ok(()),
            }
        }
    }
}

struct Hosts {
    cluster: Cluster,
    place: HostsPlace,
    /// The last version of the ConfigMap; `None`: it was not read yet.
    there: Option<Option<ConfigMap>>,
    problem: Problem,
    /// The state that was last logged.
    left_out: usize,
}

impl Hosts {
    /// Writes the differences. Returns the time of the next check, if one is due before the next
    /// change.
    async fn bring_up_to_date(
        &mut self,
        directory: &Directory,
        service: Option<IpAddr>,
    ) -> Option<Instant> {
        // Until the cluster has reported its nodes, unknown ones do not count as deleted.
        if directory.freshness() != Some(Freshness::Live) {
            return Some(Instant::now() + PAUSE);
        }
        let there = self.there.as_ref()?;
        let edges = match self.cluster.config.hosts_address {
            HostsAddress::Vip => EdgesAt::Vips,
            // Without the address nothing would be right: the watch of the Service delivers it.
            HostsAddress::Service => EdgesAt::Service(service?),
        };
        let nodes = addresses(directory, edges);
        let (wanted, left_out) = updated(there.as_ref(), &nodes, &self.place);
        self.report_left_out(left_out);
        let wanted = wanted?;
        let config_map = &self.place.config_map;
        match write(&self.cluster.config_maps(&config_map.namespace), &wanted).await {
            Ok(written) => {
                tracing::info!(
                    %config_map,
                    nodes = nodes.len() - left_out,
                    "ConfigMap of hosts written"
                );
                self.there = Some(Some(written));
                self.problem = Problem::default();
                None
            }
            // Another proxy was faster. The watch will deliver its version.
            Err(error) if error.is_conflict() => Some(debounced()),
            Err(error) => {
                if let Some(reason) = self.problem.record(Some(chain(&error))) {
                    tracing::warn!(
                        %config_map, reason,
                        "ConfigMap of hosts not written: the proxy needs the rights to list, \
                         watch, create and update it"
                    );
                }
                Some(Instant::now() + PAUSE)
            }
        }
    }

    fn report_left_out(&mut self, left_out: usize) {
        if left_out > 0 && left_out != self.left_out {
            tracing::error!(
                config_map = %self.place.config_map, nodes = left_out, bytes = MAX_BYTES,
                "ConfigMap of hosts is full, these last nodes have no name there: let CoreDNS \
                 forward to the redirector instead"
            );
        }
        self.left_out = left_out;
    }
}

/// The addresses by which edge nodes are reached.
#[derive(Clone, Copy)]
enum EdgesAt {
    Vips,
    Service(IpAddr),
}

/// The lines of the file. Every pod would be answered by them, so each node has the name by which
/// DNS and the proxies know it: alone, or in the zone where alone it may be another host's.
fn addresses(directory: &Directory, edges_at: EdgesAt) -> BTreeMap<NodeName, IpAddr> {
    let mut lines = BTreeMap::new();
    for (node, cloud) in directory.clouds().iter() {
        if let (Some(name), Some(address)) = (line_name(directory, node), cloud.addresses.first()) {
            lines.insert(name, *address);
        }
    }
    for node in directory.nodes() {
        if node.source != Source::Cluster {
            continue;
        }
        let address = match edges_at {
            EdgesAt::Vips => node.vip4.into(),
            EdgesAt::Service(address) => address,
        };
        if let Some(name) = line_name(directory, &node.name) {
            lines.insert(name, address);
        }
    }
    lines
}

fn line_name(directory: &Directory, node: &NodeName) -> Option<NodeName> {
    directory.names_of(node).first()?.parse().ok()
}

/// The updated ConfigMap, or `None` if it is up to date, and the number of nodes that did not fit.
fn updated(
    there: Option<&ConfigMap>,
    nodes: &BTreeMap<NodeName, IpAddr>,
    place: &HostsPlace,
) -> (Option<ConfigMap>, usize) {
    let mut config_map = match there {
        Some(there) => there.clone(),
        None => empty(&place.config_map.name),
    };
    let capacity = MAX_BYTES.saturating_sub(bytes_of_others(&config_map, place));
    let data = config_map.data.get_or_insert_default();
    let before = data.get(&place.key).map_or("", String::as_str);
    let Merged { text, left_out } = merged(before, nodes, capacity);
    if text == before {
        return (None, left_out);
    }
    data.insert(place.key.clone(), text);
    (Some(config_map), left_out)
}

/// How much of the ConfigMap is under other keys.
fn bytes_of_others(config_map: &ConfigMap, place: &HostsPlace) -> usize {
    let mut bytes = 0;
    for (key, text) in config_map.data.iter().flatten() {
        if *key != place.key {
            bytes += text.len();
        }
    }
    for (_, content) in config_map.binary_data.iter().flatten() {
        bytes += content.0.len();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> HostsPlace {
        "kube-system/yurt-tunnel-nodes".parse().unwrap()
    }

    fn nodes() -> BTreeMap<NodeName, IpAddr> {
        [("edge-1".parse().unwrap(), "198.18.0.1".parse().unwrap())].into()
    }

    #[test]
    fn a_missing_config_map_is_made_and_an_equal_one_left_alone() {
        let (made, _) = updated(None, &nodes(), &place());
        let made = made.unwrap();
        assert_eq!(
            made.data.as_ref().unwrap()["tunnel-nodes"],
            "198.18.0.1\tedge-1 # culvert\n"
        );
        assert_eq!(updated(Some(&made), &nodes(), &place()), (None, 0));
        assert_eq!(
            updated(None, &BTreeMap::new(), &place()),
            (None, 0),
            "nobody needs an empty one"
        );
    }

    #[test]
    fn other_keys_and_the_version_stay_and_take_their_room() {
        let mut there = empty("yurt-tunnel-nodes");
        there.metadata.resource_version = Some("7".into());
        there.data = Some([("other".to_owned(), "x".repeat(MAX_BYTES - 10))].into());
        assert_eq!(
            updated(Some(&there), &nodes(), &place()),
            (None, 1),
            "no room for a line"
        );
        there
            .data
            .as_mut()
            .unwrap()
            .insert("other".into(), "x".repeat(MAX_BYTES - 100));
        let (written, left_out) = updated(Some(&there), &nodes(), &place());
        let written = written.unwrap();
        assert_eq!(
            (written.metadata.resource_version.as_deref(), left_out),
            (Some("7"), 0)
        );
        assert!(written.data.unwrap().contains_key("other"));
    }

    #[test]
    fn a_node_has_the_name_that_dns_answers_and_no_foreign_one() {
        let state = tempfile::tempdir().unwrap();
        let directory = Directory::for_tests(state.path(), &[]);
        for name in ["edge-1", "registry.example.com", "edge-7.edge.internal"] {
            let node: NodeName = name.parse().unwrap();
            directory
                .editor()
                .put(&node, Vec::new(), vec![9100])
                .unwrap();
        }
        let names = |node: &str| line_name(&directory, &node.parse().unwrap()).unwrap();
        assert_eq!(names("edge-1").as_str(), "edge-1");
        assert_eq!(
            names("registry.example.com").as_str(),
            "registry.example.com.edge.internal"
        );
        assert_eq!(
            names("edge-7.edge.internal").as_str(),
            "edge-7.edge.internal"
        );
    }
}
