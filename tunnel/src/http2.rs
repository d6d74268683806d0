//! HTTP/2 as both ends of a tunnel speak it: windows, limits, and noticing that the peer is gone.
//!
//! The ends drive the `h2` crate (hyper's HTTP/2) themselves: hyper would hide a stream's send
//! capacity and could not reset a stream whose body waits for it, so a client that leaves a stalled
//! backend would stay for ever.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until};

use crate::error::TunnelError;
use crate::io::LastRead;
use crate::role::Role;

/// The window of the whole connection never fills: only a stream's own window bounds it, so that no
/// stalled reader can stop its neighbours, and each idle stream may keep a frame's part of it.
pub(crate) const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes that a stream may have under way by default: the throughput of one stream times round
/// trip.
pub const DEFAULT_STREAM_WINDOW: u32 = 4 << 20;
/// The least and the most that a stream may have under way, in bytes.
pub const STREAM_WINDOW_RANGE: RangeInclusive<u32> = 256 << 10..=16 << 20;
/// Largest DATA frame either end takes: fewer, larger frames cost less, and 64 KiB still interleave
/// well.
pub(crate) const FRAME_SIZE: u32 = 64 << 10;
/// Bytes that may wait in one stream for the connection to take them.
pub(crate) const SEND_BUFFER: usize = 256 << 10;
/// Request headers are four short lines.
pub(crate) const HEADER_LIST: u32 = 8 << 10;
/// Streams that a tunnel relays at once, unless configured otherwise.
pub const DEFAULT_MAX_STREAMS: u32 = 1024;
/// Streams beyond the relayed ones: `Describe`, and streams that one end counts as ended a moment
/// before the other.
pub(crate) const SPARE_STREAMS: u32 = 64;
/// Streams that a tunnel carries in its life: HTTP/2 has numbers for twice as many. Then it is
/// replaced.
pub const STREAMS_IN_LIFE: u32 = 1 << 29;
/// Resets that may wait to be handled, and reset streams that are remembered. When a link comes
/// back after a cut, all clients that gave up meanwhile are reset at once; the defaults (20 and 50)
/// would end the whole tunnel.
pub(crate) const RESETS: usize = 8192;
/// Streams that a proxy resets in a tunnel's life because frames came for what it has forgotten. An
/// agent that reads nothing can have it queue one reset for each stream that the tunnel has ever
/// carried; these take up to 30 MiB. Of an honest agent such frames come only after a cut of the
/// link during which more than [`RESETS`] clients gave up.
pub(crate) const LATE_RESETS: usize = 16_384;
/// Streams given up in a tunnel while its agent said nothing, after which the tunnel is replaced:
/// long before it could come to [`LATE_RESETS`] by honest means.
pub(crate) const GIVEN_UP_IN_SILENCE: u32 = 4096;
/// Streams that an agent resets in a tunnel's life because what came for them made no sense. Each
/// reset waits until the proxy reads it, so that a proxy that never does must not provoke them
/// without end; these take up to 60 MiB. An honest one provokes next to none: an agent reads what
/// it has refused to its end, answers before it resets, and remembers for a while what it has
/// reset.
pub(crate) const LOCAL_ERRORS: usize = 32_768;
/// How long late frames of a reset stream are taken for what they are.
pub(crate) const RESET_MEMORY: Duration = Duration::from_secs(60);
/// A handshake or settings exchange that takes longer is given up.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of a handshake that had [`HANDSHAKE_TIMEOUT`].
pub(crate) fn established<C>(
    handshake: Result<Result<C, h2::Error>, Elapsed>,
) -> Result<C, TunnelError> {
    handshake
        .map_err(|_| TunnelError::HandshakeTimedOut)?
        .map_err(TunnelError::Http2)
}

/// After this long without a byte from the agent the proxy pings it, unless configured otherwise.
pub const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(6);
/// The least and the most that this may be.
pub const KEEPALIVE_RANGE: RangeInclusive<Duration> =
    Duration::from_secs(5)..=Duration::from_secs(300);

/// How long a tunnel may be silent: the agent's choice, which it tells the proxy. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Keepalive(Arc<AtomicU64>);

impl Keepalive {
    /// As an agent tells it in `Describe`: in seconds; 0 is the default.
    pub(crate) fn of(seconds: u32) -> Self {
        let keepalive = Self(Arc::default());
        keepalive.set(seconds);
        keepalive
    }

    pub(crate) fn set(&self, seconds: u32) {
        let (least, most) = (*KEEPALIVE_RANGE.start(), *KEEPALIVE_RANGE.end());
        let chosen = if seconds == 0 {
            DEFAULT_KEEPALIVE
        } else {
            Duration::from_secs(seconds.into())
        };
        self.0
            .store(chosen.clamp(least, most).as_secs(), Ordering::Relaxed);
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    /// A tunnel from which nothing came for this long is the last that a new stream should try.
    pub(crate) fn silent_after(&self) -> Duration {
        self.interval() * 3 / 2
    }

    /// A peer from which nothing came for this long is dead. Stalls of several seconds happen on
    /// edge links and are none.
    fn dead_after(&self) -> Duration {
        self.interval() * 3
    }

    /// The proxy pings first. The agent does only where it hears nothing all the same: bytes may
    /// flow to the proxy alone, whose reads say nothing to the agent.
    fn ping_after(&self, role: Role) -> Duration {
        match role {
            Role::Proxy => self.interval(),
            Role::Agent => self.interval() * 4 / 3,
        }
    }
}

/// HTTP/2's window for a stream that may have about `under_way` bytes under way. h2 gives a window
/// back in parts of a third and more, so that some of it is always with the receiver; all of it may
/// wait for a reader that takes nothing.
pub(crate) fn initial_window(under_way: u32) -> u32 {
    under_way / 4 * 5
}

/// Round-trip time of a tunnel's last ping. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct RoundTrip(Arc<AtomicU64>);

impl RoundTrip {
    /// The last one measured; `None` before the first.
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
/// life, so that a ping waiting behind bulk on a slow link is no false alarm, and where bytes flow
/// nothing is sent.
pub(crate) async fn peer_death(
    mut pings: PingPong,
    last_read: LastRead,
    round_trip: RoundTrip,
    keepalive: Keepalive,
    role: Role,
) -> Duration {
    let mut sent: Option<Instant> = None;
    // The first ping goes out at once, so that a round trip is known early.
    let mut ping_at = Instant::now();
    loop {
        let dead_at = last_read.at() + keepalive.dead_after();
        tokio::select! {
            pong = std::future::poll_fn(|context| pings.poll_pong(context)), if sent.is_some() => {
                let Ok(_) = pong else { return std::future::pending().await };
                round_trip.set(sent.take().map(|at| at.elapsed()).unwrap_or_default());
                ping_at = last_read.at() + keepalive.ping_after(role);
            }
            () = sleep_until(ping_at), if sent.is_none() => {
                let next = last_read.at() + keepalive.ping_after(role);
                if round_trip.last().is_some() && next > Instant::now() {
                    ping_at = next;
                    continue;
                }
                // An error means that the connection has ended, which its driver reports.
                if pings.send_ping(Ping::opaque()).is_err() {
                    return std::future::pending().await;
                }
                sent = Some(Instant::now());
            }
            () = sleep_until(dead_at) => {
                let silent = last_read.at().elapsed();
                if silent >= keepalive.dead_after() {
                    return silent;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_an_agent_tells_a_tunnel_is_silent_for_5_s_at_least_and_5_minutes_at_most() {
        let interval = |seconds| Keepalive::of(seconds).interval().as_secs();
        assert_eq!(
            [0, 1, 5, 60, 300, u32::MAX].map(interval),
            [6, 5, 5, 60, 300, 300]
        );
    }

    #[test]
    fn a_dead_peer_is_noticed_within_20_s_by_default_and_a_silent_one_avoided_after_one_ping_in_vain()
     {
        let keepalive = Keepalive::of(0);
        assert!(keepalive.dead_after() < Duration::from_secs(20));
        let pinged = keepalive.ping_after(Role::Proxy);
        assert!(
            pinged < keepalive.ping_after(Role::Agent),
            "only one end pings"
        );
        assert!(
            pinged < keepalive.silent_after() && keepalive.silent_after() < keepalive.dead_after()
        );
    }
}
