//! The original destination on its way from the client's socket to the accepted one.

use core::net::SocketAddr;

use crate::{Addr, Endpoint};

/// Which end of a connection a [`SocketDst`] is stored on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// The socket that dialled.
    Client = 1,
    /// The socket that the proxy accepted.
    Accepted = 2,
}

/// Value of the socket storage map: what the client dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SocketDst {
    /// The dialled address.
    pub addr: Addr,
    /// The dialled port, network order.
    pub port: u16,
    /// A [`Role`].
    pub role: u8,
    /// [`SocketDst::VERSION`]; any other is not understood.
    pub version: u8,
}

impl SocketDst {
    /// The layout and meaning described here.
    pub const VERSION: u8 = 1;

    /// What a client that dialled `dst` keeps.
    #[inline(always)]
    #[must_use]
    pub const fn client(dst: Endpoint) -> Self {
        Self {
            addr: dst.addr,
            port: dst.port,
            role: Role::Client as u8,
            version: Self::VERSION,
        }
    }

    /// The same destination on the accepted socket.
    #[inline(always)]
    #[must_use]
    pub const fn accepted(self) -> Self {
        Self {
            role: Role::Accepted as u8,
            ..self
        }
    }

    /// What is stored for `role`; nothing when the value is for the other end or of another
    /// version.
    #[inline(always)]
    #[must_use]
    pub const fn endpoint(&self, role: Role) -> Option<Endpoint> {
        if self.version == Self::VERSION && self.role == role as u8 {
            return Some(Endpoint {
                addr: self.addr,
                port: self.port,
            });
        }
        None
    }

    /// What the client of this accepted socket dialled, IPv4 in its own family. For the proxy.
    #[must_use]
    pub fn original_dst(&self) -> Option<SocketAddr> {
        self.endpoint(Role::Accepted)
            .map(|endpoint| endpoint.socket_addr())
    }
}

/// A connection to an intercept port, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Tuple {
    /// The client's address.
    pub src: Addr,
    /// The intercept address.
    pub dst: Addr,
    /// The client's port, network order.
    pub src_port: u16,
    /// The intercept port, network order.
    pub dst_port: u16,
}

const _: () = assert!(size_of::<SocketDst>() == 20);
const _: () = assert!(size_of::<Tuple>() == 36);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_accepted_socket_of_this_version_has_an_original_destination() {
        let dialled: SocketAddr = "10.0.3.7:9100".parse().unwrap();
        let client = SocketDst::client(dialled.into());
        assert_eq!(client.original_dst(), None);
        assert_eq!(client.accepted().original_dst(), Some(dialled));
        assert_eq!(
            SocketDst {
                version: 2,
                ..client.accepted()
            }
            .original_dst(),
            None
        );
    }
}
