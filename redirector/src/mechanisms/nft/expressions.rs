//! Short names for the expressions and statements of the rules.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use nftables::expr::{
    BinaryOperation, CT, Expression, Fib, FibFlag, FibResult, Meta, MetaKey, NamedExpression,
    Payload, PayloadField, Prefix, SetItem,
};
use nftables::stmt::{
    Counter, JumpTarget, Match, NAT, NATFamily, Operator, Reject, RejectType, Statement,
};
use nftables::types::RejectCode;

pub(super) type Expr = Expression<'static>;
pub(super) type Stmt = Statement<'static>;

/// The flags of a TCP segment that tell its purpose, and those of a connection's first segment.
const FIN_SYN_RST_ACK: u32 = 0x17;
const SYN: u32 = 0x02;

/// An address family in nft's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(super) fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// `ip` or `ip6`.
    fn protocol(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }
}

pub(super) fn text(text: impl Into<Cow<'static, str>>) -> Expr {
    Expression::String(text.into())
}

fn payload(protocol: &'static str, field: &'static str) -> Expr {
    let field = PayloadField {
        protocol: protocol.into(),
        field: field.into(),
    };
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(field)))
}

fn meta(key: MetaKey) -> Expr {
    Expression::Named(NamedExpression::Meta(Meta { key }))
}

/// `ip daddr` or `ip6 daddr`.
pub(super) fn daddr(family: Family) -> Expr {
    payload(family.protocol(), "daddr")
}

/// `ip saddr` or `ip6 saddr`.
pub(super) fn saddr(family: Family) -> Expr {
    payload(family.protocol(), "saddr")
}

/// `tcp dport`.
pub(super) fn dport() -> Expr {
    payload("tcp", "dport")
}

/// `left . right`.
pub(super) fn concat(left: Expr, right: Expr) -> Expr {
    Expression::Named(NamedExpression::Concat(vec![left, right]))
}

/// An element of a set of `addr . port`.
pub(super) fn address_and_port(address: SocketAddr) -> Expr {
    concat(
        text(address.ip().to_string()),
        Expression::Number(address.port().into()),
    )
}

/// `a.b.c.d/len`.
pub(super) fn prefix(net: IpNet) -> Expr {
    Expression::Named(NamedExpression::Prefix(Prefix {
        addr: Box::new(text(net.network().to_string())),
        len: net.prefix_len().into(),
    }))
}

/// `{ a, b }`.
pub(super) fn anonymous_set(items: impl IntoIterator<Item = Expr>) -> Expr {
    Expression::Named(NamedExpression::Set(
        items.into_iter().map(SetItem::Element).collect(),
    ))
}

/// `left == right`, which for a set is "in".
pub(super) fn equal(left: Expr, right: Expr) -> Stmt {
    Statement::Match(Match {
        left,
        right,
        op: Operator::EQ,
    })
}

/// `left != right`, which for a set is "not in".
pub(super) fn differ(left: Expr, right: Expr) -> Stmt {
    Statement::Match(Match {
        left,
        right,
        op: Operator::NEQ,
    })
}

/// `meta l4proto tcp`.
pub(super) fn is_tcp() -> Stmt {
    equal(meta(MetaKey::L4proto), text("tcp"))
}

/// `tcp flags & (fin | syn | rst | ack) == syn`: the first segment of a connection.
pub(super) fn begins_a_connection() -> Stmt {
    let masked = BinaryOperation::AND(payload("tcp", "flags"), Expression::Number(FIN_SYN_RST_ACK));
    equal(
        Expression::BinaryOperation(Box::new(masked)),
        Expression::Number(SYN),
    )
}

/// `ct status dnat`: the connection's destination was translated.
pub(super) fn is_translated() -> Stmt {
    let status = Expression::Named(NamedExpression::CT(CT {
        key: "status".into(),
        family: None,
        dir: None,
    }));
    Statement::Match(Match {
        left: status,
        right: text("dnat"),
        op: Operator::IN,
    })
}

/// `iifname "name"`.
pub(super) fn comes_in_by(interface: &'static str) -> Stmt {
    equal(meta(MetaKey::Iifname), text(interface))
}

/// `iifname { "a", "b" }`.
pub(super) fn comes_in_by_one_of(interfaces: impl IntoIterator<Item = String>) -> Stmt {
    equal(
        meta(MetaKey::Iifname),
        anonymous_set(interfaces.into_iter().map(text)),
    )
}

/// `meta mark & mark == mark`.
pub(super) fn has_mark(mark: u32) -> Stmt {
    let masked = BinaryOperation::AND(meta(MetaKey::Mark), Expression::Number(mark));
    equal(
        Expression::BinaryOperation(Box::new(masked)),
        Expression::Number(mark),
    )
}

/// `fib daddr . iif type local`: the destination is an address of the interface that the packet
/// came in by.
pub(super) fn is_address_of_its_interface() -> Stmt {
    let fib = Fib {
        result: FibResult::Type,
        flags: HashSet::from([FibFlag::Daddr, FibFlag::Iif]),
    };
    equal(Expression::Named(NamedExpression::Fib(fib)), text("local"))
}

/// `dnat ip to addr:port`.
pub(super) fn dnat(to: IpAddr, port: u16) -> Stmt {
    let family = match to {
        IpAddr::V4(_) => NATFamily::IP,
        IpAddr::V6(_) => NATFamily::IP6,
    };
    Statement::DNAT(Some(NAT {
        addr: Some(text(to.to_string())),
        family: Some(family),
        port: Some(Expression::Number(port.into())),
        flags: None,
    }))
}

/// `reject with icmp host-unreachable`, or its counterpart in IPv6. `icmpx` works in `inet` tables
/// only.
pub(super) fn reject(family: Family) -> Stmt {
    let (kind, code) = match family {
        Family::V4 => (RejectType::ICMP, RejectCode::HostUnreach),
        Family::V6 => (RejectType::ICMPv6, RejectCode::AddrUnreach),
    };
    Statement::Reject(Some(Reject::new(Some(kind), Some(code))))
}

/// `jump chain`.
pub(super) fn jump(chain: &'static str) -> Stmt {
    Statement::Jump(JumpTarget {
        target: chain.into(),
    })
}

/// `counter`.
pub(super) fn counter() -> Stmt {
    Statement::Counter(Counter::Anonymous(None))
}
