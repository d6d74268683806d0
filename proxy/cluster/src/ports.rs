//! Keeps the ports that are steered on all edge nodes equal to two ConfigMaps: `culvert-ports`, and
//! YurtTunnel's.
//!
//! An invalid ConfigMap is reported. Its last valid content stays in force, also after a restart.

mod facts;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use culvert_api::named_ports::{CULVERT_PORTS, NamedPorts, Owner};
use culvert_daemon::{Drain, Problem};
use culvert_proxy_core::directory::{ClusterPorts, ClusterWriter};
use culvert_proxy_core::state::{StateDir, StateFile};
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::Cluster;
use super::configmap::ConfigMapName;
use super::events::{Events, Occurrence};
use super::last_seen::LastSeen;
pub use facts::{PortsFacts, UnreadPorts};

/// YurtTunnel's namespace, which does not depend on Culvert's.
const YURT_TUNNEL: (&str, &str) = ("kube-system", "yurt-tunnel-server-cfg");
/// Culvert's and YurtTunnel's.
const CONFIG_MAPS: usize = 2;
const LAST_GOOD: StateFile = StateFile {
    name: "cluster-ports.json",
    what: "the ports that the cluster's ConfigMaps last named",
};

/// The content of the file on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastGood {
    culvert: Option<NamedPorts>,
    yurt_tunnel: Option<NamedPorts>,
}

/// The last content of both ConfigMaps.
#[derive(Debug)]
struct Ports {
    last_good: LastGood,
    /// The problem of each ConfigMap, so that it is reported once.
    problems: BTreeMap<ConfigMapName, Problem>,
}

impl Cluster {
    /// Keeps the directory's ports up to date until the drain begins. `known_tx` gets them once both
    /// ConfigMaps have been read.
    pub(crate) async fn follow_ports(
        self,
        writer: ClusterWriter,
        state: StateDir,
        events: Events,
        known_tx: watch::Sender<Option<ClusterPorts>>,
        drain: Drain,
    ) -> Result<()> {
        let mut ports = Ports::in_force(&state, &writer).await;
        let mut last = LastSeen::new(state, LAST_GOOD);
        let (namespace, name) = YURT_TUNNEL;
        let yurt_tunnel = ConfigMapName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let mut changes = std::pin::pin!(stream::select(
            self.follow_ports_of(Owner::Culvert, self.own(CULVERT_PORTS)),
            self.follow_ports_of(Owner::YurtTunnel, yurt_tunnel)
        ));
        let mut read = BTreeSet::new();
        loop {
            let changed = tokio::select! {
                changed = changes.next() => changed,
                () = last.write_again() => continue,
                () = drain.begun() => return Ok(()),
            };
            let Some((owner, which, found)) = changed else {
                anyhow::bail!("the watches of ConfigMaps have ended")
            };
            let before = ports.last_good.clone();
            if let Some(problem) = ports.apply(owner, &which, found.as_ref()) {
                events.report(invalid_ports(&which, found, &problem));
            }
            if ports.last_good != before {
                put_in_force(&writer, &ports.last_good).await;
                last.write(ports.last_good.clone()).await;
            }
            read.insert(which);
            if read.len() == CONFIG_MAPS {
                publish(&known_tx, ports.last_good.combined());
            }
        }
    }

    /// What a ConfigMap says, and each change of it, with whose it is.
    fn follow_ports_of(
        &self,
        owner: Owner,
        which: ConfigMapName,
    ) -> impl stream::Stream<Item = (Owner, ConfigMapName, Option<ConfigMap>)> + Send + use<> {
        let found = self.follow(which.clone());
        found.map(move |found| (owner, which.clone(), found))
    }

    /// A ConfigMap in Culvert's own namespace.
    pub(super) fn own(&self, name: &str) -> ConfigMapName {
        ConfigMapName {
            namespace: self.namespace.clone(),
            name: name.to_owned(),
        }
    }
}

impl Ports {
    /// Reads the file on disk and puts its ports in force, if it has any.
    async fn in_force(state: &StateDir, writer: &ClusterWriter) -> Self {
        let ports = Self::load(state);
        if ports.last_good != LastGood::default() {
            put_in_force(writer, &ports.last_good).await;
        }
        ports
    }

    /// Reads the file on disk. If it cannot be read, the cluster provides the content again.
    fn load(state: &StateDir) -> Self {
        let last_good = match state.read(LAST_GOOD) {
            Ok(last_good) => last_good.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(
                    reason = culvert_daemon::chain(&error),
                    "last good ports not usable"
                );
                LastGood::default()
            }
        };
        Self {
            last_good,
            problems: BTreeMap::new(),
        }
    }

    /// Applies a ConfigMap, or its absence. If it is invalid, the last valid ports stay; without
    /// any, its valid entries are used. Returns a problem that is new.
    fn apply(
        &mut self,
        owner: Owner,
        which: &ConfigMapName,
        found: Option<&ConfigMap>,
    ) -> Option<String> {
        let last_good = match owner {
            Owner::Culvert => &mut self.last_good.culvert,
            Owner::YurtTunnel => &mut self.last_good.yurt_tunnel,
        };
        let problem = match found {
            None => {
                *last_good = None;
                None
            }
            Some(found) => {
                let (given, problem) =
                    NamedPorts::parse(owner, &found.data.clone().unwrap_or_default());
                if problem.is_none() {
                    *last_good = Some(given);
                } else {
                    last_good.get_or_insert(given);
                }
                problem.map(|problem| problem.to_string())
            }
        };
        let reported = self.problems.entry(which.clone()).or_default();
        reported.record(problem).map(str::to_owned)
    }
}

impl LastGood {
    /// Culvert's `ports` replace the default ones. Further ports are added. A port is dialled in one
    /// way only.
    fn combined(&self) -> ClusterPorts {
        let mut ports = ClusterPorts::default().ports;
        if let Some(given) = &self.culvert
            && let Some(replaced) = &given.ports
        {
            ports.clone_from(replaced);
        }
        let mut localhost_ports = BTreeSet::new();
        for given in self.culvert.iter().chain(&self.yurt_tunnel) {
            ports.extend(&given.further);
            localhost_ports.extend(&given.localhost_ports);
        }
        ports.retain(|port| !localhost_ports.contains(port));
        ClusterPorts {
            ports,
            localhost_ports,
        }
    }
}

/// Reports that a ConfigMap makes no sense.
fn invalid_ports(which: &ConfigMapName, found: Option<ConfigMap>, problem: &str) -> Occurrence {
    tracing::error!(
        config_map = %which,
        reason = problem,
        "ConfigMap not used, keeping the last good ports"
    );
    let uid = found.and_then(|found| found.metadata.uid);
    Occurrence::invalid_ports(which.clone(), uid.unwrap_or_default(), problem)
}

/// Publishes the ports that are in force, if they are others than before.
fn publish(known_tx: &watch::Sender<Option<ClusterPorts>>, ports: ClusterPorts) {
    let now = Some(ports);
    known_tx.send_if_modified(|known| {
        let is_news = *known != now;
        *known = now;
        is_news
    });
}

/// Writes to the directory.
async fn put_in_force(writer: &ClusterWriter, last_good: &LastGood) {
    let writer = writer.clone();
    let ports = last_good.combined();
    let put = tokio::task::spawn_blocking(move || {
        tracing::info!(
            ports = ?ports.ports,
            localhost_ports = ?ports.localhost_ports,
            "ports of the cluster"
        );
        writer.set_ports(ports)
    });
    match put.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(
            reason = culvert_daemon::chain(&error),
            "ports of the cluster not in force"
        ),
        Err(error) => tracing::error!(%error, "ports of the cluster not in force"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_map(ports: &str) -> ConfigMap {
        let data = BTreeMap::from([("ports".to_owned(), ports.to_owned())]);
        ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        }
    }

    fn which() -> ConfigMapName {
        ConfigMapName {
            namespace: "culvert-system".into(),
            name: CULVERT_PORTS.into(),
        }
    }

    fn ports() -> Ports {
        Ports {
            last_good: LastGood::default(),
            problems: BTreeMap::new(),
        }
    }

    fn apply(ports: &mut Ports, text: &str) -> (Vec<u16>, Option<String>) {
        let problem = ports.apply(Owner::Culvert, &which(), Some(&config_map(text)));
        (
            ports.last_good.combined().ports.into_iter().collect(),
            problem,
        )
    }

    #[test]
    fn a_mistake_is_told_once_and_the_last_good_ports_stay() {
        let mut ports = ports();
        assert_eq!(apply(&mut ports, "8080"), (vec![8080], None));
        let (kept, problem) = apply(&mut ports, "9090, x");
        assert_eq!(kept, [8080]);
        assert!(problem.unwrap().contains("\"x\" is not a port"));
        assert_eq!(
            apply(&mut ports, "9090, x"),
            (vec![8080], None),
            "known already"
        );
        assert_eq!(apply(&mut ports, "9090"), (vec![9090], None));
        assert!(
            apply(&mut ports, "9090, x").1.is_some(),
            "a new mistake, though of the same kind"
        );
    }

    #[test]
    fn before_the_first_good_one_what_is_right_of_it_is_used() {
        let mut ports = ports();
        assert_eq!(apply(&mut ports, "9090, x").0, [9090]);
        assert_eq!(apply(&mut ports, "9091, x").0, [9090]);
    }

    #[test]
    fn a_deleted_one_leaves_the_default_ports() {
        let mut ports = ports();
        apply(&mut ports, "8080");
        ports.apply(Owner::Culvert, &which(), None);
        assert_eq!(ports.last_good.combined(), ClusterPorts::default());
    }

    #[test]
    fn culverts_ports_replace_the_default_ones_and_yurt_tunnels_come_to_them() {
        let default = ClusterPorts::default();
        assert_eq!(LastGood::default().combined(), default);
        let culvert = NamedPorts {
            ports: Some([10250, 9100].into()),
            localhost_ports: [8080].into(),
            ..NamedPorts::default()
        };
        let yurt_tunnel = NamedPorts {
            further: [9445, 8080].into(),
            localhost_ports: [9100].into(),
            ..NamedPorts::default()
        };
        let both = LastGood {
            culvert: Some(culvert),
            yurt_tunnel: Some(yurt_tunnel.clone()),
        };
        assert_eq!(both.combined().ports, [9445, 10250].into());
        assert_eq!(both.combined().localhost_ports, [8080, 9100].into());
        let copied = LastGood {
            culvert: Some(yurt_tunnel),
            yurt_tunnel: None,
        };
        let ports = copied.combined().ports;
        assert!(ports.contains(&10250) && ports.contains(&9445), "{ports:?}");
    }

    #[test]
    fn what_was_good_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let mut before = ports();
        apply(&mut before, "8080");
        state.write(LAST_GOOD, &before.last_good).unwrap();
        let mut after = Ports::load(&state);
        assert_eq!(apply(&mut after, "9090, x").0, [8080]);
    }
}
