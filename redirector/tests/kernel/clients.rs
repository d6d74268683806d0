//! Clients that need more than `TcpStream::connect`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, opcode, squeue, types};
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6,
    SockaddrLike, SockaddrStorage, bind, connect, recv, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::world::DEADLINE;

/// Runs `action` on a thread of this user, who has no right of root's. The C library would change
/// the user of all threads.
pub(crate) fn as_user<T: Send>(user: libc::uid_t, action: impl FnOnce() -> T + Send) -> T {
    let run = || {
        // SAFETY: changes the credentials of this thread alone, which ends with the action.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
        assert_eq!(changed, 0, "{}", io::Error::last_os_error());
        action()
    };
    match std::thread::scope(|scope| scope.spawn(run).join()) {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A TCP socket that has not dialled yet.
pub(crate) struct Client(pub(crate) OwnedFd);

impl Client {
    pub(crate) fn new_v4() -> Self {
        Self(
            socket(
                AddressFamily::Inet,
                SockType::Stream,
                SockFlag::SOCK_CLOEXEC,
                None,
            )
            .unwrap(),
        )
    }

    pub(crate) fn new_v6() -> Self {
        Self(
            socket(
                AddressFamily::Inet6,
                SockType::Stream,
                SockFlag::SOCK_CLOEXEC,
                None,
            )
            .unwrap(),
        )
    }

    /// Dials from a given port, even if a connection from it existed a moment ago.
    pub(crate) fn bound_to(source: &str) -> Self {
        let source: SocketAddr = source.parse().unwrap();
        let client = if source.is_ipv4() {
            Self::new_v4()
        } else {
            Self::new_v6()
        };
        setsockopt(&client.0, sockopt::ReuseAddr, &true).unwrap();
        bind(client.0.as_raw_fd(), &SockaddrStorage::from(source)).unwrap();
        client
    }

    /// Uses only this interface.
    pub(crate) fn on_device(self, device: &str) -> Self {
        setsockopt(&self.0, sockopt::BindToDevice, &device.into()).unwrap();
        self
    }

    /// Sends the first bytes with the SYN (TCP Fast Open): `dial` alone sends nothing.
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

    /// Dials without `connect()`: by a request in a ring, which the kernel carries out itself.
    pub(crate) fn dial_by_ring(
        &self,
        ring: &mut IoUring,
        flags: squeue::Flags,
        destination: &str,
    ) -> io::Result<()> {
        let destination = SockaddrStorage::from(destination.parse::<SocketAddr>().unwrap());
        let request = opcode::Connect::new(
            types::Fd(self.0.as_raw_fd()),
            destination.as_ptr(),
            destination.len(),
        );
        // SAFETY: the address outlives the request, whose end is waited for.
        unsafe { ring.submission().push(&request.build().flags(flags)) }.unwrap();
        ring.submit_and_wait(1)?;
        let result = ring.completion().next().unwrap().result();
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(())
    }

    /// `connect()` with AF_UNSPEC: the socket is then as if it had never dialled (connect(2)).
    pub(crate) fn dissolve(&self) {
        let nowhere = libc::sockaddr {
            sa_family: libc::AF_UNSPEC as libc::sa_family_t,
            sa_data: [0; 14],
        };
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

/// Whether the kernel says which network namespace a socket is in, as hooks for the host alone
/// need it (Linux 5.14). If not, it says that the test does not apply.
pub(crate) fn can_limit_hooks_to_the_host() -> bool {
    /// `SO_NETNS_COOKIE` of asm-generic/socket.h.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = Client::new_v4();
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.0.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        eprintln!("does not apply: this kernel cannot limit hooks to the host");
    }
    result == 0
}

/// Closes a connection with a reset, so that its ports are free at once.
pub(crate) fn reset(stream: TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &linger).unwrap();
}

/// The peer address that a UDP socket reports.
pub(crate) fn udp_peer(destination: &str) -> SocketAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(destination).unwrap();
    socket.peer_addr().unwrap()
}

/// The result of an echo request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ping {
    Answered,
    Unreachable,
}

/// Sends an echo request, as ping(8) does.
pub(crate) fn ping(destination: Ipv4Addr) -> Ping {
    let raw = socket(
        AddressFamily::Inet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::Icmp,
    )
    .unwrap();
    let deadline = i64::try_from(DEADLINE.as_secs()).unwrap();
    setsockopt(&raw, sockopt::ReceiveTimeout, &TimeVal::seconds(deadline)).unwrap();
    // Echo request: type, checksum, identifier, sequence number.
    let request = [8, 0, 0xe7, 0xfd, 0x10, 0x01, 0, 1];
    let to = SockaddrIn::from(SocketAddrV4::new(destination, 0));
    if sendto(raw.as_raw_fd(), &request, &to, MsgFlags::empty()).is_err() {
        return Ping::Unreachable;
    }
    loop {
        let mut packet = [0; 128];
        match recv(raw.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            Err(nix::errno::Errno::EHOSTUNREACH) => return Ping::Unreachable,
            received => assert!(received.unwrap() > 20, "an IPv4 header"),
        }
        // The ICMP type follows the IPv4 header. The request itself is received too.
        match packet[20] {
            0 => return Ping::Answered,
            3 => return Ping::Unreachable,
            _other => {}
        }
    }
}
