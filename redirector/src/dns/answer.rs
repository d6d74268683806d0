//! The answer to a question. Pure.

use std::net::IpAddr;

use culvert_api::{NodeName, names_of, node_named};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, PTR, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use ipnet::IpNet;

use super::Origin;
use crate::config::NodeIps;
use crate::directory::{Directory, Names, Node};

/// VIPs are stable, but the set of names changes.
const TTL: u32 = 5;
/// Fields of SOA for secondary servers, which do not exist here.
const REFRESH: i32 = 3600;
const RETRY: i32 = 600;
const EXPIRE: i32 = 86_400;

/// An answer, without what is copied from the question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) code: ResponseCode,
    pub(super) answers: Vec<Record>,
    /// SOA of a negative answer: how long it may be cached.
    pub(super) soa: Option<Record>,
}

/// Answers a question for `name`, lower case and absolute.
pub(super) fn answer(
    directory: &Directory,
    origin: &Origin,
    node: NodeIps,
    name: &Name,
    kind: RecordType,
) -> Answer {
    let question = Question {
        directory,
        origin,
        node,
        name,
        kind,
    };
    if let Ok(net) = name.parse_arpa_name() {
        return question.reverse(net);
    }
    if origin.contains(name) {
        return question.in_zone();
    }
    question.bare()
}

/// The node that has a name.
#[derive(Clone, Copy)]
enum NamedNode<'a> {
    Edge(&'a Node),
    /// A cloud node's own addresses.
    Cloud(&'a [IpAddr]),
}

struct Question<'a> {
    directory: &'a Directory,
    origin: &'a Origin,
    node: NodeIps,
    name: &'a Name,
    kind: RecordType,
}

impl Question<'_> {
    /// In the zone, or the zone itself.
    fn in_zone(&self) -> Answer {
        let apex = &self.origin.apex;
        if self.name == apex {
            return self.apex(apex);
        }
        match self.named() {
            Some(node) => self.addresses(node, apex),
            None if self.is_above_a_node() => self.negative(ResponseCode::NoError, apex),
            None => self.negative(ResponseCode::NXDomain, apex),
        }
    }

    /// A node's name without the zone, or in the node's own zone. Each such name is a zone by
    /// itself; other names are refused.
    fn bare(&self) -> Answer {
        match self.named() {
            Some(_) if self.kind == RecordType::SOA => self.apex(self.name),
            Some(found) => self.addresses(found, self.name),
            None => refusal(),
        }
    }

    fn named(&self) -> Option<NamedNode<'_>> {
        // A dot inside a label is escaped, and no node's name has a backslash.
        let name = node_named(&self.name.to_ascii(), &self.names()).ok()?;
        if let Some(edge) = self.directory.nodes.get(&name) {
            return Some(NamedNode::Edge(edge));
        }
        let addresses = self.directory.clouds.get(&name)?;
        Some(NamedNode::Cloud(addresses))
    }

    fn names(&self) -> Names<'_> {
        Names {
            directory: self.directory,
            zone: &self.origin.zone,
        }
    }

    /// The name of a VIP.
    fn reverse(&self, net: IpNet) -> Answer {
        let ranges = self.directory.ranges;
        let range = match net {
            IpNet::V4(_) => ranges.vip4.map(IpNet::V4),
            IpNet::V6(_) => ranges.vip6.map(IpNet::V6),
        };
        let range = match range {
            Some(range) if range.contains(&net) => range,
            _ => return refusal(),
        };
        let apex = self.reverse_apex(range);
        if *self.name == apex && self.kind == RecordType::SOA {
            return self.apex(&apex);
        }
        if net.prefix_len() < net.max_prefix_len() {
            return self.negative(ResponseCode::NoError, &apex);
        }
        let Some(node) = self.directory.node_of_vip(net.addr()) else {
            return self.negative(ResponseCode::NXDomain, &apex);
        };
        match self.pointer(node) {
            Some(answer) => answer,
            None => self.negative(ResponseCode::NoError, &apex),
        }
    }

    /// The reverse zone of `range` begins at whole labels, of 8 bits for IPv4 and 4 for IPv6;
    /// `in-addr.arpa` is two more.
    fn reverse_apex(&self, range: IpNet) -> Name {
        let bits_a_label = if range.addr().is_ipv4() { 8 } else { 4 };
        let labels = usize::from(range.prefix_len().div_ceil(bits_a_label)) + 2;
        self.name.trim_to(labels)
    }

    /// The name that leads to the node that has a VIP, if it was asked for: the one in the zone, if
    /// there is one.
    fn pointer(&self, node: &NodeName) -> Option<Answer> {
        if !matches!(self.kind, RecordType::PTR | RecordType::ANY) {
            return None;
        }
        let names = names_of(node, &self.names());
        let full = self.origin.zone.full_name(node);
        let name = names.iter().find(|name| **name == full);
        let mut target = Name::from_ascii(name.or(names.first())?).ok()?;
        target.set_fqdn(true);
        Some(self.positive(vec![RData::PTR(PTR(target))]))
    }

    /// Whether a node's name in the zone ends in `.name`: then `name` exists, though it has no
    /// records (RFC 8020). Such a name has a dot: few have, and any client may ask for names that do not
    /// exist.
    fn is_above_a_node(&self) -> bool {
        let asked = self.name.to_ascii();
        let asked = asked.trim_end_matches('.');
        let nodes = self.directory.nodes.keys();
        for node in nodes.chain(self.directory.clouds.keys()) {
            if !node.as_str().contains('.') {
                continue;
            }
            let full = self.origin.zone.full_name(node);
            let above = full.strip_suffix(asked);
            if above.is_some_and(|rest| rest.ends_with('.')) {
                return true;
            }
        }
        false
    }

    /// An edge node's VIPs, for the families in which connections can be steered, or a cloud node's
    /// own addresses.
    fn addresses(&self, found: NamedNode<'_>, apex: &Name) -> Answer {
        let mut addresses = Vec::new();
        match found {
            NamedNode::Cloud(own) => addresses.extend(own),
            NamedNode::Edge(node) => {
                if self.node.v4.is_some() {
                    addresses.extend(node.vip4.map(IpAddr::V4));
                }
                if self.node.v6.is_some() {
                    addresses.extend(node.vip6.map(IpAddr::V6));
                }
            }
        }
        let mut records = Vec::new();
        for address in addresses {
            match address {
                IpAddr::V4(v4) if self.asks_for(RecordType::A) => records.push(RData::A(A(v4))),
                IpAddr::V6(v6) if self.asks_for(RecordType::AAAA) => {
                    records.push(RData::AAAA(AAAA(v6)));
                }
                IpAddr::V4(_) | IpAddr::V6(_) => {}
            }
        }
        if records.is_empty() {
            self.negative(ResponseCode::NoError, apex)
        } else {
            self.positive(records)
        }
    }

    fn asks_for(&self, kind: RecordType) -> bool {
        self.kind == kind || self.kind == RecordType::ANY
    }

    fn apex(&self, apex: &Name) -> Answer {
        if matches!(self.kind, RecordType::SOA | RecordType::ANY) {
            return Answer {
                code: ResponseCode::NoError,
                answers: vec![self.soa(apex)],
                soa: None,
            };
        }
        self.negative(ResponseCode::NoError, apex)
    }

    fn positive(&self, records: Vec<RData>) -> Answer {
        let mut answers = Vec::new();
        for data in records {
            answers.push(Record::from_rdata(self.name.clone(), TTL, data));
        }
        Answer {
            code: ResponseCode::NoError,
            answers,
            soa: None,
        }
    }

    fn negative(&self, code: ResponseCode, apex: &Name) -> Answer {
        Answer {
            code,
            answers: Vec::new(),
            soa: Some(self.soa(apex)),
        }
    }

    fn soa(&self, apex: &Name) -> Record {
        let zone = &self.origin.apex;
        // Serial numbers wrap (RFC 1982): the low bits are enough.
        let serial = (self.directory.revision & u64::from(u32::MAX)) as u32;
        let soa = SOA::new(
            below("ns", zone),
            below("hostmaster", zone),
            serial,
            REFRESH,
            RETRY,
            EXPIRE,
            TTL,
        );
        Record::from_rdata(apex.clone(), TTL, RData::SOA(soa))
    }
}

/// The name of `label` in a zone, or of the zone itself if that is as long as a name can be.
fn below(label: &str, zone: &Name) -> Name {
    match zone.prepend_label(label) {
        Ok(name) => name,
        Err(_too_long) => zone.clone(),
    }
}

/// Not one of our names: the client asks its next server.
pub(super) fn refusal() -> Answer {
    Answer {
        code: ResponseCode::Refused,
        answers: Vec::new(),
        soa: None,
    }
}

/// There is no directory yet, neither from the proxy nor from disk.
pub(super) fn unknown() -> Answer {
    Answer {
        code: ResponseCode::ServFail,
        answers: Vec::new(),
        soa: None,
    }
}

#[cfg(test)]
mod tests;
