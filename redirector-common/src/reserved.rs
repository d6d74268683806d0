//! The intercept ports, on which only root and the proxy's user may listen: otherwise any user
//! could answer for edge nodes while the proxy is away.

use crate::MAX_INTERCEPT_PORTS;
use crate::config::has_port;

/// The only entry of the map of reserved ports. The redirector writes it; the programs read it at
/// every bind. If all of it is zero, as in a new map, every bind passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ReservedPorts {
    /// The user who may bind besides root, as the initial user namespace has it. Zero: root alone.
    pub owner: u32,
    /// The ports in network order. Zeros are unused.
    pub ports: [u16; MAX_INTERCEPT_PORTS],
}

/// A `bind()` as the hook sees it.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// In network order. Zero: the kernel chooses one.
    pub port: u16,
    /// The number of the protocol, as in an IP header.
    pub protocol: u32,
    /// The real user of the process, as the initial user namespace has it.
    pub user: u32,
    /// The socket is in the network namespace in which the proxy listens.
    pub is_of_host: bool,
}

/// What happens to the bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindVerdict {
    /// The kernel decides as usual.
    Pass,
    /// It fails with `EPERM`.
    Refuse,
}

const TCP: u32 = 6;
const ROOT: u32 = 0;

impl ReservedPorts {
    /// Decides one bind.
    #[inline(always)]
    #[must_use]
    pub const fn decide(&self, bind: &Bind) -> BindVerdict {
        let may_have_all = bind.user == ROOT || bind.user == self.owner;
        if may_have_all
            || bind.protocol != TCP
            || !bind.is_of_host
            || !has_port(&self.ports, bind.port)
        {
            return BindVerdict::Pass;
        }
        BindVerdict::Refuse
    }
}

const _: () = assert!(size_of::<ReservedPorts>() == 20 && MAX_INTERCEPT_PORTS == 8);

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 990;
    const NOBODY: u32 = 65_534;

    fn reserved() -> ReservedPorts {
        let mut reserved = ReservedPorts {
            owner: OWNER,
            ..ReservedPorts::default()
        };
        for (slot, port) in reserved.ports.iter_mut().zip(7410_u16..7414) {
            *slot = port.to_be();
        }
        reserved
    }

    fn bind(port: u16, user: u32) -> Bind {
        Bind {
            port: port.to_be(),
            protocol: TCP,
            user,
            is_of_host: true,
        }
    }

    #[test]
    fn only_root_and_the_owner_bind_a_reserved_port() {
        for port in 7410..7414 {
            assert_eq!(reserved().decide(&bind(port, NOBODY)), BindVerdict::Refuse);
            for user in [ROOT, OWNER] {
                assert_eq!(reserved().decide(&bind(port, user)), BindVerdict::Pass);
            }
        }
    }

    #[test]
    fn without_an_owner_root_alone_binds() {
        let reserved = ReservedPorts {
            owner: 0,
            ..reserved()
        };
        assert_eq!(reserved.decide(&bind(7410, OWNER)), BindVerdict::Refuse);
        assert_eq!(reserved.decide(&bind(7410, ROOT)), BindVerdict::Pass);
    }

    #[test]
    fn every_user_binds_other_ports_and_lets_the_kernel_choose() {
        for port in [7409, 7414, 80, 0] {
            assert_eq!(reserved().decide(&bind(port, NOBODY)), BindVerdict::Pass);
        }
    }

    #[test]
    fn every_user_binds_for_other_protocols_and_in_other_network_namespaces() {
        let udp = Bind {
            protocol: 17,
            ..bind(7410, NOBODY)
        };
        let elsewhere = Bind {
            is_of_host: false,
            ..bind(7410, NOBODY)
        };
        for bind in [udp, elsewhere] {
            assert_eq!(reserved().decide(&bind), BindVerdict::Pass);
        }
    }

    #[test]
    fn a_new_map_reserves_nothing() {
        for port in [7410, 0] {
            let new = ReservedPorts::default();
            assert_eq!(new.decide(&bind(port, NOBODY)), BindVerdict::Pass);
        }
    }
}
