//! Which node a text names. DNS, CONNECT, name-routed ports, hosts files and `explain` read names
//! here and nowhere else, so that all of them mean the same node.

use std::fmt;

use crate::{MAX_NAME, NodeName, Zone};

/// Labels by which programs find a forward proxy or a router without being configured.
const DISCOVERY: [&str; 2] = ["wpad", "isatap"];

/// Labels that mean the asking host itself: RFC 6761, and what distributions write into
/// `/etc/hosts`.
const THIS_HOST: [&str; 5] = [
    "localhost",
    "localhost4",
    "localhost6",
    "ip6-localhost",
    "ip6-loopback",
];
/// Zones of names of addresses.
const REVERSE: [&str; 2] = ["in-addr.arpa", "ip6.arpa"];

/// The nodes among which a name is looked up.
pub trait NodeNames {
    /// The zone that may follow the name of every node.
    fn zone(&self) -> &Zone;
    /// The node that has exactly this name.
    fn kind(&self, name: &NodeName) -> Option<NodeKind<'_>>;
    /// Whether `zone` is the own zone of any edge node.
    fn is_own_zone(&self, zone: &str) -> bool;
}

/// What decides which zones may follow a node's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind<'a> {
    /// An edge node: `--dns-zone` and its own zone.
    Edge(Option<&'a Zone>),
    /// A cloud node: `--dns-zone` and the own zones of all edge nodes.
    Cloud,
}

/// Why a text names no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotNamed {
    /// No node has this name.
    Unknown,
    /// A node has this name, which means something else to programs that resolve it.
    Means(NodeName, OtherMeaning),
}

/// What a name means to those who resolve it, other than the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherMeaning {
    /// Such as `localhost`.
    ThisHost,
    /// Such as `10.1` or `0x7f`: resolvers of the C library read an IPv4 address.
    Number,
    /// A name of an address, in `in-addr.arpa` or `ip6.arpa`.
    Reverse,
    /// Such as `wpad`: browsers that ask for it use the host that has the name as their forward proxy.
    Discovery,
    /// A name with dots, outside the zones of nodes: perhaps another host's.
    OtherDomain,
}

impl fmt::Display for OtherMeaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ThisHost => "means the asking host itself",
            Self::Number => "is read as an IPv4 address",
            Self::Reverse => "is the name of an address",
            Self::Discovery => "is what programs ask for that look for a proxy or a router",
            Self::OtherDomain => "may be another host's name, since it ends in no zone of nodes",
        })
    }
}

/// The node that `text` names: first the node with this whole name, then one whose name is
/// followed by a zone, the longest name first. In any case, with or without a final dot.
///
/// A whole name with dots counts inside a zone of nodes only, and a node never has a name that
/// means the asking host, an address, or the zone itself.
///
/// # Errors
/// No node has the name, or it means something else.
pub fn node_named(text: &str, nodes: &impl NodeNames) -> Result<NodeName, NotNamed> {
    let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if text == nodes.zone().as_str() {
        return Err(NotNamed::Unknown);
    }
    let mut refused = NotNamed::Unknown;
    if let Some((node, kind)) = found(&text, nodes) {
        match meaning_of_whole(&node, kind, nodes) {
            None => return Ok(node),
            Some(meaning) => refused = NotNamed::Means(node, meaning),
        }
    }
    for (dot, _) in text.rmatch_indices('.') {
        let name = &text[..dot];
        let zone = &text[dot + 1..];
        let Some((node, kind)) = found(name, nodes) else {
            continue;
        };
        if !is_zone_of(zone, kind, nodes) {
            continue;
        }
        if !is_this_host(name) {
            return Ok(node);
        }
        refused = NotNamed::Means(node, OtherMeaning::ThisHost);
    }
    Err(refused)
}

/// All names by which clients reach a node, the shortest first: alone, in the zone, in its own
/// zone. Those that mean something else, or another node, are not among them.
#[must_use]
pub fn names_of(node: &NodeName, nodes: &impl NodeNames) -> Vec<String> {
    let mut names = vec![node.to_string(), nodes.zone().full_name(node)];
    if let Some(NodeKind::Edge(Some(own))) = nodes.kind(node) {
        names.push(own.full_name(node));
    }
    names.dedup();
    names.retain(|name| {
        name.len() <= MAX_NAME && node_named(name, nodes).is_ok_and(|named| named == *node)
    });
    names
}

/// Advice for a client that wants the node, and used a name that means something else.
#[must_use]
pub fn dial_instead(node: &NodeName, nodes: &impl NodeNames) -> String {
    match names_of(node, nodes).first() {
        Some(name) => format!("dial {name}"),
        None => format!("dial {node} by its address"),
    }
}

/// What a node's name always means, other than the node. No operator may give such a name.
#[must_use]
pub fn other_meaning(node: &NodeName) -> Option<OtherMeaning> {
    let name = node.as_str();
    if is_this_host(name) {
        Some(OtherMeaning::ThisHost)
    } else if is_reverse(name) {
        Some(OtherMeaning::Reverse)
    } else if is_number(name) {
        Some(OtherMeaning::Number)
    } else if DISCOVERY.contains(&name) {
        Some(OtherMeaning::Discovery)
    } else {
        None
    }
}

fn found<'a, N: NodeNames>(name: &str, nodes: &'a N) -> Option<(NodeName, NodeKind<'a>)> {
    let name: NodeName = name.parse().ok()?;
    let kind = nodes.kind(&name)?;
    Some((name, kind))
}

/// What a node's name means without a zone after it, other than the node.
fn meaning_of_whole(
    node: &NodeName,
    kind: NodeKind<'_>,
    nodes: &impl NodeNames,
) -> Option<OtherMeaning> {
    let always = other_meaning(node);
    if always.is_some() {
        return always;
    }
    let name = node.as_str();
    let mut dots = name.match_indices('.');
    let is_inside = dots.any(|(dot, _)| is_zone_of(&name[dot + 1..], kind, nodes));
    if is_inside || !name.contains('.') {
        None
    } else {
        Some(OtherMeaning::OtherDomain)
    }
}

fn is_zone_of(zone: &str, kind: NodeKind<'_>, nodes: &impl NodeNames) -> bool {
    if zone == nodes.zone().as_str() {
        return true;
    }
    match kind {
        NodeKind::Edge(own) => own.is_some_and(|own| own.as_str() == zone),
        NodeKind::Cloud => nodes.is_own_zone(zone),
    }
}

fn is_this_host(name: &str) -> bool {
    let first = name.split('.').next().unwrap_or_default();
    let last = name.rsplit('.').next().unwrap_or_default();
    THIS_HOST.contains(&first) || THIS_HOST.contains(&last)
}

fn is_reverse(name: &str) -> bool {
    REVERSE
        .iter()
        .any(|zone| name == *zone || is_below(name, zone))
}

/// Whether `inet_aton` or a browser takes the text for an address: its last label is a number.
fn is_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    match last.strip_prefix("0x") {
        Some(hex) => hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Whether a name is below a zone, both in lower case and without a final dot.
pub(crate) fn is_below(name: &str, zone: &str) -> bool {
    name.strip_suffix(zone)
        .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    struct Nodes {
        zone: Zone,
        edges: BTreeMap<NodeName, Option<Zone>>,
        clouds: Vec<NodeName>,
    }

    impl NodeNames for Nodes {
        fn zone(&self) -> &Zone {
            &self.zone
        }

        fn kind(&self, name: &NodeName) -> Option<NodeKind<'_>> {
            if let Some(own) = self.edges.get(name) {
                return Some(NodeKind::Edge(own.as_ref()));
            }
            self.clouds.contains(name).then_some(NodeKind::Cloud)
        }

        fn is_own_zone(&self, zone: &str) -> bool {
            let mut own = self.edges.values().flatten();
            own.any(|own| own.as_str() == zone)
        }
    }

    /// `edges` are names, or names and own zones with `@` between them.
    fn nodes(edges: &[&str], clouds: &[&str]) -> Nodes {
        let mut made = Nodes {
            zone: "edge.internal".parse().unwrap(),
            edges: BTreeMap::new(),
            clouds: clouds.iter().map(|name| name.parse().unwrap()).collect(),
        };
        for edge in edges {
            let (name, zone) = edge.split_once('@').unwrap_or((edge, ""));
            made.edges.insert(name.parse().unwrap(), zone.parse().ok());
        }
        made
    }

    #[track_caller]
    fn assert_named(nodes: &Nodes, text: &str, node: &str) {
        let named = node_named(text, nodes).map(|node| node.to_string());
        assert_eq!(named, Ok(node.to_owned()), "{text}");
    }

    #[track_caller]
    fn assert_unknown(nodes: &Nodes, text: &str) {
        assert_eq!(node_named(text, nodes), Err(NotNamed::Unknown), "{text}");
    }

    #[track_caller]
    fn assert_means(nodes: &Nodes, text: &str, meaning: OtherMeaning) {
        let refused = node_named(text, nodes);
        assert!(
            matches!(&refused, Err(NotNamed::Means(_, other)) if *other == meaning),
            "{text}: {refused:?}"
        );
    }

    #[test]
    fn the_whole_name_comes_before_the_name_without_the_zone() {
        let both = nodes(&["edge-1", "edge-1.edge.internal"], &[]);
        assert_named(&both, "edge-1", "edge-1");
        assert_named(&both, "edge-1.edge.internal", "edge-1.edge.internal");
        assert_named(&both, "EDGE-1.Edge.Internal.", "edge-1.edge.internal");
        let whole = nodes(&["edge-7.edge.internal"], &[]);
        for text in ["edge-7.edge.internal", "edge-7.edge.internal.edge.internal"] {
            assert_named(&whole, text, "edge-7.edge.internal");
        }
        assert_unknown(&whole, "edge-7");
        let short = nodes(&["edge-1"], &[]);
        assert_named(&short, "edge-1.edge.internal", "edge-1");
    }

    #[test]
    fn a_name_with_dots_counts_inside_a_zone_of_the_node_only() {
        let nodes = nodes(
            &[
                "press.hall-x",
                "registry.example.com",
                "edge-7.corp.example@corp.example",
                "edge-8.corp.example",
            ],
            &["db.example.com", "db.corp.example"],
        );
        for text in ["press.hall-x", "registry.example.com", "db.example.com"] {
            assert_means(&nodes, text, OtherMeaning::OtherDomain);
            assert_named(&nodes, &format!("{text}.edge.internal"), text);
        }
        assert_named(&nodes, "edge-7.corp.example", "edge-7.corp.example");
        assert_means(&nodes, "edge-8.corp.example", OtherMeaning::OtherDomain);
        // The operator's word for a zone counts for all cloud nodes.
        assert_named(&nodes, "db.corp.example", "db.corp.example");
    }

    #[test]
    fn an_own_zone_is_its_edge_nodes_and_every_cloud_nodes() {
        let nodes = nodes(&["edge-1@plant.example", "edge-2"], &["master-1"]);
        for text in ["edge-1.plant.example", "Edge-1.Plant.Example."] {
            assert_named(&nodes, text, "edge-1");
        }
        assert_named(&nodes, "master-1.plant.example", "master-1");
        for text in [
            "edge-2.plant.example",
            "master-1.other.example",
            "plant.example",
            "edge-1.internal",
            "x.edge-1.edge.internal",
        ] {
            assert_unknown(&nodes, text);
        }
    }

    #[test]
    fn what_means_something_else_is_no_nodes_name() {
        let nodes = nodes(
            &[
                "localhost",
                "localhost.localdomain",
                "ip6-localhost",
                "app.localhost",
                "10",
                "10.1",
                "0x7f",
                "4.3.2.1.in-addr.arpa",
                "wpad",
            ],
            &[],
        );
        for text in [
            "localhost",
            "LOCALHOST.",
            "localhost.localdomain",
            "ip6-localhost",
            "app.localhost",
            "localhost.edge.internal",
            "localhost.localdomain.edge.internal",
        ] {
            assert_means(&nodes, text, OtherMeaning::ThisHost);
        }
        assert_means(&nodes, "4.3.2.1.in-addr.arpa", OtherMeaning::Reverse);
        assert_means(&nodes, "wpad", OtherMeaning::Discovery);
        for text in ["10", "10.1", "0x7f"] {
            assert_means(&nodes, text, OtherMeaning::Number);
            assert_named(&nodes, &format!("{text}.edge.internal"), text);
        }
    }

    #[test]
    fn the_zone_itself_is_no_node() {
        let mut nodes = nodes(&["edge", "edge.internal"], &[]);
        assert_unknown(&nodes, "edge.internal");
        assert_named(&nodes, "edge.internal.edge.internal", "edge.internal");
        nodes.zone = "edge".parse().unwrap();
        assert_unknown(&nodes, "edge.");
    }

    #[test]
    fn a_node_has_the_names_that_lead_to_it() {
        let nodes = nodes(
            &[
                "edge-1@plant.example",
                "edge-2",
                "edge-2.edge.internal",
                "press.hall-x",
                "localhost",
            ],
            &["master-1"],
        );
        let names = |node: &str| names_of(&node.parse().unwrap(), &nodes);
        assert_eq!(
            names("edge-1"),
            ["edge-1", "edge-1.edge.internal", "edge-1.plant.example"]
        );
        assert_eq!(names("edge-2"), ["edge-2"]);
        assert_eq!(names("edge-2.edge.internal"), ["edge-2.edge.internal"]);
        assert_eq!(names("press.hall-x"), ["press.hall-x.edge.internal"]);
        assert_eq!(names("master-1"), ["master-1", "master-1.edge.internal"]);
        assert_eq!(names("localhost"), [""; 0]);
    }

    #[test]
    fn a_new_node_may_have_no_name_that_cannot_lead_to_it() {
        let never = |name: &str| other_meaning(&name.parse().unwrap());
        for name in ["edge-1", "press.hall-2", "edge-7.edge.internal", "0cafe"] {
            assert_eq!(never(name), None, "{name}");
        }
        for (name, meaning) in [
            ("localhost", OtherMeaning::ThisHost),
            ("localhost.localdomain", OtherMeaning::ThisHost),
            ("10.1", OtherMeaning::Number),
            ("1.in-addr.arpa", OtherMeaning::Reverse),
            ("wpad", OtherMeaning::Discovery),
            ("isatap", OtherMeaning::Discovery),
        ] {
            assert_eq!(never(name), Some(meaning), "{name}");
        }
    }
}
