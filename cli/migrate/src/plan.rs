//! What to set up of Culvert: components, flags and ports. Pure.

use std::collections::BTreeSet;

use culvert_api::HostPort;
use culvert_api::named_ports::MAX_PORTS;
use culvert_api::ports::{AGENT_PORT, NODE_PORTS};
use strum::{EnumIter, IntoEnumIterator};

use super::meaning::{Meaning, Problem};

/// The node port of component `nodeport`.
const NODE_PORT: u16 = 30740;

/// A folder of deploy/components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumIter)]
pub(super) enum Component {
    NodePort,
    LoadBalancer,
    Hosts,
    EgressSelector,
    NamesOnly,
}

/// A DaemonSet of Culvert whose flags change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Program {
    Proxy,
    Agent,
}

/// A part of the other tunnel, in the order in which they are removed: what reads settings before
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Server,
    Agent,
    Names,
    Service,
    Settings,
}

/// A step that removes something of the other tunnel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Removal {
    Object {
        namespace: String,
        /// In lower case.
        kind: String,
        name: String,
    },
    ByHand(String),
}

/// What is equal to the settings that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    wanted: BTreeSet<Component>,
    /// Hosts at which agents reach the proxies.
    hosts: BTreeSet<culvert_api::Host>,
    /// Ports that are steered besides the usual ones.
    ports: BTreeSet<u16>,
    localhost_ports: BTreeSet<u16>,
    /// Ports that agents dial though they are steered by name only.
    agent_ports: BTreeSet<u16>,
    /// Commands before the kustomization is applied.
    pub(super) before: BTreeSet<String>,
    pub(super) removals: BTreeSet<(Part, Removal)>,
    /// What holds from then on.
    pub(super) after: BTreeSet<String>,
    /// kube-apiserver asks the proxy for each connection.
    pub(super) egress: bool,
}

impl Component {
    pub(super) const fn folder(self) -> &'static str {
        match self {
            Self::NodePort => "nodeport",
            Self::LoadBalancer => "loadbalancer",
            Self::Hosts => "hosts",
            Self::EgressSelector => "egress-selector",
            Self::NamesOnly => "names-only",
        }
    }
}

impl Program {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Proxy => "culvert-proxy",
            Self::Agent => "culvert-agent",
        }
    }
}

impl Plan {
    pub(super) fn require(&mut self, component: Component) {
        self.wanted.insert(component);
        if component == Component::EgressSelector {
            self.wanted.insert(Component::NamesOnly);
            self.egress = true;
        }
    }

    /// A command before the kustomization is applied.
    pub(super) fn before(&mut self, command: impl Into<String>) {
        self.before.insert(command.into());
    }

    /// What holds when the other tunnel is gone.
    pub(super) fn after(&mut self, text: impl Into<String>) {
        self.after.insert(text.into());
    }

    /// A step of an operator that removes something.
    pub(super) fn remove_by_hand(&mut self, part: Part, step: impl Into<String>) {
        self.removals.insert((part, Removal::ByHand(step.into())));
    }

    /// Deletes an object. A name that a shell would take for something else is left out.
    pub(super) fn delete(&mut self, part: Part, namespace: &str, kind: &str, name: &str) {
        if [namespace, kind, name].into_iter().all(is_plain) {
            let removal = Removal::Object {
                namespace: namespace.to_owned(),
                kind: kind.to_lowercase(),
                name: name.to_owned(),
            };
            self.removals.insert((part, removal));
        }
    }

    /// Steers further ports on all edge nodes.
    pub(super) fn steer(&mut self, ports: impl IntoIterator<Item = u16>) {
        self.ports.extend(ports);
    }

    /// Steers further ports, which agents dial on loopback.
    pub(super) fn steer_to_loopback(&mut self, ports: impl IntoIterator<Item = u16>) {
        self.localhost_ports.extend(ports);
    }

    /// Lets agents dial a port.
    pub(super) fn allow(&mut self, port: u16) {
        self.agent_ports.insert(port);
    }

    /// Agents dial this host, at Culvert's own port. A variable such as `$(HOST)` names none.
    pub(super) fn advertise(&mut self, address: &str) -> Result<Meaning, String> {
        if address.contains('$') {
            return Ok(Meaning::equal(
                "--advertise of culvert-proxy: the value is a variable here, so write it yourself",
            ));
        }
        let dialled: HostPort = address.parse().map_err(|wrong| format!("{wrong}"))?;
        let meaning = Meaning::equal(format!(
            "--advertise of culvert-proxy, with Culvert's own port in place of {}: open or forward \
             it there",
            dialled.port
        ));
        self.hosts.insert(dialled.host);
        Ok(meaning)
    }

    /// The components, in a stable order. A load balancer includes the node port.
    pub(super) fn components(&self) -> Vec<Component> {
        let balanced = self.wanted.contains(&Component::LoadBalancer);
        let mut components = Vec::new();
        for component in Component::iter() {
            let is_included = balanced && component == Component::NodePort;
            if self.wanted.contains(&component) && !is_included {
                components.push(component);
            }
        }
        components
    }

    /// The keys and values of ConfigMap culvert-ports, unless the usual ports are enough.
    pub(super) fn config_map(&self) -> Option<Vec<(&'static str, String)>> {
        let ports = self.all_ports();
        let localhost = &self.localhost_ports;
        if localhost.is_empty() && ports == BTreeSet::from(NODE_PORTS) {
            return None;
        }
        let mut data = vec![("ports", list(&ports))];
        if !localhost.is_empty() {
            data.push(("localhost-ports", list(localhost)));
        }
        Some(data)
    }

    /// The flags that come to those of the manifests.
    pub(super) fn flags(&self) -> Vec<(Program, String)> {
        let port = if self.components().contains(&Component::NodePort) {
            NODE_PORT
        } else {
            AGENT_PORT
        };
        let mut flags = Vec::new();
        for host in &self.hosts {
            let address = HostPort {
                host: host.clone(),
                port,
            };
            flags.push((Program::Proxy, format!("--advertise={address}")));
        }
        // Agents read the ConfigMap too. A port that both have would stay open when it leaves the
        // ConfigMap.
        let steered = self.all_ports();
        let mut further = self.agent_ports.clone();
        further.retain(|port| !steered.contains(port) && !self.localhost_ports.contains(port));
        if !further.is_empty() {
            flags.push((Program::Agent, format!("--port={}", list(&further))));
        }
        flags
    }

    /// Whether the proxy will accept its ports.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let count = self.all_ports().len() + self.localhost_ports.len();
        if count <= MAX_PORTS {
            return Ok(());
        }
        Err(Problem::new(
            "ports",
            format!(
                "{count} with the usual ones, and culvert-ports takes {MAX_PORTS}: leave out those \
                 that are dialled by name, because every port of a node is reached by its name"
            ),
        ))
    }

    fn all_ports(&self) -> BTreeSet<u16> {
        let mut ports: BTreeSet<u16> = NODE_PORTS.into();
        ports.extend(&self.ports);
        ports.retain(|port| !self.localhost_ports.contains(port));
        ports
    }
}

fn list(ports: &BTreeSet<u16>) -> String {
    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
    ports.join(",")
}

/// Whether a shell takes the text as it is.
fn is_plain(text: &str) -> bool {
    let mut letters = text.chars();
    !text.is_empty()
        && letters.all(|letter| letter.is_ascii_alphanumeric() || "-.".contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_found_changes_nothing() {
        let plan = Plan::default();
        assert_eq!((plan.config_map(), plan.flags()), (None, Vec::new()));
        assert!(plan.components().is_empty());
    }

    #[test]
    fn agents_dial_culverts_own_port_and_the_node_port_where_there_is_one() {
        let mut plan = Plan::default();
        plan.advertise("tunnel.example:10262").unwrap();
        let flag = |text: &str| vec![(Program::Proxy, text.to_owned())];
        assert_eq!(plan.flags(), flag("--advertise=tunnel.example:7400"));
        plan.require(Component::NodePort);
        assert_eq!(plan.flags(), flag("--advertise=tunnel.example:30740"));
        plan.require(Component::LoadBalancer);
        assert_eq!(plan.flags(), flag("--advertise=tunnel.example:7400"));
        assert_eq!(plan.components(), [Component::LoadBalancer]);
        plan.advertise("$(ADDRESS):10262").unwrap();
        assert_eq!(plan.flags(), flag("--advertise=tunnel.example:7400"));
        assert!(plan.advertise("tunnel.example").is_err());
    }

    #[test]
    fn a_name_that_a_shell_would_run_is_in_no_command() {
        let mut plan = Plan::default();
        plan.delete(Part::Agent, "kube-system", "DaemonSet", "x; reboot");
        assert!(plan.removals.is_empty());
    }

    #[test]
    fn a_port_is_in_one_place_only() {
        let mut plan = Plan::default();
        plan.steer([9445, 10266]);
        plan.steer_to_loopback([10266]);
        plan.allow(22);
        assert_eq!(
            plan.config_map().unwrap(),
            [
                ("ports", "7429,9100,9445,10250,10255".to_owned()),
                ("localhost-ports", "10266".to_owned())
            ]
        );
        assert_eq!(plan.flags(), [(Program::Agent, "--port=22".to_owned())]);
        plan.check().unwrap();
        plan.steer(1..=24);
        assert!(plan.check().unwrap_err().to_string().contains("takes 28"));
    }
}
