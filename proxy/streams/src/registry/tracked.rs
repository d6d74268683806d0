//! The streams of a tunnel, as far as they can move.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use culvert_tunnel::{MovableStream, MoveError, Transferred};
use parking_lot::{Mutex, MutexGuard};

use super::Registered;
use super::heavy::Looks;

/// An open stream and the tunnel that it is in.
#[derive(Debug)]
pub(crate) struct TrackedStream {
    number: u64,
    stream: MovableStream,
    transferred: Arc<Transferred>,
    location: Mutex<Location>,
}

#[derive(Debug)]
struct Location {
    tunnel: Arc<Registered>,
    looks: Looks,
    /// It does not move before.
    pause: Option<Instant>,
    has_ended: bool,
}

/// The streams of one tunnel that can move, by number.
#[derive(Debug, Default)]
pub(crate) struct TunnelStreams(Mutex<BTreeMap<u64, Arc<TrackedStream>>>);

/// The heavy streams of a tunnel.
#[derive(Debug)]
pub(crate) struct HeavyStreams {
    /// They should have other tunnels.
    pub(crate) leaving: Vec<Arc<TrackedStream>>,
    /// Whether there are others, which stay.
    pub(crate) some_stay: bool,
}

/// Keeps a stream in the list of the tunnel that it is in.
#[derive(Debug)]
pub(crate) struct Tracking(pub(crate) Arc<TrackedStream>);

impl Tracking {
    /// Tracks a stream that was opened in `tunnel`.
    pub(crate) fn start(
        number: u64,
        stream: MovableStream,
        transferred: Arc<Transferred>,
        tunnel: Arc<Registered>,
    ) -> Self {
        let location = Location {
            tunnel: tunnel.clone(),
            looks: Looks::default(),
            pause: None,
            has_ended: false,
        };
        let tracked = Arc::new(TrackedStream {
            number,
            stream,
            transferred,
            location: Mutex::new(location),
        });
        tunnel.streams.add(&tracked);
        Self(tracked)
    }
}

impl Drop for Tracking {
    fn drop(&mut self) {
        let mut location = self.0.lock();
        location.has_ended = true;
        location.tunnel.streams.remove(self.0.number);
    }
}

impl TrackedStream {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The tunnel that it is in, or moves to.
    pub(crate) fn tunnel(&self) -> Arc<Registered> {
        self.lock().tunnel.clone()
    }

    /// How often it has moved.
    pub(crate) fn moves(&self) -> u32 {
        self.stream.moves()
    }

    /// It does not move before `until`.
    pub(crate) fn pause(&self, until: Instant) {
        self.lock().pause = Some(until);
    }

    /// Moves the stream to another tunnel of its agent.
    ///
    /// # Errors
    /// It stays where it is.
    pub(crate) async fn move_to(
        self: &Arc<Self>,
        tunnel: &Arc<Registered>,
    ) -> Result<(), MoveError> {
        tunnel.tunnel.resume(&self.stream).await?;
        let mut location = self.lock();
        if !location.has_ended {
            location.tunnel.streams.remove(self.number);
            tunnel.streams.add(self);
            location.tunnel = tunnel.clone();
        }
        Ok(())
    }

    /// Whether it is heavy, and whether it may move, after a look.
    fn look(&self, now: Instant) -> [bool; 2] {
        let Transferred {
            into_tunnel,
            out_of_tunnel,
        } = &*self.transferred;
        let bytes = into_tunnel.bytes() + out_of_tunnel.bytes();
        let mut location = self.lock();
        let may_move = location.pause.is_none_or(|pause| pause <= now);
        [location.looks.add(bytes, now), may_move]
    }

    fn lock(&self) -> MutexGuard<'_, Location> {
        self.location.lock()
    }
}

impl TunnelStreams {
    fn add(&self, stream: &Arc<TrackedStream>) {
        self.lock().insert(stream.number, stream.clone());
    }

    fn remove(&self, number: u64) {
        self.lock().remove(&number);
    }

    /// The heavy ones, of so many streams of the tunnel in all. Beside light streams all heavy ones
    /// leave; where all are heavy, one stays.
    pub(super) fn heavy(&self, all: u32, now: Instant) -> HeavyStreams {
        let streams: Vec<_> = self.lock().values().cloned().collect();
        let mut heavy = 0;
        let mut leaving = Vec::new();
        for stream in streams {
            let [is_heavy, may_move] = stream.look(now);
            heavy += usize::from(is_heavy);
            if is_heavy && may_move {
                leaving.push(stream);
            }
        }
        if heavy >= all as usize {
            leaving.pop();
        }
        let some_stay = heavy > leaving.len();
        HeavyStreams { leaving, some_stay }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<TrackedStream>>> {
        self.0.lock()
    }
}
