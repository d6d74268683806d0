//! The map of destinations: which address and port belongs to an edge node.

use crate::{Addr, Endpoint};

/// Key of the destinations map: an edge address and port, or a VIP with port 0 for all its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct DestinationKey {
    /// The address.
    pub addr: Addr,
    /// The port in network order; 0 for a VIP.
    pub port: u16,
    /// Padding, always zero: keys are compared as bytes.
    pub zero: u16,
}

impl DestinationKey {
    /// The key of one port of an edge address.
    #[inline(always)]
    #[must_use]
    pub const fn exact(endpoint: Endpoint) -> Self {
        Self {
            addr: endpoint.addr,
            port: endpoint.port,
            zero: 0,
        }
    }

    /// The key of all ports of a VIP.
    #[inline(always)]
    #[must_use]
    pub const fn vip(addr: Addr) -> Self {
        Self {
            addr,
            port: 0,
            zero: 0,
        }
    }
}

/// Value of the destinations map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct DestinationValue {
    /// [`Self::OFFLINE`] or 0.
    pub flags: u32,
}

impl DestinationValue {
    /// No agent of the node is connected, so a connect is refused at once while the lease lasts
    /// (see `Config::offline_lease_ns`).
    pub const OFFLINE: u32 = 1;

    /// Always steered.
    pub const ONLINE_VALUE: Self = Self { flags: 0 };
    /// Refused while the lease lasts.
    pub const OFFLINE_VALUE: Self = Self {
        flags: Self::OFFLINE,
    };

    /// Whether the offline flag is set.
    #[inline(always)]
    #[must_use]
    pub const fn is_offline(&self) -> bool {
        self.flags & Self::OFFLINE != 0
    }
}

const _: () = assert!(size_of::<DestinationKey>() == 20);
const _: () = assert!(size_of::<DestinationValue>() == 4);
