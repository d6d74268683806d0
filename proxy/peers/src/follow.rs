//! Follows the proxy at one address: one session after another, with a pause after each that failed.

mod apply;
mod session;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_daemon::{Backoff, Problem, chain};
use culvert_proxy_streams::peers::PeerInfo;
use culvert_proxy_streams::registry::PeerRegistration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Peers;
use super::connected::Role;
use apply::apply_update;
use session::{Session, SessionEnd};
use watch::{FollowError, Updates, Watch};

/// A peer that was lost keeps its nodes online for this long: it may only be hard to reach.
const LOST_TIMEOUT: Duration = Duration::from_secs(15);
/// When an address of this proxy itself, or of a peer that is followed already, is tried again.
const DUPLICATE_PAUSE: Duration = Duration::from_secs(30);

/// Follows the proxy at `address`. One that drains is followed to its end, while its successor at
/// the same address is followed too. Once the address is `unlisted` it is not dialled again, and a
/// connection that is up goes on to its end.
pub(super) async fn follow(
    peers: Arc<Peers>,
    address: SocketAddr,
    role: Role,
    unlisted: CancellationToken,
) {
    let mut follower = Follower {
        peers,
        address,
        role,
        lost: None,
        draining: JoinSet::new(),
        backoff: Backoff::new(Duration::from_millis(250), Duration::from_secs(5)),
        problem: Problem::default(),
    };
    loop {
        let pause = follower.attempt().await;
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = unlisted.cancelled() => break,
        }
        follower.forget_lost();
    }
    while follower.draining.join_next().await.is_some() {}
}

struct Follower {
    peers: Arc<Peers>,
    address: SocketAddr,
    role: Role,
    /// The peer of the last session, if its connection was lost.
    lost: Option<LostPeer>,
    /// The sessions of peers that drain.
    draining: JoinSet<()>,
    backoff: Backoff,
    problem: Problem,
}

struct LostPeer {
    registration: PeerRegistration,
    lost_at: Instant,
}

/// What is at the address.
enum Connected {
    /// This proxy itself.
    Myself,
    /// A peer that is followed at another address.
    Duplicate,
    /// A peer that drains, and is followed beside.
    Draining,
}

impl Follower {
    /// Runs one session. Returns the pause before the next one.
    async fn attempt(&mut self) -> Duration {
        let started = Instant::now();
        match self.run_session().await {
            Ok(Connected::Draining) => return Duration::ZERO,
            Ok(Connected::Myself | Connected::Duplicate) => {
                if self.draining.is_empty() {
                    return DUPLICATE_PAUSE;
                }
            }
            Err(error) => self.report(&error),
        }
        self.backoff.wait_after(started.elapsed())
    }

    /// Connects, and follows the peer until it drains or its connection ends.
    async fn run_session(&mut self) -> Result<Connected, FollowError> {
        let watch = Watch::start(&self.peers, self.address, self.role).await?;
        let mut snapshot = watch.snapshot;
        if watch.info.instance == self.peers.own.instance {
            if self.role == Role::Primary {
                return Err(FollowError::Itself);
            }
            self.lost = None;
            return Ok(Connected::Myself);
        }
        apply_update(&self.peers, &mut snapshot, self.role).await;
        self.peers.trust.record_peer_sync();
        let connected = self.peers.connected.add(watch.channel, self.role);
        let Some(registration) = self.register(watch.info) else {
            if self.role == Role::Primary && !snapshot.draining {
                return Err(self.apply_all(watch.updates).await);
            }
            return Ok(Connected::Duplicate);
        };
        let session = Session::start(
            &self.peers,
            (self.address, self.role),
            registration,
            snapshot,
            watch.updates,
            connected,
        );
        match session.run().await {
            SessionEnd::Draining(session) => {
                self.draining.spawn(session.run_to_end());
                Ok(Connected::Draining)
            }
            SessionEnd::Lost(registration, error) => {
                let lost_at = Instant::now();
                self.lost = Some(LostPeer {
                    registration,
                    lost_at,
                });
                Err(error)
            }
        }
    }

    /// Registers the peer, or goes on with its registration if it is the one that was lost. `None`:
    /// it is registered by another address.
    fn register(&mut self, info: PeerInfo) -> Option<PeerRegistration> {
        if let Some(lost) = self.lost.take()
            && lost.registration.info().instance == info.instance
        {
            return Some(lost.registration);
        }
        self.peers.registry.register_peer(info)
    }

    /// Applies revocations and directory of the primary, whose tunnels are known by another address.
    async fn apply_all(&self, mut updates: Updates) -> FollowError {
        loop {
            match updates.next().await {
                Ok(mut update) => apply_update(&self.peers, &mut update, self.role).await,
                Err(error) => return error,
            }
        }
    }

    fn report(&mut self, error: &FollowError) {
        let reason = chain(error);
        if let Some(primary) = &self.peers.primary
            && self.role == Role::Primary
        {
            primary.record_failure(reason.clone());
        }
        if let Some(reason) = self.problem.record(Some(reason)) {
            tracing::warn!(peer.addr = %self.address, reason, "no connection to a peer");
        }
    }

    /// Forgets a peer that was lost too long ago, and sessions that have ended.
    fn forget_lost(&mut self) {
        if let Some(lost) = &self.lost
            && lost.lost_at.elapsed() >= LOST_TIMEOUT
        {
            self.lost = None;
        }
        while self.draining.try_join_next().is_some() {}
    }
}
