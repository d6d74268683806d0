//! The options of TCP connections: of a tunnel's own one, and of clients' and backends' ones.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Bytes of a tunnel that may wait unsent in its socket: more would delay small streams behind
/// bulk.
const TUNNEL_UNSENT: u32 = 256 << 10;
/// Data that stays unacknowledged for this long means that the peer is gone.
const TUNNEL_USER_TIMEOUT: Duration = Duration::from_secs(20);

/// A client or backend that is silent for this long is probed.
const RELAYED_KEEPALIVE_TIME: Duration = Duration::from_secs(30);
/// Time between two probes.
const RELAYED_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered probes after which the connection has failed.
const RELAYED_KEEPALIVE_PROBES: u32 = 3;

/// Prepares a tunnel's TCP connection: small writes go out at once, at most 256 KiB wait unsent,
/// and the connection fails when its peer acknowledges nothing for 20 s. HTTP/2 pings detect a
/// silent peer, so the kernel's keepalive stays off.
///
/// # Errors
/// The kernel refuses an option.
pub fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    socket.set_tcp_notsent_lowat(TUNNEL_UNSENT)?;
    socket.set_tcp_user_timeout(Some(TUNNEL_USER_TIMEOUT))
}

/// Prepares a client's or backend's TCP connection: small writes go out at once, and an idle peer
/// that vanished is detected a minute after its last packet (keepalive after 30 s, 3 probes, 10 s
/// apart). A peer that is alive may leave data unread as long as it likes.
///
/// # Errors
/// The kernel refuses an option.
pub fn tune_relayed(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(RELAYED_KEEPALIVE_TIME)
        .with_interval(RELAYED_KEEPALIVE_INTERVAL)
        .with_retries(RELAYED_KEEPALIVE_PROBES);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_relayed_peer_that_vanished_is_detected_after_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = TcpStream::connect(address).await.unwrap();
        tune_relayed(&socket).unwrap();
        assert!(socket.nodelay().unwrap());
        let socket = SockRef::from(&socket);
        assert!(socket.keepalive().unwrap());
        let (time, interval) = (
            socket.tcp_keepalive_time().unwrap(),
            socket.tcp_keepalive_interval().unwrap(),
        );
        let detected = time + interval * socket.tcp_keepalive_retries().unwrap();
        assert_eq!(detected, Duration::from_secs(60));
    }
}
