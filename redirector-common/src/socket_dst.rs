//! The original destination, which is passed from the client's socket to the accepted one.

use core::net::SocketAddr;

use crate::{Addr, Endpoint};

/// The end of a connection that a [`SocketDst`] is stored for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// The client's socket.
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
    /// The dialled port, in network order.
    pub port: u16,
    /// A [`Role`].
    pub role: u8,
    /// [`SocketDst::VERSION`]; values with another version are ignored.
    pub version: u8,
}

impl SocketDst {
    /// The version of this layout and its meaning.
    pub const VERSION: u8 = 1;

    /// The value for a client's socket that dialled `dst`.
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

    /// The same destination for the accepted socket.
    #[inline(always)]
    #[must_use]
    pub const fn accepted(self) -> Self {
        Self {
            role: Role::Accepted as u8,
            ..self
        }
    }

    /// The stored destination; `None` if the value is not for `role` or has another version.
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

    /// The destination that the client of this accepted socket dialled, IPv4 as IPv4 addresses. The
    /// proxy calls it.
    #[must_use]
    pub fn original_dst(&self) -> Option<SocketAddr> {
        self.endpoint(Role::Accepted)
            .map(|endpoint| endpoint.socket_addr())
    }
}

/// A connection to an intercept port, from the client's point of view.
///
/// Programs in other network namespaces of this kernel may choose the same addresses and ports. The
/// initial sequence number is a secret of the client's kernel socket and of the listener, so they
/// neither replace nor remove this tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Tuple {
    /// The client's address.
    pub src: Addr,
    /// The intercept address.
    pub dst: Addr,
    /// The client's port, in network order.
    pub src_port: u16,
    /// The intercept port, in network order.
    pub dst_port: u16,
    /// The client's initial sequence number, in host order.
    pub isn: u32,
}

const _: () = assert!(size_of::<SocketDst>() == 20);
const _: () = assert!(size_of::<Tuple>() == 40);

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
