//! Reads nft's listing of the table.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use culvert_api::installed::SteeredPackets;
use ipnet::IpNet;

use super::expressions::Family;
use super::render::{Replace, render};
use super::table::{ADMITTED, GUARD, Layout, REFUSE_BRIDGES, STEER, TableSpec, edge_set_name};

/// The elements of the table's sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableElements {
    edges: BTreeSet<SocketAddr>,
    vips: BTreeSet<IpNet>,
    /// Elements of other kinds, such as a range that another program has added.
    foreign: usize,
}

impl TableElements {
    /// The elements after a transaction that installs `spec`.
    pub(super) fn of(spec: &TableSpec) -> Self {
        let mut elements = Self {
            edges: spec.edges.clone(),
            ..Self::default()
        };
        for family in Family::BOTH {
            if let Some(range) = spec.vip_range(family) {
                elements.vips.insert(range.trunc());
            }
        }
        elements
    }

    /// The edge addresses that are not among `wanted`.
    pub(super) fn edges_beside(&self, wanted: &BTreeSet<SocketAddr>) -> Vec<SocketAddr> {
        self.edges.difference(wanted).copied().collect()
    }

    /// The elements after `gone` have been removed.
    pub(super) fn without(mut self, gone: &[SocketAddr]) -> Self {
        for edge in gone {
            self.edges.remove(edge);
        }
        self
    }

    /// Whether this port of an edge address is in a set.
    pub(crate) fn has_edge(&self, edge: SocketAddr) -> bool {
        self.edges.contains(&edge)
    }

    /// The edge addresses in the sets.
    pub(crate) fn edge_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.edges.iter().map(SocketAddr::ip)
    }

    /// Whether the address is in a range of VIPs.
    pub(crate) fn has_vip(&self, ip: IpAddr) -> bool {
        self.vips.iter().any(|range| range.contains(&ip))
    }

    /// The elements of nft's listing.
    pub(super) fn of_json(json: &serde_json::Value) -> Self {
        let objects = json["nftables"].as_array().into_iter().flatten();
        let mut found = Self::default();
        for object in objects {
            let Some(elements) = object["set"]["elem"].as_array() else {
                continue;
            };
            for element in elements {
                match (edge_of(element), vips_of(element)) {
                    (Some(edge), _) => _ = found.edges.insert(edge),
                    (None, Some(vips)) => _ = found.vips.insert(vips),
                    (None, None) => found.foreign += 1,
                }
            }
        }
        found
    }
}

/// `{"concat": ["10.0.3.7", 9100]}`.
fn edge_of(element: &serde_json::Value) -> Option<SocketAddr> {
    let [ip, port] = element["concat"].as_array()?.as_slice() else {
        return None;
    };
    Some(SocketAddr::new(
        ip.as_str()?.parse().ok()?,
        port.as_u64()?.try_into().ok()?,
    ))
}

/// `{"prefix": {"addr": "198.18.0.0", "len": 15}}`; nft lists a range of one address as that
/// address.
fn vips_of(element: &serde_json::Value) -> Option<IpNet> {
    if let Some(ip) = element.as_str() {
        return ip.parse::<IpAddr>().ok().map(IpNet::from);
    }
    let prefix = element.get("prefix")?;
    IpNet::new(
        prefix["addr"].as_str()?.parse().ok()?,
        prefix["len"].as_u64()?.try_into().ok()?,
    )
    .ok()
}

/// What rules have counted since the table was installed: first packets of connections that were
/// steered, those of them that were admitted, packets of other hosts to the intercept ports that were
/// dropped, and packets to edge nodes that outer bridges forwarded and that were refused.
pub(super) fn counts(json: &serde_json::Value) -> [u64; 4] {
    let steered = steered(json);
    [
        steered.begun,
        steered.admitted,
        guard_drops(json),
        refused_of_bridges(json),
    ]
}

/// Counts the first packets of connections that the table steered, in nft's listing.
fn steered(json: &serde_json::Value) -> SteeredPackets {
    let mut found = SteeredPackets::default();
    for object in json["nftables"].as_array().into_iter().flatten() {
        let rule = &object["rule"];
        let mut packets = 0;
        for statement in rule["expr"].as_array().into_iter().flatten() {
            packets += statement["counter"]["packets"].as_u64().unwrap_or_default();
        }
        if rule["chain"] == STEER {
            found.begun += packets;
        } else if rule["chain"] == ADMITTED {
            found.admitted += packets;
        }
    }
    found
}

/// The parts of a table: enough to report that it is there, and whether it refuses a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableParts {
    pub(crate) sets: usize,
    pub(crate) chains: usize,
    pub(crate) rules: usize,
    steered_sets: BTreeSet<&'static str>,
}

impl TableParts {
    /// The parts after a transaction that installs `spec`.
    pub(super) fn of(spec: &TableSpec, layout: Layout) -> Result<Self, serde_json::Error> {
        // Elements are not counted, and may be many.
        let rules = TableSpec {
            edges: BTreeSet::new(),
            ..spec.clone()
        };
        let commands = serde_json::to_value(render(&rules, layout, Replace::Tables))?;
        Ok(Self::of_json(&commands))
    }

    /// The parts of nft's listing, or of our commands. It is not parsed into the nftables crate's
    /// types, which do not cover all that nft may print.
    pub(super) fn of_json(json: &serde_json::Value) -> Self {
        let objects = json["nftables"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let objects = objects
            .iter()
            .map(|object| object.get("add").unwrap_or(object));
        let mut parts = Self::default();
        for object in objects {
            parts.sets += usize::from(object.get("set").is_some());
            parts.chains += usize::from(object.get("chain").is_some());
            let Some(rule) = object.get("rule") else {
                continue;
            };
            parts.rules += 1;
            if rule["chain"] == STEER {
                let text = rule["expr"].to_string();
                for set in Family::BOTH.map(edge_set_name) {
                    if text.contains(&format!("\"@{set}\"")) {
                        parts.steered_sets.insert(set);
                    }
                }
            }
        }
        parts
    }

    /// Whether both have as many sets and chains.
    pub(super) fn has_sets_and_chains_of(&self, other: &Self) -> bool {
        self.sets == other.sets && self.chains == other.chains
    }

    /// Whether the elements of this address' family are refused, without an intercept address.
    pub(crate) fn refuses(&self, ip: IpAddr) -> bool {
        !self.steered_sets.contains(edge_set_name(Family::of(ip)))
    }
}

/// The packets that rules of the guard have dropped, by their counters.
fn guard_drops(listing: &serde_json::Value) -> u64 {
    let objects = listing["nftables"].as_array().into_iter().flatten();
    let mut drops = 0;
    for object in objects {
        let rule = &object["rule"];
        let Some(statements) = rule["expr"].as_array() else {
            continue;
        };
        let drops_packets = statements
            .iter()
            .any(|statement| statement.get("drop").is_some());
        if rule["chain"] != GUARD || !drops_packets {
            continue;
        }
        for statement in statements {
            let packets = statement["counter"]["packets"].as_u64();
            drops += packets.unwrap_or_default();
        }
    }
    drops
}

/// The packets that were refused since they came in by outer bridges.
fn refused_of_bridges(listing: &serde_json::Value) -> u64 {
    let mut refused = 0;
    for object in listing["nftables"].as_array().into_iter().flatten() {
        let rule = &object["rule"];
        if rule["chain"] != REFUSE_BRIDGES {
            continue;
        }
        for statement in rule["expr"].as_array().into_iter().flatten() {
            let packets = statement["counter"]["packets"].as_u64();
            refused += packets.unwrap_or_default();
        }
    }
    refused
}

/// A listing without what changes by itself: counters, elements, and their order in a rule. Handles
/// stay: a replaced rule has a new one.
pub(super) fn fixed(mut listing: serde_json::Value) -> serde_json::Value {
    let objects = listing["nftables"].take();
    let objects = objects
        .as_array()
        .into_iter()
        .flatten()
        .filter(|object| object.get("metainfo").is_none());
    serde_json::Value::Array(objects.cloned().map(without_counts).collect())
}

fn without_counts(mut value: serde_json::Value) -> serde_json::Value {
    if let Some(serde_json::Value::Object(set)) = value.get_mut("set") {
        set.remove("elem");
    }
    strip(&mut value);
    value
}

fn strip(value: &mut serde_json::Value) {
    if let serde_json::Value::Object(fields) = value {
        fields.remove("counter");
        if let Some(serde_json::Value::Array(elements)) = fields.get_mut("set") {
            elements.sort_by_key(ToString::to_string);
        }
        fields.values_mut().for_each(strip);
    } else if let serde_json::Value::Array(items) = value {
        items.iter_mut().for_each(strip);
    }
}

#[cfg(test)]
mod tests;
