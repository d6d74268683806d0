//! Decides what happens to a `connect()`. The kernel programs only carry out the verdict.

use crate::loopback::mix;
use crate::{
    Addr, Config, Counter, DestinationKey, DestinationValue, Endpoint, MAX_INTERCEPT_PORTS,
    SocketReach, loopback,
};

/// A TCP `connect()` as the hook sees it.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// The destination that the client dials.
    pub dst: Endpoint,
    /// The socket's mark.
    pub mark: u32,
    /// Where the socket can be steered to.
    pub reach: SocketReach,
    /// The socket has its source port already, and is bound to no interface.
    pub has_source_port: bool,
}

/// What happens to the connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to its destination.
    Pass(Pass),
    /// It goes to the proxy.
    Steer(Steer),
    /// It fails with `EHOSTUNREACH`.
    Reject(Reject),
}

/// Why a connect passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The redirector has not configured the programs.
    Unconfigured,
    /// The socket has the exempting mark.
    Exempt,
    /// It goes to the proxy anyway.
    Intercept,
    /// It is not an edge node's.
    Unmatched,
    /// nftables steers it.
    ToNftables,
}

/// Where a connect is steered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steer {
    /// An address of this host, of the same family, and an intercept port.
    pub to: Endpoint,
}

/// Why a connect is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// The node has no tunnel.
    Offline,
    /// There is no intercept address of the destination's family.
    NoIntercept,
}

/// What happens to an original destination that an earlier connect stored for the same socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// It stays.
    Keep,
    /// It is removed: this connect has nothing to do with it.
    Remove,
}

impl Pass {
    /// What to do with the socket's storage. A connect to the proxy itself must not carry the
    /// destination of an earlier connect, which another program may have refused.
    #[inline(always)]
    #[must_use]
    pub const fn storage(self) -> Storage {
        match self {
            Self::Unconfigured => Storage::Keep,
            Self::Intercept | Self::Exempt | Self::Unmatched | Self::ToNftables => Storage::Remove,
        }
    }
}

impl Pass {
    /// The counter to increase, if any.
    #[inline(always)]
    #[must_use]
    pub const fn counter(self) -> Option<Counter> {
        match self {
            Self::Unconfigured | Self::Intercept | Self::ToNftables => None,
            Self::Exempt => Some(Counter::Exempt),
            Self::Unmatched => Some(Counter::Unmatched),
        }
    }
}

impl Reject {
    /// The counter to increase.
    #[inline(always)]
    #[must_use]
    pub const fn counter(self) -> Counter {
        match self {
            Self::Offline => Counter::Offline,
            Self::NoIntercept => Counter::NoIntercept,
        }
    }
}

/// Decides one connect. `lookup` reads the destinations map and is called at most once. `now_ns` is
/// `CLOCK_MONOTONIC`.
#[inline(always)]
#[must_use]
pub fn decide(
    config: &Config,
    connect: &Connect,
    lookup: impl FnOnce(&DestinationKey) -> Option<DestinationValue>,
    now_ns: impl FnOnce() -> u64,
) -> Verdict {
    if config.version != Config::VERSION {
        return Verdict::Pass(Pass::Unconfigured);
    }
    if config.mark_mask != 0 && connect.mark & config.mark_mask == config.mark & config.mark_mask {
        return Verdict::Pass(Pass::Exempt);
    }
    if config.is_intercept(&connect.dst.addr, connect.dst.port) {
        return Verdict::Pass(Pass::Intercept);
    }
    let found =
        if config.vip4.contains(&connect.dst.addr) || config.vip6.contains(&connect.dst.addr) {
            // The whole range is steered: a VIP without a node goes to the proxy too, which refuses
            // it.
            lookup(&DestinationKey::vip(connect.dst.addr)).unwrap_or_default()
        } else {
            match lookup(&DestinationKey::exact(connect.dst)) {
                Some(value) => value,
                None => return Verdict::Pass(Pass::Unmatched),
            }
        };
    // After the lease nobody keeps the flags and the table up to date: all is steered, and the
    // proxy answers.
    let is_for_nftables = is_for_nftables(config, connect);
    if (found.is_offline() || is_for_nftables) && now_ns() < config.offline_lease_ns {
        return if found.is_offline() {
            Verdict::Reject(Reject::Offline)
        } else {
            Verdict::Pass(Pass::ToNftables)
        };
    }
    match intercept_addr(config, connect) {
        Some(addr) => Verdict::Steer(Steer {
            to: Endpoint {
                addr,
                port: spread(config, connect.dst),
            },
        }),
        None => Verdict::Reject(Reject::NoIntercept),
    }
}

/// From one source port, the node's own address can be reached once for each intercept port, and so
/// no more edge destinations. nftables translates to any number.
#[inline(always)]
fn is_for_nftables(config: &Config, connect: &Connect) -> bool {
    let has_own_address =
        connect.dst.addr.is_v4() && matches!(connect.reach, SocketReach::Loopback);
    config.nftables != 0 && connect.has_source_port && !has_own_address
}

#[inline(always)]
fn intercept_addr(config: &Config, connect: &Connect) -> Option<Addr> {
    let is_v4 = connect.dst.addr.is_v4();
    let addr = if is_v4 {
        config.intercept4
    } else {
        config.intercept6
    };
    if addr.is_none() || config.port_count == 0 {
        return None;
    }
    match connect.reach {
        SocketReach::Loopback if is_v4 => Some(loopback(connect.dst)),
        SocketReach::Loopback | SocketReach::Node => Some(addr),
    }
}

/// The intercept port for a destination. A client address has about 28,000 source ports towards
/// each port of the node's own address, so connections are spread over several.
#[inline(always)]
#[must_use]
pub const fn spread(config: &Config, dst: Endpoint) -> u16 {
    let words = dst.addr.as_words();
    let hash = mix(words[0] ^ words[1] ^ words[2] ^ words[3] ^ dst.port as u32);
    let index = if config.port_count == 0 {
        0
    } else {
        hash % config.port_count as u32
    };
    config.ports[index as usize & (MAX_INTERCEPT_PORTS - 1)]
}

#[cfg(test)]
mod tests;
