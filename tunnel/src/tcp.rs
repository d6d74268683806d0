//! The options of TCP connections: of a tunnel's own one, and of clients' and backends' ones.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{Get, SetUsize};
use nix::sys::socket::{getsockopt, setsockopt};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::send_queue::{TunnelSocket, UNSENT_FIRST};

/// Data that stays unacknowledged for this long means that the peer is gone.
pub(crate) const TUNNEL_USER_TIMEOUT: Duration = Duration::from_secs(20);

/// A client or backend that is silent for this long is probed.
const RELAYED_KEEPALIVE_TIME: Duration = Duration::from_secs(30);
/// Time between two probes.
const RELAYED_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered probes after which the connection has failed.
const RELAYED_KEEPALIVE_PROBES: u32 = 3;

/// The least time after which a tunnel's last packet counts as lost, in microseconds. Linux waits for 200 ms beyond
/// the round trip, and a thin stream has nothing to send that would show the loss earlier. What
/// comes later than this on a link that is uneven is sent twice, once.
const MIN_LOST_AFTER: usize = 50_000;

/// Prepares a tunnel's TCP connection: small writes go out at once, at most 256 KiB wait unsent, a
/// lost packet is sent again soon, and the connection fails when its peer acknowledges nothing for
/// 20 s. HTTP/2 pings detect a silent peer, so the kernel's keepalive stays off. What the kernel
/// lacks of this is left out.
///
/// # Errors
/// The kernel refuses an option.
pub fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    unless_unknown(setsockopt(socket, RtoMin, &MIN_LOST_AFTER).map_err(Into::into))?;
    let socket = SockRef::from(socket);
    unless_unknown(socket.set_tcp_notsent_lowat(UNSENT_FIRST))?;
    unless_unknown(socket.set_tcp_user_timeout(Some(TUNNEL_USER_TIMEOUT)))
}

/// MPTCP sockets know no TCP_USER_TIMEOUT, and before Linux 6.6 no TCP_NOTSENT_LOWAT; TCP sockets
/// before 6.15 no TCP_RTO_MIN_US.
fn unless_unknown(set: io::Result<()>) -> io::Result<()> {
    let is_unknown = |error: &io::Error| {
        [Errno::ENOPROTOOPT, Errno::EOPNOTSUPP]
            .iter()
            .any(|errno| error.raw_os_error() == Some(*errno as i32))
    };
    match set {
        Err(error) if is_unknown(&error) => Ok(()),
        set => set,
    }
}

/// Whether tunnels can use MPTCP. A kernel without it is logged.
pub fn has_mptcp() -> bool {
    match Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)) {
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(%error, "the kernel has no MPTCP (see sysctl net.mptcp.enabled); tunnels use TCP");
            false
        }
    }
}

/// Limits the segments of a socket that is not connected yet, in both directions, or of all sockets
/// that a listener will accept. Without the limit a tunnel may work too, so a failure is only
/// logged: MPTCP has none on some kernels.
pub fn limit_segments(socket: &impl AsFd, bytes: u16) {
    if let Err(error) = SockRef::from(socket).set_tcp_mss(bytes.into()) {
        tracing::warn!(bytes, %error, "the kernel refuses --tunnel-mss");
    }
}

/// `TCP_RTO_MIN_US` of linux/tcp.h, in microseconds.
const TCP_RTO_MIN_US: libc::c_int = 45;

#[derive(Clone, Copy, Debug)]
struct RtoMin;
nix::setsockopt_impl!(RtoMin, libc::IPPROTO_TCP, TCP_RTO_MIN_US, usize, SetUsize);
#[cfg(test)]
nix::getsockopt_impl!(
    RtoMin,
    libc::IPPROTO_TCP,
    TCP_RTO_MIN_US,
    usize,
    nix::sys::socket::sockopt::GetUsize
);

/// Linux's `struct tcp_info`, up to the last field that is used here. Kernels since 4.6 have it.
const INFO_SIZE: usize = 148;

#[derive(Clone, Copy, Debug)]
struct TcpInfo;
nix::getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    Option<[u8; INFO_SIZE]>,
    GetInfo
);

/// Receives a `tcp_info`. Unlike nix' `GetStruct` it bears a shorter one, as of older kernels and of
/// qemu-user.
struct GetInfo {
    length: libc::socklen_t,
    bytes: [u8; INFO_SIZE],
}

impl Get<Option<[u8; INFO_SIZE]>> for GetInfo {
    fn uninit() -> Self {
        Self {
            length: INFO_SIZE as libc::socklen_t,
            bytes: [0; INFO_SIZE],
        }
    }

    fn ffi_ptr(&mut self) -> *mut libc::c_void {
        self.bytes.as_mut_ptr().cast()
    }

    fn ffi_len(&mut self) -> *mut libc::socklen_t {
        &raw mut self.length
    }

    #[expect(
        unsafe_code,
        reason = "the trait declares it so; all bytes are initialised"
    )]
    unsafe fn assume_init(self) -> Option<[u8; INFO_SIZE]> {
        self.whole()
    }
}

impl GetInfo {
    fn whole(self) -> Option<[u8; INFO_SIZE]> {
        (self.length as usize == INFO_SIZE).then_some(self.bytes)
    }
}

/// What Linux knows about a connection.
struct Connection {
    /// tcpi_state is not TCP_CLOSE.
    is_open: bool,
    /// tcpi_rtt; 0 before the first measurement.
    round_trip: Duration,
    /// tcpi_unacked: packets.
    unacknowledged: u32,
    /// tcpi_bytes_acked.
    acknowledged: u64,
    /// tcpi_notsent_bytes.
    unsent: u32,
}

impl Connection {
    fn of(socket: &TcpStream) -> Option<Self> {
        const TCP_CLOSE: u8 = 7;
        let info = getsockopt(socket, TcpInfo).ok()??;
        let micros = u32::from_ne_bytes(*info[68..].first_chunk()?);
        Some(Self {
            is_open: info[0] != TCP_CLOSE,
            round_trip: Duration::from_micros(micros.into()),
            acknowledged: u64::from_ne_bytes(*info[120..].first_chunk()?),
            unacknowledged: u32::from_ne_bytes(*info[24..].first_chunk()?),
            unsent: u32::from_ne_bytes(*info[144..].first_chunk()?),
        })
    }
}

/// The round-trip time by the handshake and what followed.
pub(crate) fn round_trip(socket: &TcpStream) -> Option<Duration> {
    Connection::of(socket).map(|known| known.round_trip)
}

/// Whether the peer may still acknowledge bytes that were written.
pub(crate) fn awaits_acknowledgement(socket: &TcpStream) -> bool {
    Connection::of(socket)
        .is_some_and(|known| known.is_open && (known.unacknowledged > 0 || known.unsent > 0))
}

impl TunnelSocket for TcpStream {
    fn unsent(&self) -> Option<u32> {
        Some(Connection::of(self)?.unsent)
    }

    fn acknowledged(&self) -> Option<u64> {
        Some(Connection::of(self)?.acknowledged)
    }

    fn limit_unsent(&self, bytes: u32) {
        // Only a socket that has failed refuses it.
        SockRef::from(self).set_tcp_notsent_lowat(bytes).ok();
    }

    /// Linux fills the last packet of the queue, 64 KiB long, whatever `TCP_NOTSENT_LOWAT` says. So
    /// a write succeeds beyond that limit; only poll(2) tells whether it is reached.
    fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_write_ready(context))?;
            // If there is no room, tokio waits for the next event, which poll(2) has asked for.
            match self.try_io(Interest::WRITABLE, || room(self)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                asked => return Poll::Ready(asked),
            }
        }
    }
}

/// Fails with `WouldBlock` if poll(2) says that the socket takes nothing now.
fn room(socket: &TcpStream) -> io::Result<()> {
    let mut asked = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    match poll(&mut asked, PollTimeout::ZERO)? {
        0 => Err(ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

/// Prepares a client's or backend's TCP connection: small writes go out at once, and an idle peer
/// that vanished is detected a minute after its last packet (keepalive after 30 s, 3 probes, 10 s
/// apart). A peer that is alive may leave data unread as long as it likes. An urgent byte stays in
/// the stream, where its other end finds it as data.
///
/// # Errors
/// The kernel refuses an option.
pub fn tune_relayed(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_out_of_band_inline(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(RELAYED_KEEPALIVE_TIME)
        .with_interval(RELAYED_KEEPALIVE_INTERVAL)
        .with_retries(RELAYED_KEEPALIVE_PROBES);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::poll;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn no_room_is_left_once_the_limit_of_unsent_bytes_is_reached_and_there_is_after_it_was_sent()
     {
        use tokio::io::AsyncReadExt;

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        near.limit_unsent(8 << 10);
        let mut written = 0;
        while poll!(poll_fn(|context| near.poll_room(context))).is_ready() {
            written += near.try_write(&[7; 4 << 10]).unwrap();
        }
        let unsent = near.unsent().unwrap();
        assert!((4 << 10..=8 << 10).contains(&unsent), "{unsent}");
        let read = async { far.read_exact(&mut vec![0; written]).await };
        let (room, read) = tokio::join!(poll_fn(|context| near.poll_room(context)), read);
        room.unwrap();
        read.unwrap();
        assert_eq!(near.unsent(), Some(0));
    }

    #[test]
    fn a_kernel_that_tells_less_is_not_believed_and_ends_nothing() {
        let length = |length| GetInfo {
            length,
            ..GetInfo::uninit()
        };
        assert_eq!(length(4).whole(), None);
        assert!(GetInfo::uninit().whole().is_some());
    }

    #[tokio::test]
    async fn a_tunnels_lost_packet_is_sent_again_soon_where_the_kernel_can() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let near = near.await.unwrap();
        tune(&near).unwrap();
        match getsockopt(&near, RtoMin) {
            // The kernel counts in ticks.
            Ok(micros) => {
                let most = MIN_LOST_AFTER + 10_000;
                assert!((MIN_LOST_AFTER..=most).contains(&micros), "{micros}");
            }
            Err(lacking) => assert_eq!(lacking, Errno::ENOPROTOOPT),
        }
    }

    #[tokio::test]
    async fn a_limit_of_segments_at_either_end_holds_in_both_directions() {
        for is_at_listener in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let dialling = tokio::net::TcpSocket::new_v4().unwrap();
            if is_at_listener {
                limit_segments(&listener, 1000);
            } else {
                limit_segments(&dialling, 1000);
            }
            let near = dialling.connect(listener.local_addr().unwrap());
            let near = near.await.unwrap();
            let (far, _) = listener.accept().await.unwrap();
            for end in [&near, &far] {
                let largest = SockRef::from(end).tcp_mss().unwrap();
                assert!(largest <= 1000, "{is_at_listener}: {largest}");
            }
        }
    }

    #[tokio::test]
    async fn an_urgent_byte_stays_in_the_stream_of_a_relayed_peer() {
        use tokio::io::AsyncReadExt;

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (mut relayed, _) = listener.accept().await.unwrap();
        tune_relayed(&relayed).unwrap();
        let sender = SockRef::from(&peer);
        sender.send(b"abc").unwrap();
        sender.send_out_of_band(b"!").unwrap();
        sender.send(b"def").unwrap();
        drop(peer);
        let mut received = String::new();
        relayed.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "abc!def");
    }

    #[tokio::test]
    async fn a_relayed_peer_that_vanished_is_detected_after_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = TcpStream::connect(address).await.unwrap();
        tune_relayed(&socket).unwrap();
        assert!(socket.nodelay().unwrap());
        let socket = SockRef::from(&socket);
        assert!(socket.keepalive().unwrap());
        let time = socket.tcp_keepalive_time().unwrap();
        let interval = socket.tcp_keepalive_interval().unwrap();
        let detected = time + interval * socket.tcp_keepalive_retries().unwrap();
        assert_eq!(detected, Duration::from_secs(60));
    }
}
