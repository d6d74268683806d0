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
            None => refused(),
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
        let Some(range) = range.filter(|range| range.contains(&net)) else {
            return refused();
        };
        let apex = self.reverse_apex(range);
        if *self.name == apex && self.kind == RecordType::SOA {
            return self.apex(&apex);
        }
        if net.prefix_len() < net.max_prefix_len() {
            return self.negative(ResponseCode::NoError, &apex);
        }
        match self.directory.node_of_vip(net.addr()) {
            None => self.negative(ResponseCode::NXDomain, &apex),
            Some(node) => self
                .pointer(node)
                .unwrap_or_else(|| self.negative(ResponseCode::NoError, &apex)),
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
    /// records (RFC 8020).
    fn is_above_a_node(&self) -> bool {
        let asked = self.name.to_ascii();
        let asked = asked.trim_end_matches('.');
        let nodes = self.directory.nodes.keys();
        let mut nodes = nodes.chain(self.directory.clouds.keys());
        nodes.any(|node| {
            let full = self.origin.zone.full_name(node);
            let above = full.strip_suffix(asked);
            above.is_some_and(|rest| rest.ends_with('.'))
        })
    }

    /// An edge node's VIPs, for the families in which connections can be steered, or a cloud node's
    /// own addresses.
    fn addresses(&self, found: NamedNode<'_>, apex: &Name) -> Answer {
        let addresses: Vec<IpAddr> = match found {
            NamedNode::Cloud(addresses) => addresses.to_vec(),
            NamedNode::Edge(node) => {
                let v4 = node.vip4.filter(|_| self.node.v4.is_some()).map(IpAddr::V4);
                v4.into_iter()
                    .chain(node.vip6.filter(|_| self.node.v6.is_some()).map(IpAddr::V6))
                    .collect()
            }
        };
        let asked = |kind| self.kind == kind || self.kind == RecordType::ANY;
        let record = |address: IpAddr| match address {
            IpAddr::V4(v4) => asked(RecordType::A).then_some(RData::A(A(v4))),
            IpAddr::V6(v6) => asked(RecordType::AAAA).then_some(RData::AAAA(AAAA(v6))),
        };
        let records: Vec<RData> = addresses.into_iter().filter_map(record).collect();
        if records.is_empty() {
            self.negative(ResponseCode::NoError, apex)
        } else {
            self.positive(records)
        }
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
        let record = |data| Record::from_rdata(self.name.clone(), TTL, data);
        Answer {
            code: ResponseCode::NoError,
            answers: records.into_iter().map(record).collect(),
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
        let below = |label: &str| {
            zone.prepend_label(label)
                .unwrap_or_else(|_too_long| zone.clone())
        };
        // Serial numbers wrap (RFC 1982): the low bits are enough.
        let serial = (self.directory.revision & u64::from(u32::MAX)) as u32;
        let soa = SOA::new(
            below("ns"),
            below("hostmaster"),
            serial,
            REFRESH,
            RETRY,
            EXPIRE,
            TTL,
        );
        Record::from_rdata(apex.clone(), TTL, RData::SOA(soa))
    }
}

/// Not one of our names: the client asks its next server.
pub(super) fn refused() -> Answer {
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
