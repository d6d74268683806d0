//! HTTP/2 as both ends of a tunnel speak it: windows, limits, and noticing that the peer is gone.
//!
//! The ends drive the `h2` crate (hyper's HTTP/2) themselves: hyper would hide a stream's send capacity and could not reset a
//! stream whose body waits for it, so a client that leaves a stalled backend would stay for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, sleep_until};

use crate::io::LastRead;

/// The window of the whole connection never fills: only a stream's own window bounds it, so that no stalled reader can stop
/// its neighbours, and each idle stream may keep a frame's part of it.
pub(crate) const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes that a stream may have under way by default: the throughput of one stream times round trip.
pub const DEFAULT_STREAM_WINDOW: u32 = 4 << 20;
/// The least and the most that a stream may have under way, in bytes.
pub const STREAM_WINDOW_RANGE: std::ops::RangeInclusive<u32> = 256 << 10..=16 << 20;
/// Largest DATA frame either end takes: fewer, larger frames cost less, and 64 KiB still interleave well.
pub(crate) const FRAME_SIZE: u32 = 64 << 10;
/// Bytes that may wait in one stream for the connection to take them.
pub(crate) const SEND_BUFFER: usize = 256 << 10;
/// Request headers are four short lines.
pub(crate) const HEADER_LIST: u32 = 8 << 10;
/// Streams that a tunnel relays at once, unless configured otherwise.
pub const DEFAULT_MAX_STREAMS: u32 = 1024;
/// Streams beyond the relayed ones: `Describe`, and streams that one end counts as ended a moment before the other.
pub(crate) const SPARE_STREAMS: u32 = 64;
/// Resets that may wait to be handled, and reset streams that are remembered. When a link comes back after a cut, all
/// clients that gave up meanwhile are reset at once; the defaults (20 and 50) would end the whole tunnel. h2's third limit, errors
/// in a connection's whole life, is switched off: late frames of forgotten streams count there, and tunnels live for months.
pub(crate) const RESETS: usize = 8192;
/// Streams that an agent resets in a tunnel's life because what came for them made no sense. Each reset waits until the proxy reads
/// it, so that a proxy that never does must not provoke them without end; these take up to 60 MiB. An honest one provokes next to
/// none: an agent reads what it has refused to its end, answers before it resets, and remembers for a while what it has reset.
pub(crate) const LOCAL_ERRORS: usize = 32_768;
/// How long late frames of a reset stream are taken for what they are.
pub(crate) const RESET_MEMORY: Duration = Duration::from_secs(60);
/// A handshake or settings exchange that takes longer is given up.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A peer from which nothing came for this long is pinged.
const PING_AFTER: Duration = Duration::from_secs(6);
/// A tunnel from which nothing came for this long is the last that a new stream should try.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(9);
/// A peer from which nothing came for this long is dead. Stalls of several seconds happen on edge links and are none.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(18);

/// HTTP/2's window for a stream that may have about `under_way` bytes under way. h2 gives a window back in parts of a third and
/// more, so that some of it is always with the receiver; all of it may wait for a reader that takes nothing.
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
        self.0.store(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }
}

/// Pings a silent peer, and returns how long it has been silent once it is dead. Any byte counts as life, so that a ping
/// waiting behind bulk on a slow link is no false alarm.
pub(crate) async fn peer_death(mut pings: PingPong, last_read: LastRead, round_trip: RoundTrip) -> Duration {
    let mut sent: Option<Instant> = None;
    // The first ping goes out at once, so that a round trip is known early.
    let mut ping_at = Instant::now();
    loop {
        let dead_at = last_read.at() + DEAD_AFTER;
        tokio::select! {
            pong = std::future::poll_fn(|context| pings.poll_pong(context)), if sent.is_some() => {
                let Ok(_) = pong else { return std::future::pending().await };
                round_trip.set(sent.take().map(|at| at.elapsed()).unwrap_or_default());
                ping_at = Instant::now() + PING_AFTER;
            }
            () = sleep_until(ping_at), if sent.is_none() => {
                // An error means that the connection has ended, which its driver reports.
                if pings.send_ping(Ping::opaque()).is_err() {
                    return std::future::pending().await;
                }
                sent = Some(Instant::now());
            }
            () = sleep_until(dead_at) => {
                let silent = last_read.at().elapsed();
                if silent >= DEAD_AFTER {
                    return silent;
                }
            }
        }
    }
}
