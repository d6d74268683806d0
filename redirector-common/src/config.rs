//! The only entry of the configuration map. The redirector writes it; the programs read it at every
//! connect.

use crate::{Addr, LOOPBACK, Prefix};

/// Capacity for intercept ports in [`Config`]. It is a power of two, so that the verifier can prove
/// that every index is in bounds.
pub const MAX_INTERCEPT_PORTS: usize = 8;

/// What the programs need to know besides the destinations. If all of it is zero, as in a new map,
/// every connection passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// The end of the lease of the offline flags, in nanoseconds of `CLOCK_MONOTONIC`. The
    /// redirector renews it. Without the redirector, flagged nodes are soon steered like all
    /// others, and the proxy answers for them.
    pub offline_lease_ns: u64,
    /// [`Config::VERSION`] once the redirector has written the entry.
    pub version: u32,
    /// Sockets whose mark equals this in the bits of `mark_mask` are exempt.
    pub mark: u32,
    /// Zero: no socket is exempt.
    pub mark_mask: u32,
    /// How many of `ports` are used: 1 to [`MAX_INTERCEPT_PORTS`].
    pub port_count: u16,
    /// Not zero while nftables steers too, as long as the lease.
    pub nftables: u16,
    /// The proxy's intercept ports, in network order.
    pub ports: [u16; MAX_INTERCEPT_PORTS],
    /// The address that IPv4 destinations are steered to, unless the client can reach the host's
    /// loopback addresses: this node's own address, which every network namespace can reach.
    pub intercept4: Addr,
    /// The address that IPv6 destinations are steered to; [`Addr::NONE`] if the node has none.
    pub intercept6: Addr,
    /// The range of IPv4 VIPs.
    pub vip4: Prefix,
    /// The range of IPv6 VIPs.
    pub vip6: Prefix,
}

impl Config {
    /// The version of this layout and its meaning.
    pub const VERSION: u32 = 1;

    /// Whether a connection to `addr`:`port` already goes to the proxy.
    #[inline(always)]
    #[must_use]
    pub const fn is_intercept(&self, addr: &Addr, port: u16) -> bool {
        let is_own =
            addr.is(&self.intercept4) || addr.is(&self.intercept6) || LOOPBACK.contains(addr);
        is_own && self.is_intercept_port(port)
    }

    /// Whether `port` (network order) is one of the intercept ports.
    #[inline(always)]
    #[must_use]
    pub const fn is_intercept_port(&self, port: u16) -> bool {
        has_port(&self.ports, port)
    }
}

/// Whether `port` is one of `ports`. Zeros are unused slots.
#[inline(always)]
#[must_use]
pub(crate) const fn has_port(ports: &[u16; MAX_INTERCEPT_PORTS], port: u16) -> bool {
    port != 0
        && (port == ports[0]
            || port == ports[1]
            || port == ports[2]
            || port == ports[3]
            || port == ports[4]
            || port == ports[5]
            || port == ports[6]
            || port == ports[7])
}

impl Default for Config {
    fn default() -> Self {
        Self {
            offline_lease_ns: 0,
            version: Self::VERSION,
            mark: 0,
            mark_mask: 0,
            port_count: 0,
            nftables: 0,
            ports: [0; MAX_INTERCEPT_PORTS],
            intercept4: Addr::NONE,
            intercept6: Addr::NONE,
            vip4: Prefix::NONE,
            vip6: Prefix::NONE,
        }
    }
}

const _: () = assert!(size_of::<Config>() == 136 && MAX_INTERCEPT_PORTS.is_power_of_two());
