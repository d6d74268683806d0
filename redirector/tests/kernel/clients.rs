//! Clients that need more than `TcpStream::connect`.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
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

    /// Uses no interface but this one.
    pub(crate) fn on_device(self, device: &str) -> Self {
        setsockopt(&self.0, sockopt::BindToDevice, &device.into()).unwrap();
        self
    }

    /// Sends its first bytes with the SYN (TCP Fast Open): `dial` sends nothing.
    pub(crate) fn dialling_with_its_first_bytes(self) -> Self {
        setsockopt(&self.0, sockopt::TcpFastOpenConnect, &true).unwrap();
        self
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

    /// `connect()` to no family at all: the socket is as if it had never dialled (connect(2)).
    pub(crate) fn dissolve(&self) {
        let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
        let length = size_of::<libc::sockaddr>() as libc::socklen_t;
        // SAFETY: the address is a valid one of the given length, and the descriptor is open.
        let result = unsafe { libc::connect(self.0.as_raw_fd(), &raw const nowhere, length) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// The connected socket.
    pub(crate) fn stream(self) -> TcpStream {
        self.0.into()
    }
}

/// Ends a connection by a reset, so that its ports are free at once.
pub(crate) fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&stream, sockopt::Linger, &linger).unwrap();
}

/// Where a UDP socket believes to be connected to.
pub(crate) fn udp_peer(destination: &str) -> SocketAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(destination).unwrap();
    socket.peer_addr().unwrap()
}
