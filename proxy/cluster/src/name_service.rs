//! Keeps the Service of name-routed ports (`--name-service`) in step with the cluster's ports, and
//! names the meaning of its ports to the proxy.
//!
//! Which own port of the proxies stands for a port of the nodes is written in the Service itself, as
//! the `targetPort` of each entry. So all proxies agree without a leader: each one computes what is
//! missing and replaces the version that it has read; the one that comes late sees a conflict, and
//! then what the other one wrote. The last content is on disk, for a proxy that starts while the API
//! server is away.

mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use culvert_daemon::{Drain, Problem, chain};
use culvert_proxy_core::directory::ClusterPorts;
use culvert_proxy_core::state::{StateDir, StateFile};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::Cluster;
use super::debounce::{debounced, sleep_until};
use super::follow::follow_object;
use super::last_seen::LastSeen;
use super::request::{RequestError, ask};
pub(crate) use ports::OwnPorts;
use ports::{NeededPorts, meaning, needed};

/// The pause after a failed write.
const PAUSE: Duration = Duration::from_secs(15);

const LAST: StateFile = StateFile {
    name: "name-service.json",
    what: "the ports of the Service of --name-service",
};

/// What the Service says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameService {
    /// For each own port of the proxy, the port of the nodes.
    pub ports: BTreeMap<u16, u16>,
    /// Its ClusterIP.
    pub(crate) address: Option<IpAddr>,
}

impl NameService {
    /// What the Service said when it was last read.
    pub fn load(state: &StateDir) -> Self {
        match state.read(LAST) {
            Ok(last) => last.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(
                    reason = chain(&error),
                    "last ports of the Service not usable"
                );
                Self::default()
            }
        }
    }

    fn of(service: &Service, own: OwnPorts) -> Self {
        let Some(spec) = &service.spec else {
            return Self::default();
        };
        let entries = spec.ports.as_deref().unwrap_or_default();
        Self {
            ports: meaning(entries, own),
            // A headless Service has the word None.
            address: spec.cluster_ip.as_ref().and_then(|ip| ip.parse().ok()),
        }
    }
}

impl Cluster {
    /// Keeps the Service in step until the drain begins, if one is configured, and tells `said_tx`
    /// what it says. `ports_rx` are the cluster's ports once they are known.
    pub(crate) async fn follow_name_service(
        self,
        mut ports_rx: watch::Receiver<Option<ClusterPorts>>,
        said_tx: watch::Sender<NameService>,
        state: StateDir,
        drain: Drain,
    ) -> Result<()> {
        let Some(name) = self.config.name_service.clone() else {
            drain.begun().await;
            return Ok(());
        };
        let api: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut found = std::pin::pin!(follow_object(api.clone(), &name, report_unreadable));
        let mut keeper = Keeper {
            api,
            name,
            own: self.config.name_ports,
            there: None,
            problem: Problem::default(),
            left_out: Vec::new(),
        };
        let mut last = LastSeen::new(state, LAST);
        let mut due: Option<Instant> = None;
        loop {
            tokio::select! {
                found = found.next() => {
                    let Some(found) = found else { bail!("the watch of the Service has ended") };
                    keeper.read(found, &said_tx, &mut last).await;
                    due.get_or_insert_with(debounced);
                }
                Ok(()) = ports_rx.changed() => drop(due.get_or_insert_with(debounced)),
                () = sleep_until(due) => {
                    let ports = ports_rx.borrow_and_update().clone();
                    due = keeper.bring_up_to_date(ports).await;
                }
                () = last.write_again() => {}
                () = drain.begun() => return Ok(()),
            }
        }
    }
}

struct Keeper {
    api: Api<Service>,
    name: String,
    own: OwnPorts,
    /// The last version of the Service.
    there: Option<Service>,
    problem: Problem,
    /// The ports without room that were last logged.
    left_out: Vec<u16>,
}

impl Keeper {
    /// Takes the Service's present version.
    async fn read(
        &mut self,
        found: Option<Service>,
        said_tx: &watch::Sender<NameService>,
        last: &mut LastSeen<NameService>,
    ) {
        if found.is_none() {
            let absent = "there is no such Service: apply deploy/components/name-service, or leave \
                          out --name-service";
            self.report(Some(absent.to_owned()));
        }
        let says = found
            .as_ref()
            .map(|service| NameService::of(service, self.own));
        self.there = found;
        let says = says.unwrap_or_default();
        let is_news = said_tx.send_if_modified(|said| {
            let is_news = *said != says;
            said.clone_from(&says);
            is_news
        });
        if is_news {
            tracing::info!(service = self.name, ports = ?says.ports, "ports of the Service");
            last.write(says).await;
        }
    }

    /// Writes the differences. Returns the time of the next attempt, if one is due before the next
    /// change.
    async fn bring_up_to_date(&mut self, ports: Option<ClusterPorts>) -> Option<Instant> {
        // Until the cluster has said its ports, no entry counts as superfluous.
        let ports = ports?;
        let mut service = self.there.clone()?;
        let all = all(&ports);
        let spec = service.spec.get_or_insert_default();
        let before = spec.ports.take().unwrap_or_default();
        let NeededPorts { entries, left_out } = needed(&before, &all, self.own);
        self.report_left_out(left_out);
        if entries == before {
            self.report(None);
            return None;
        }
        spec.ports = Some(entries);
        let parameters = PostParams::default();
        match ask(self.api.replace(&self.name, &parameters, &service)).await {
            Ok(_) => {
                tracing::info!(service = self.name, "ports of the Service written");
                self.report(None);
                None
            }
            // Another proxy was faster. The watch will deliver its version.
            Err(error) if error.is_conflict() => Some(debounced()),
            Err(error) => {
                self.report(Some(not_written(&error)));
                Some(Instant::now() + PAUSE)
            }
        }
    }

    fn report(&mut self, problem: Option<String>) {
        if let Some(reason) = self.problem.record(problem) {
            tracing::warn!(
                service = self.name,
                reason,
                "Service of --name-service not in step"
            );
        }
    }

    fn report_left_out(&mut self, left_out: Vec<u16>) {
        if !left_out.is_empty() && left_out != self.left_out {
            tracing::error!(
                service = self.name,
                ports = ?left_out,
                "the Service has no room for these ports: give --name-ports a longer range"
            );
        }
        self.left_out = left_out;
    }
}

fn all(ports: &ClusterPorts) -> BTreeSet<u16> {
    ports.ports.union(&ports.localhost_ports).copied().collect()
}

fn not_written(error: &RequestError) -> String {
    format!(
        "{}: the proxy needs the rights to list, watch and update it",
        chain(error)
    )
}

fn report_unreadable(reason: &str) {
    tracing::warn!(
        reason,
        "Service of --name-service not readable, keeping its last ports"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_says_its_ports_and_its_address() {
        let service = |cluster_ip: &str| {
            serde_json::from_value::<Service>(serde_json::json!({
                "metadata": {"name": "culvert-edge"},
                "spec": {"clusterIP": cluster_ip, "ports": [
                    {"name": "p-10250", "port": 10250, "targetPort": 7450},
                    {"name": "other", "port": 443, "targetPort": 8443},
                ]},
            }))
            .unwrap()
        };
        let own = "7450-7489".parse().unwrap();
        let says = NameService::of(&service("10.96.0.77"), own);
        assert_eq!(says.ports, [(7450, 10250)].into());
        assert_eq!(says.address, "10.96.0.77".parse().ok());
        assert_eq!(NameService::of(&service("None"), own).address, None);
    }

    #[test]
    fn what_it_said_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        assert_eq!(NameService::load(&state), NameService::default());
        let says = NameService {
            ports: [(7450, 10250)].into(),
            address: None,
        };
        state.write(LAST, &says).unwrap();
        assert_eq!(NameService::load(&state), says);
    }
}
