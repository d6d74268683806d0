//! HTTP/2 at both ends of a tunnel: windows, limits, and detection of a dead peer.
//!
//! The ends use the `h2` crate directly. hyper hides a stream's send capacity and cannot reset a
//! stream whose body waits for it: a stream would never end when its client leaves a stalled
//! backend.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::sync::Notify;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until};

use crate::error::TunnelError;
use crate::io::SocketState;
use crate::role::Role;

/// The window of the whole connection never fills, so that a stalled reader cannot stop other
/// streams. Only a stream's own window bounds it. Each idle stream may keep up to a frame of it.
pub(crate) const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes that a stream may have in flight by default: its bandwidth-delay product.
pub const DEFAULT_STREAM_WINDOW: u32 = 4 << 20;
/// The allowed range of the bytes that a stream may have in flight.
pub const STREAM_WINDOW_RANGE: RangeInclusive<u32> = 256 << 10..=16 << 20;
/// What HTTP/2 puts before a frame. The frames of bulk leave room for it, so that with it they fill
/// whole TLS records.
pub(crate) const FRAME_HEAD: usize = 9;
/// Unsent bytes that may wait in one stream.
pub(crate) const SEND_BUFFER: usize = 256 << 10;
/// Largest header list: a request has four short headers.
pub(crate) const HEADER_LIST: u32 = 8 << 10;
/// Streams that a tunnel relays at once, unless configured otherwise.
pub const DEFAULT_MAX_STREAMS: u32 = 1024;
/// Streams beyond the relayed ones: `Describe`, and streams that one end counts as ended a moment
/// before the other.
pub(crate) const SPARE_STREAMS: u32 = 64;
/// Streams that a tunnel carries in all before it is replaced. HTTP/2 has numbers for twice as
/// many.
pub const STREAMS_IN_LIFE: u32 = 1 << 29;
/// Resets that may wait to be handled, and reset streams that are remembered. When a link returns
/// after a cut, the streams of all clients that left meanwhile are reset at once. h2's defaults (20
/// and 50) would then end the tunnel.
pub(crate) const RESETS: usize = 8192;
/// Resets that a proxy sends in a tunnel's life for frames of streams that it no longer remembers.
/// An agent that reads nothing can make it queue that many, which take up to 30 MiB. An honest
/// agent sends such frames only after a cut of the link during which more than [`RESETS`] clients
/// left.
pub(crate) const LATE_RESETS: usize = 16_384;
/// Streams that clients left while nothing arrived from the agent, after which the tunnel is
/// replaced: an honest agent must not reach [`LATE_RESETS`].
pub(crate) const GIVEN_UP_IN_SILENCE: u32 = 4096;
/// Resets that an agent sends in a tunnel's life for invalid frames. A proxy that reads nothing can
/// make it queue that many, which take up to 60 MiB. An honest proxy causes almost none: an agent
/// reads refused streams to their end, and remembers those that it has reset.
pub(crate) const LOCAL_ERRORS: usize = 32_768;
/// How long a reset stream is remembered, so that its late frames are no errors.
pub(crate) const RESET_MEMORY: Duration = Duration::from_secs(60);
/// A handshake, or a `Describe` call, fails after this time.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maps the errors of a handshake with [`HANDSHAKE_TIMEOUT`].
pub(crate) fn established<C>(
    handshake: Result<Result<C, h2::Error>, Elapsed>,
) -> Result<C, TunnelError> {
    handshake
        .map_err(|_| TunnelError::HandshakeTimedOut)?
        .map_err(TunnelError::from)
}

/// Default of the time without a byte from the agent after which the proxy pings it. Load balancers
/// often end a connection after 60 s without a byte, and each ping costs 230 bytes of a metered link.
pub const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(45);
/// The allowed range of that time.
pub const KEEPALIVE_RANGE: RangeInclusive<Duration> =
    Duration::from_secs(5)..=Duration::from_secs(300);
/// The same before the agent has reported its own time.
const UNSET_SECONDS: u32 = 6;
/// The same between proxies, in seconds.
pub const PEER_KEEPALIVE: u32 = 6;
/// A peer that has been silent for this long is pinged when a stream is opened.
const ASK_AFTER: Duration = Duration::from_secs(6);
/// The agent pings this much later than the proxy: only if it still receives nothing, as when bytes
/// flow to the proxy alone.
const AGENT_PING_DELAY: Duration = Duration::from_secs(2);
/// New streams avoid a tunnel whose ping has had no answer for this long.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// A peer is dead after nothing arrived from it for this much longer than `--keepalive`, or for this
/// long after a ping. Stalls of several seconds are normal on edge links.
const DEAD_AFTER: Duration = Duration::from_secs(12);

/// How long a tunnel may be silent, and what was asked in its silence. The agent chooses the time,
/// and reports it to the proxy in `Describe`. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Keepalive(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    seconds: AtomicU64,
    socket_state: SocketState,
    /// When the last ping was sent, in microseconds since `start`.
    pinged_at: AtomicU64,
    /// Whether it has no answer yet.
    awaits_pong: AtomicBool,
    start: Instant,
    /// Notified when the tunnel is used while it is silent.
    used: Notify,
}

impl Keepalive {
    /// Until [`Self::set`].
    pub(crate) fn unset(socket_state: SocketState) -> Self {
        Self::of(UNSET_SECONDS, socket_state)
    }

    /// `seconds` as in `Describe`: 0 is the default, and the range is enforced.
    pub(crate) fn of(seconds: u32, socket_state: SocketState) -> Self {
        let keepalive = Self(Arc::new(Shared {
            seconds: AtomicU64::default(),
            socket_state,
            pinged_at: AtomicU64::default(),
            awaits_pong: AtomicBool::default(),
            start: Instant::now(),
            used: Notify::new(),
        }));
        keepalive.set(seconds);
        keepalive
    }

    pub(crate) fn set(&self, seconds: u32) {
        let least = *KEEPALIVE_RANGE.start();
        let most = *KEEPALIVE_RANGE.end();
        let chosen = if seconds == 0 {
            DEFAULT_KEEPALIVE
        } else {
            Duration::from_secs(seconds.into())
        };
        let chosen = chosen.clamp(least, most).as_secs();
        self.0.seconds.store(chosen, Ordering::Relaxed);
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(self.0.seconds.load(Ordering::Relaxed))
    }

    /// Whether a ping has had no answer, and nothing else has arrived, for some time: new streams
    /// avoid the tunnel.
    pub(crate) fn is_silent(&self) -> bool {
        self.asked_at()
            .is_some_and(|asked| asked.elapsed() > SILENT_AFTER)
    }

    /// What is known about the tunnel's socket.
    pub(crate) fn socket_state(&self) -> &SocketState {
        &self.0.socket_state
    }

    /// Whether bulk data keeps the tunnel busy.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.socket_state.is_busy()
    }

    /// A stream is opened. A tunnel that has been silent for some time is asked whether it is alive.
    pub(crate) fn used(&self) {
        if self.0.socket_state.last_read().elapsed() > ASK_AFTER.min(self.interval()) {
            self.0.used.notify_one();
        }
    }

    /// Since when nothing has arrived although a ping should be answered.
    fn asked_at(&self) -> Option<Instant> {
        let pinged = Duration::from_micros(self.0.pinged_at.load(Ordering::Relaxed));
        let asked = self.0.socket_state.last_read().max(self.0.start + pinged);
        self.0.awaits_pong.load(Ordering::Relaxed).then_some(asked)
    }

    /// A ping was sent.
    pub(crate) fn pinged(&self) {
        let micros = u64::try_from(self.0.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.pinged_at.store(micros, Ordering::Relaxed);
        self.0.awaits_pong.store(true, Ordering::Relaxed);
    }

    /// The ping was answered.
    fn ponged(&self) {
        self.0.awaits_pong.store(false, Ordering::Relaxed);
    }

    fn dead_at(&self) -> Instant {
        let latest = self.0.socket_state.last_read() + self.interval();
        self.asked_at().map_or(latest, |asked| asked.min(latest)) + DEAD_AFTER
    }

    fn ping_at(&self, role: Role) -> Instant {
        let silent = self.0.socket_state.last_read() + self.interval();
        match role {
            Role::Proxy => silent,
            Role::Agent => silent + AGENT_PING_DELAY,
        }
    }
}

/// The HTTP/2 window of a stream that may have about `in_flight` bytes in flight. It is larger
/// because h2 releases a window in steps of a third or more. A stalled reader may hold all of it.
pub(crate) fn initial_window(in_flight: u32) -> u32 {
    in_flight / 4 * 5
}

/// Round-trip time of a tunnel's last ping. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct RoundTrip(Arc<AtomicU64>);

impl RoundTrip {
    /// The last measurement; `None` before the first.
    #[must_use]
    pub fn last(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    fn set(&self, elapsed: Duration) {
        self.0.store(
            u64::try_from(elapsed.as_micros())
                .unwrap_or(u64::MAX)
                .max(1),
            Ordering::Relaxed,
        );
    }
}

/// Pings a silent peer, and returns how long it has been silent once it is dead. Any byte counts as
/// a sign of life: a ping that waits after bulk data on a slow link causes no false alarm, and
/// nothing is sent while bytes flow.
pub(crate) async fn peer_death(
    mut pings: PingPong,
    round_trip: RoundTrip,
    keepalive: Keepalive,
    role: Role,
) -> Duration {
    let mut sent: Option<Instant> = None;
    // The first ping is sent at once, so that the round-trip time is known early.
    let mut ping_at = Instant::now();
    let mut was_used = false;
    loop {
        tokio::select! {
            pong = std::future::poll_fn(|context| pings.poll_pong(context)), if sent.is_some() => {
                let Ok(_) = pong else { return std::future::pending().await };
                keepalive.ponged();
                round_trip.set(sent.take().map(|at| at.elapsed()).unwrap_or_default());
                ping_at = keepalive.ping_at(role);
            }
            () = keepalive.0.used.notified(), if sent.is_none() => {
                (ping_at, was_used) = (Instant::now(), true);
            }
            () = sleep_until(ping_at), if sent.is_none() => {
                let next = keepalive.ping_at(role);
                if round_trip.last().is_some() && !was_used && next > Instant::now() {
                    ping_at = next;
                    continue;
                }
                // An error means that the connection has ended, and its driver reports that.
                if pings.send_ping(Ping::opaque()).is_err() {
                    return std::future::pending().await;
                }
                keepalive.pinged();
                (sent, was_used) = (Some(Instant::now()), false);
            }
            () = sleep_until(keepalive.dead_at()) => {
                if keepalive.dead_at() <= Instant::now() {
                    return keepalive.0.socket_state.last_read().elapsed();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReadAhead;

    fn keepalive(seconds: u32) -> Keepalive {
        let (near, _far) = tokio::io::duplex(1);
        Keepalive::of(seconds, ReadAhead::new(near).socket_state())
    }

    #[test]
    fn whatever_an_agent_tells_a_tunnel_is_silent_for_5_s_at_least_and_5_minutes_at_most() {
        let interval = |seconds| keepalive(seconds).interval().as_secs();
        assert_eq!(
            [0, 1, 5, 60, 300, u32::MAX].map(interval),
            [45, 5, 5, 60, 300, 300]
        );
    }

    /// Many end a connection after 60 s without a byte; NAT and firewalls seldom do so earlier.
    #[test]
    fn load_balancers_on_the_way_see_bytes_often_enough_by_default() {
        // A lost ping is sent again until the peer counts as dead.
        let latest = DEFAULT_KEEPALIVE + DEAD_AFTER;
        assert!(latest < Duration::from_secs(60));
    }

    #[test]
    fn only_one_end_pings_and_a_silent_tunnel_is_avoided_before_it_is_dead() {
        assert!(AGENT_PING_DELAY < SILENT_AFTER && SILENT_AFTER < DEAD_AFTER);
    }
}
