//! Stands for the proxy: accepts steered connections and reports their original destinations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use aya::maps::{Map, MapData, MapError, SkStorage};
use culvert_redirector_common::SocketDst;
use culvert_redirector_common::names::SOCKETS_PIN;
use nix::sys::socket::{getsockopt, sockopt};

use crate::world::{World, eventually};

/// Listeners on the intercept ports, for both families.
pub(crate) struct Proxy {
    listeners: Vec<TcpListener>,
}

/// The map in which the proxy looks accepted sockets up.
pub(crate) struct Sockets(SkStorage<MapData, SocketDst>);

impl Proxy {
    pub(crate) fn listen() -> Self {
        let listen = |port: u16| {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
            // std uses a backlog of 128, too few while ten thousand clients connect and nothing
            // accepts.
            nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(4096).unwrap())
                .unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        };
        Self {
            listeners: [7410, 7411].map(listen).into(),
        }
    }

    /// Waits for the next connection, on any port.
    pub(crate) fn accept(&self) -> TcpStream {
        eventually("a connection is steered", || self.try_accept())
    }

    /// A connection that has arrived already.
    pub(crate) fn try_accept(&self) -> Option<TcpStream> {
        let (stream, _client) = self
            .listeners
            .iter()
            .find_map(|listener| listener.accept().ok())?;
        stream.set_nonblocking(false).unwrap();
        Some(stream)
    }
}

impl Sockets {
    pub(crate) fn open(world: &World) -> Self {
        let map = MapData::from_pin(world.bpffs().join(SOCKETS_PIN)).unwrap();
        Self(Map::from_map_data(map).unwrap().try_into().unwrap())
    }

    /// The value stored for a socket, looked up by its descriptor.
    pub(crate) fn stored(&self, socket: &impl AsRawFd) -> Option<SocketDst> {
        match self.0.get(socket, 0) {
            Ok(stored) => Some(stored),
            Err(MapError::KeyNotFound) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The original destination of an accepted socket.
    pub(crate) fn original_dst(&self, accepted: &TcpStream) -> Option<SocketAddr> {
        self.stored(accepted)?.original_dst()
    }
}

/// Checks that hooks steer a connection of the host to edge-1.
#[track_caller]
pub(crate) fn check_hooks_steer(world: &World, proxy: &Proxy) {
    let sockets = Sockets::open(world);
    let _client = TcpStream::connect("10.0.3.7:9100").unwrap();
    assert_eq!(
        sockets.original_dst(&proxy.accept()),
        Some("10.0.3.7:9100".parse().unwrap())
    );
}

/// The original destination of an accepted socket by conntrack; `None` if the client dialled the
/// socket's own address.
pub(crate) fn so_original_dst(accepted: &TcpStream) -> Option<SocketAddr> {
    let local = canonical(accepted.local_addr().unwrap());
    let dialled = if local.is_ipv4() {
        let found = getsockopt(accepted, sockopt::OriginalDst).ok()?;
        let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
        SocketAddr::new(IpAddr::V4(ip), u16::from_be(found.sin_port))
    } else {
        let found = getsockopt(accepted, sockopt::Ip6tOriginalDst).ok()?;
        let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
        SocketAddr::new(IpAddr::V6(ip), u16::from_be(found.sin6_port))
    };
    Some(dialled).filter(|dialled| *dialled != local)
}

/// IPv4-mapped addresses as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
