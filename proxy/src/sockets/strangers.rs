//! Permits for connections whose peers have not shown an identity yet. An address with many permits
//! loses them to addresses with few, and the oldest connection gives way to a newcomer. So silent
//! connections lock nobody out.

mod handshake;
mod pool;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

pub(crate) use handshake::{HandshakeError, handshake, say_busy};
use pool::{Limits, Origin, Pool};

/// The phase of a stranger's connection. Each phase has its own permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The peer has not sent anything yet.
    Silent,
    /// TLS has begun.
    Handshake,
    /// TLS is complete: the connection enrols, or a tunnel is being set up.
    Call,
}

/// TLS handshakes that go on at once, unless the operator says otherwise. They share the
/// processors: with this limit they still end in time.
pub(crate) const DEFAULT_HANDSHAKES: u16 = 128;

/// The permits of each phase, where so many handshakes may go on at once. A permit costs a
/// descriptor, and in the later phases a TLS session. A silent connection costs little: two
/// thousand agents that come at once all find room to begin. No handshake loses its permit to
/// another. An enrolment may wait for the API server.
fn limits(handshakes: u16) -> [Limits; 3] {
    let of = |times: usize, spared: Duration| Limits {
        permits: times * usize::from(handshakes.max(1)),
        spared,
    };
    [
        of(16, Duration::from_millis(500)),
        of(1, Duration::from_secs(8)),
        of(2, Duration::from_secs(8)),
    ]
}

/// The time for which an address is remembered after a tunnel from it.
const KNOWN_FOR: Duration = Duration::from_secs(24 * 3600);
/// The number of remembered addresses. One more replaces the oldest.
const KNOWN_MAX: usize = 16 << 10;

/// The permits. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Strangers(Arc<Mutex<Permits>>);

#[derive(Debug)]
struct Permits {
    limits: [Limits; 3],
    /// The pools of strangers and of addresses that lately had a tunnel.
    pools: [[Pool; 3]; 2],
    known: HashMap<IpNet, Instant>,
    next: u64,
}

/// A permit, returned on drop.
#[derive(Debug)]
pub(crate) struct HandshakePermit {
    strangers: Strangers,
    origin: Origin,
    /// Whether its address is known: index into the pools.
    known: usize,
    phase: Phase,
    number: u64,
    evicted: CancellationToken,
}

/// All permits are taken, and nobody has more than a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many connections have not shown who they are yet")]
pub(crate) struct Full;

impl Strangers {
    /// Permits for so many TLS handshakes at once, and for what comes before and after them.
    pub(crate) fn new(handshakes: u16) -> Self {
        Self(Arc::new(Mutex::new(Permits {
            limits: limits(handshakes),
            pools: Default::default(),
            known: HashMap::new(),
            next: 0,
        })))
    }

    /// A permit for a new connection from `address` that is in this phase.
    pub(crate) fn enter(&self, address: IpAddr, phase: Phase) -> Result<HandshakePermit, Full> {
        let origin = Origin::of(address);
        let (mut permits, now) = (self.lock(), Instant::now());
        let lately = |since: &Instant| now.saturating_duration_since(*since) < KNOWN_FOR;
        let known = usize::from(permits.known.get(&origin.host).is_some_and(lately));
        let evicted = CancellationToken::new();
        let number = permits.take(known, phase, origin, &evicted, now)?;
        drop(permits);
        Ok(HandshakePermit {
            strangers: self.clone(),
            origin,
            known,
            phase,
            number,
            evicted,
        })
    }

    /// Notes a tunnel from `address`. From now on it has permits that strangers do not take.
    pub(crate) fn proven(&self, address: IpAddr) {
        let (mut permits, now) = (self.lock(), Instant::now());
        let known = &mut permits.known;
        let host = Origin::of(address).host;
        if known.len() >= KNOWN_MAX && !known.contains_key(&host) {
            let oldest = known
                .iter()
                .min_by_key(|(_, since)| **since)
                .map(|(host, _)| *host);
            oldest.map(|oldest| known.remove(&oldest));
        }
        known.insert(host, now);
    }

    fn lock(&self) -> MutexGuard<'_, Permits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permits {
    fn take(
        &mut self,
        known: usize,
        phase: Phase,
        origin: Origin,
        evicted: &CancellationToken,
        now: Instant,
    ) -> Result<u64, Full> {
        self.next += 1;
        let taken = self.pools[known][phase as usize].take(
            self.next,
            origin,
            evicted,
            self.limits[phase as usize],
            now,
        );
        taken.then_some(self.next).ok_or(Full)
    }
}

impl HandshakePermit {
    /// Takes a permit of the next phase and returns the present one. If all of the next phase are
    /// taken, it keeps the present one.
    pub(crate) fn advance(&mut self, phase: Phase) -> Result<(), Full> {
        if self.phase == phase {
            return Ok(());
        }
        let strangers = self.strangers.clone();
        let mut permits = strangers.lock();
        let number = permits.take(
            self.known,
            phase,
            self.origin,
            &self.evicted,
            Instant::now(),
        )?;
        permits.pools[self.known][self.phase as usize].leave(self.number);
        (self.phase, self.number) = (phase, number);
        Ok(())
    }

    /// Cancelled when somebody else gets the permit: the connection must end then.
    pub(crate) fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.strangers.lock().pools[self.known][self.phase as usize].leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_with_a_tunnel_has_places_that_strangers_do_not_take() {
        let strangers = Strangers::new(DEFAULT_HANDSHAKES);
        let all = usize::from(DEFAULT_HANDSHAKES);
        let crowd =
            (0..all as u32).map(|number| IpAddr::from((0xc000_0000 | number << 8).to_be_bytes()));
        let crowd: Vec<HandshakePermit> = crowd
            .map(|one| strangers.enter(one, Phase::Handshake).unwrap())
            .collect();
        assert_eq!(
            strangers
                .enter(address("203.0.113.9"), Phase::Handshake)
                .err(),
            Some(Full),
            "everybody has one, and none is old"
        );
        strangers.proven(address("2001:db8::1"));
        let known = strangers
            .enter(address("2001:db8::2"), Phase::Handshake)
            .expect("the same /64");
        assert!(crowd.iter().all(|permit| !permit.evicted().is_cancelled()));
        drop((crowd, known));
        assert!(
            strangers.lock().pools.iter().flatten().all(Pool::is_empty),
            "nothing is kept of those who left"
        );
    }

    #[test]
    fn whoever_goes_on_gives_back_the_place_of_before() {
        let strangers = Strangers::new(DEFAULT_HANDSHAKES);
        let mut permit = strangers
            .enter(address("192.0.2.1"), Phase::Silent)
            .unwrap();
        permit.advance(Phase::Handshake).unwrap();
        let empty = |phase: Phase| strangers.lock().pools[0][phase as usize].is_empty();
        assert!(empty(Phase::Silent) && !empty(Phase::Handshake));
        drop(permit);
        assert!(empty(Phase::Handshake));
    }

    #[test]
    fn the_memory_of_known_addresses_is_bounded_and_drops_the_oldest() {
        let strangers = Strangers::new(DEFAULT_HANDSHAKES);
        for number in 0..=KNOWN_MAX as u32 {
            strangers.proven(IpAddr::from(number.to_be_bytes()));
        }
        let permits = strangers.lock();
        assert_eq!(permits.known.len(), KNOWN_MAX);
        assert!(
            !permits
                .known
                .contains_key(&Origin::of(address("0.0.0.0")).host)
        );
    }
}
