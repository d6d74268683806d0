//! The one entry of the configuration map, which the redirector writes and the programs read at
//! every connect.

use crate::{Addr, Prefix};

/// Room for intercept ports in [`Config`]: a power of two, so that the verifier sees every index in
/// bounds.
pub const MAX_INTERCEPT_PORTS: usize = 8;

/// What the programs need to know besides the destinations. All zero (as the kernel makes it):
/// everything passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// Until when offline flags hold, in `CLOCK_MONOTONIC` nanoseconds. The redirector renews it;
    /// after its death flagged nodes are steered like all others, and the proxy answers for them.
    pub offline_lease_ns: u64,
    /// [`Config::VERSION`] once written.
    pub version: u32,
    /// Sockets whose mark equals this in the bits of `mark_mask` are exempt.
    pub mark: u32,
    /// Zero: no socket is exempt.
    pub mark_mask: u32,
    /// How many of `ports` are used: 1 to [`MAX_INTERCEPT_PORTS`].
    pub port_count: u32,
    /// The proxy's intercept ports, network order.
    pub ports: [u16; MAX_INTERCEPT_PORTS],
    /// Where IPv4 destinations are steered to: this node's own address, which is reached from every
    /// network namespace.
    pub intercept4: Addr,
    /// The same for IPv6, [`Addr::NONE`] if the node has none.
    pub intercept6: Addr,
    /// The range of IPv4 VIPs.
    pub vip4: Prefix,
    /// The range of IPv6 VIPs.
    pub vip6: Prefix,
}

impl Config {
    /// The layout and meaning described here.
    pub const VERSION: u32 = 1;

    /// Whether a connection to `addr`:`port` already goes to the proxy.
    #[inline(always)]
    #[must_use]
    pub const fn is_intercept(&self, addr: &Addr, port: u16) -> bool {
        (addr.is(&self.intercept4) || addr.is(&self.intercept6)) && self.is_intercept_port(port)
    }

    /// Whether `port` (network order) is one of the intercept ports.
    #[inline(always)]
    #[must_use]
    pub const fn is_intercept_port(&self, port: u16) -> bool {
        let p = &self.ports;
        port != 0
            && (port == p[0]
                || port == p[1]
                || port == p[2]
                || port == p[3]
                || port == p[4]
                || port == p[5]
                || port == p[6]
                || port == p[7])
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            offline_lease_ns: 0,
            version: Self::VERSION,
            mark: 0,
            mark_mask: 0,
            port_count: 0,
            ports: [0; MAX_INTERCEPT_PORTS],
            intercept4: Addr::NONE,
            intercept6: Addr::NONE,
            vip4: Prefix::NONE,
            vip6: Prefix::NONE,
        }
    }
}

const _: () = assert!(size_of::<Config>() == 136 && MAX_INTERCEPT_PORTS.is_power_of_two());
