//! Clients that need more than `TcpStream::connect`.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, connect, setsockopt, socket, sockopt,
};

/// A TCP socket that has not dialled yet.
pub(crate) struct Client(pub(crate) OwnedFd);

impl Client {
    pub(crate) fn new_v4() -> Self {
        Self(socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap())
    }

    /// Dials from a given port, even if a connection from it was there a moment ago.
    pub(crate) fn bound_to(source: &str) -> Self {
        let client = Self::new_v4();
        setsockopt(&client.0, sockopt::ReuseAddr, &true).unwrap();
        let address: std::net::SocketAddrV4 = source.parse().unwrap();
        bind(client.0.as_raw_fd(), &SockaddrIn::from(address)).unwrap();
        client
    }

    pub(crate) fn marked(self, mark: u32) -> Self {
        setsockopt(&self.0, sockopt::Mark, &mark).unwrap();
        self
    }

    pub(crate) fn dial(&self, destination: &str) -> io::Result<()> {
        match destination.parse().unwrap() {
            SocketAddr::V4(v4) => connect(self.0.as_raw_fd(), &SockaddrIn::from(v4))?,
            SocketAddr::V6(v6) => connect(self.0.as_raw_fd(), &SockaddrIn6::from(v6))?,
        }
        Ok(())
    }

    /// The connected socket.
    pub(crate) fn stream(self) -> TcpStream {
        self.0.into()
    }
}

/// Ends a connection by a reset, so that its ports are free at once.
pub(crate) fn reset(stream: TcpStream) {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&stream, sockopt::Linger, &linger).unwrap();
}

/// Where a UDP socket believes to be connected to.
pub(crate) fn udp_peer(destination: &str) -> SocketAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(destination).unwrap();
    socket.peer_addr().unwrap()
}
