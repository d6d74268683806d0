//! Permits for connections whose peers have not shown an identity yet. An address with many permits
//! loses them to addresses with few, and the oldest connection gives way to a newcomer. So silent
//! connections lock no other client out. Many clients at once wait for handshakes in the order of
//! their arrival: a client that is turned away comes again, which costs more than to let it wait.

mod bookings;
mod handshake;
mod phase;
mod pool;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_api::busy;
use ipnet::IpNet;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use bookings::Bookings;
pub use handshake::{HandshakeError, handshake, say_busy};
pub use phase::Phase;
use phase::{AddressKind, AddressKindTable, PhaseTable};
use pool::{Limits, Origin, Pool};

/// TLS handshakes that go on at once, unless the operator says otherwise. They share the
/// processors: with this limit they still end in time.
pub const DEFAULT_HANDSHAKES: u16 = 128;

/// The permits of a phase, where so many handshakes may go on at once. A permit costs a descriptor,
/// and in the later phases a TLS session.
fn limits(phase: Phase, handshakes: u16) -> Limits {
    let handshakes = usize::from(handshakes.max(1));
    match phase {
        // It costs little: two thousand agents that come at once can all begin.
        Phase::Silent => Limits::new(16 * handshakes, Duration::from_millis(500)),
        // As many as can be served while they wait.
        Phase::Waiting => Limits::new(16 * handshakes, Duration::from_secs(8)),
        // No handshake loses its permit to another.
        Phase::Handshake => Limits::new(handshakes, Duration::from_secs(8)),
        // An enrolment may wait for the API server.
        Phase::Call => Limits::new(2 * handshakes, Duration::from_secs(8)),
    }
}

/// How long a stranger waits for its turn to shake hands: an agent gives up after 10 s.
const HANDSHAKE_TURN: Duration = Duration::from_secs(7);
/// The same for a call. The handshake permit is not returned meanwhile.
const CALL_TURN: Duration = Duration::from_secs(2);
/// How often a waiting connection tries again, though no permit was returned: one that was spared
/// may be evicted now.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// The time for which an address is remembered after a tunnel from it.
const PROVEN_FOR: Duration = Duration::from_secs(24 * 3600);
/// The number of remembered addresses. One more replaces the oldest.
const PROVEN_MAX: usize = 16 << 10;

/// Who comes to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Agents: an alert can tell them when to come again.
    Agents,
    /// Any client of TLS.
    Others,
}

/// The permits. Clones share them.
#[derive(Clone, Debug)]
pub struct Strangers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clients: Clients,
    permits: Mutex<Permits>,
    /// Notified when a permit is returned to that pool.
    returned: AddressKindTable<PhaseTable<Notify>>,
}

#[derive(Debug)]
struct Permits {
    limits: PhaseTable<Limits>,
    pools: AddressKindTable<PhaseTable<Pool>>,
    /// When clients that were turned away come again.
    bookings: AddressKindTable<Bookings>,
    /// The networks of proven addresses, and when a tunnel came from each last.
    proven: HashMap<IpNet, Instant>,
    next: u64,
}

/// A permit, returned on drop.
#[derive(Debug)]
pub struct HandshakePermit {
    strangers: Strangers,
    origin: Origin,
    kind: AddressKind,
    phase: Phase,
    number: u64,
    evicted: CancellationToken,
}

/// All permits are taken, and no address has more than its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many connections have not shown who they are yet")]
pub struct Full;

impl Strangers {
    /// Permits for so many TLS handshakes at once, and for what comes before and after them.
    pub fn new(handshakes: u16) -> Self {
        Self::of(Clients::Others, handshakes)
    }

    /// The same for a port of these clients.
    pub fn of(clients: Clients, handshakes: u16) -> Self {
        let now = Instant::now();
        let permits = Permits {
            limits: PhaseTable::from_closure(|phase| limits(phase, handshakes)),
            pools: Default::default(),
            bookings: AddressKindTable::from_closure(|_| Bookings::new(now)),
            proven: HashMap::new(),
            next: 0,
        };
        Self(Arc::new(Shared {
            clients,
            permits: Mutex::new(permits),
            returned: Default::default(),
        }))
    }

    /// A permit for a new connection from `address` that is in this phase.
    pub fn enter(&self, address: IpAddr, phase: Phase) -> Result<HandshakePermit, Full> {
        let origin = Origin::of(address);
        let mut permits = self.lock();
        let now = Instant::now();
        let kind = permits.kind_of(origin, now);
        let evicted = CancellationToken::new();
        if !permits.is_in_turn(kind, phase, None) {
            return Err(Full);
        }
        let number = permits.acquire(kind, phase, origin, &evicted, now)?;
        drop(permits);
        Ok(HandshakePermit {
            strangers: self.clone(),
            origin,
            kind,
            phase,
            number,
            evicted,
        })
    }

    /// Tells a client that has no permit that it cannot be served now, and an agent when to come
    /// again.
    pub fn turn_away(&self, client: &TcpStream, address: IpAddr) {
        let mut permits = self.lock();
        let kind = permits.kind_of(Origin::of(address), Instant::now());
        let alert = self.busy_alert(&mut permits, kind);
        drop(permits);
        // The send buffer of a new connection takes these seven bytes. The client may have gone.
        client.try_write(&handshake::busy(alert)).ok();
    }

    /// The description of the alert for a client that is turned away.
    fn busy_alert(&self, permits: &mut Permits, kind: AddressKind) -> u8 {
        match self.0.clients {
            Clients::Agents => {
                let waiting = permits.pools[kind][Phase::Waiting].len();
                let chance = rand::random_range(0.0..1.0);
                let wait = permits.bookings[kind].next(waiting, Instant::now(), chance);
                busy::alert(wait)
            }
            Clients::Others => handshake::INTERNAL_ERROR,
        }
    }

    /// Records a tunnel from `address`. From now on it has permits that strangers do not get.
    pub fn proven(&self, address: IpAddr) {
        let mut permits = self.lock();
        let now = Instant::now();
        let proven = &mut permits.proven;
        let host = Origin::of(address).host;
        if proven.len() >= PROVEN_MAX
            && !proven.contains_key(&host)
            && let Some((&oldest, _)) = proven.iter().min_by_key(|(_, since)| **since)
        {
            proven.remove(&oldest);
        }
        proven.insert(host, now);
    }

    fn lock(&self) -> MutexGuard<'_, Permits> {
        self.0.permits.lock()
    }

    /// Returns a permit to its pool.
    fn release(&self, permits: &mut Permits, kind: AddressKind, phase: Phase, number: u64) {
        permits.pools[kind][phase].leave(number);
        if phase == Phase::Handshake {
            permits.bookings[kind].handshake_ended(Instant::now());
        }
        self.0.returned[kind][phase].notify_one();
    }
}

impl Permits {
    fn kind_of(&self, origin: Origin, now: Instant) -> AddressKind {
        match self.proven.get(&origin.host) {
            Some(since) if now.saturating_duration_since(*since) < PROVEN_FOR => {
                AddressKind::Proven
            }
            Some(_) | None => AddressKind::Unknown,
        }
    }

    /// Whether a connection may enter the phase before those that wait for a handshake. `number` is
    /// its own if it waits too; a newcomer has none.
    fn is_in_turn(&self, kind: AddressKind, phase: Phase, number: Option<u64>) -> bool {
        if phase != Phase::Handshake {
            return true;
        }
        let pools = &self.pools[kind];
        let permits = self.limits[Phase::Handshake].permits;
        let free = permits.saturating_sub(pools[Phase::Handshake].len());
        free == 0 || !pools[Phase::Waiting].has_before(number, free)
    }

    fn acquire(
        &mut self,
        kind: AddressKind,
        phase: Phase,
        origin: Origin,
        evicted: &CancellationToken,
        now: Instant,
    ) -> Result<u64, Full> {
        self.next += 1;
        let limits = self.limits[phase];
        let pool = &mut self.pools[kind][phase];
        if pool.admit(self.next, origin, evicted, limits, now) {
            Ok(self.next)
        } else {
            Err(Full)
        }
    }
}

impl HandshakePermit {
    /// Advances to the handshake after the ClientHello, when it is this connection's turn.
    pub(crate) async fn shake_hands(&mut self) -> Result<(), Full> {
        if self.phase == Phase::Handshake {
            return Ok(());
        }
        self.advance(Phase::Waiting)?;
        self.advance_in_turn(Phase::Handshake, HANDSHAKE_TURN).await
    }

    /// Advances to the call after the handshake, when there is a permit.
    pub async fn start_call(&mut self) -> Result<(), Full> {
        self.advance_in_turn(Phase::Call, CALL_TURN).await
    }

    async fn advance_in_turn(&mut self, phase: Phase, patience: Duration) -> Result<(), Full> {
        let shared = self.strangers.0.clone();
        let returned = &shared.returned[self.kind][phase];
        let in_turn = async {
            let mut one = std::pin::pin!(returned.notified());
            loop {
                one.as_mut().enable();
                if self.advance(phase).is_ok() {
                    return;
                }
                tokio::select! {
                    () = one.as_mut() => one.set(returned.notified()),
                    () = sleep(RETRY_EVERY) => {}
                }
            }
        };
        timeout(patience, in_turn).await.map_err(|_| Full)
    }

    /// The description of the alert with which the connection is turned away.
    fn busy_alert(&self) -> u8 {
        let mut permits = self.strangers.lock();
        self.strangers.busy_alert(&mut permits, self.kind)
    }

    /// Exchanges the present permit for one of the next phase. On an error it stays as it is.
    fn advance(&mut self, phase: Phase) -> Result<(), Full> {
        let strangers = self.strangers.clone();
        let mut permits = strangers.lock();
        if !permits.is_in_turn(self.kind, phase, Some(self.number)) {
            return Err(Full);
        }
        let number =
            permits.acquire(self.kind, phase, self.origin, &self.evicted, Instant::now())?;
        strangers.release(&mut permits, self.kind, self.phase, self.number);
        self.phase = phase;
        self.number = number;
        Ok(())
    }

    /// Cancelled when another connection gets the permit: this one must end then.
    pub fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let mut permits = self.strangers.lock();
        self.strangers
            .release(&mut permits, self.kind, self.phase, self.number);
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
        let permits = strangers.lock();
        for kind in [AddressKind::Unknown, AddressKind::Proven] {
            let left = &permits.pools[kind][Phase::Handshake];
            assert!(left.is_empty(), "nothing is kept of those who left");
        }
    }

    #[test]
    fn whoever_goes_on_gives_back_the_place_of_before() {
        let strangers = Strangers::new(DEFAULT_HANDSHAKES);
        let mut permit = strangers
            .enter(address("192.0.2.1"), Phase::Silent)
            .unwrap();
        permit.advance(Phase::Waiting).unwrap();
        permit.advance(Phase::Handshake).unwrap();
        let empty = |phase: Phase| strangers.lock().pools[AddressKind::Unknown][phase].is_empty();
        assert!(empty(Phase::Silent) && empty(Phase::Waiting) && !empty(Phase::Handshake));
        drop(permit);
        assert!(empty(Phase::Handshake));
    }

    #[test]
    fn the_memory_of_known_addresses_is_bounded_and_drops_the_oldest() {
        let strangers = Strangers::new(DEFAULT_HANDSHAKES);
        for number in 0..=PROVEN_MAX as u32 {
            strangers.proven(IpAddr::from(number.to_be_bytes()));
        }
        let permits = strangers.lock();
        assert_eq!(permits.proven.len(), PROVEN_MAX);
        assert!(
            !permits
                .proven
                .contains_key(&Origin::of(address("0.0.0.0")).host)
        );
    }

    /// As many as have a permit, and two more, all from one address, after their ClientHello.
    fn crowd(strangers: &Strangers) -> (Vec<HandshakePermit>, [HandshakePermit; 2]) {
        let forwarder = address("192.0.2.1");
        let shaking = (0..usize::from(DEFAULT_HANDSHAKES))
            .map(|_| strangers.enter(forwarder, Phase::Handshake).unwrap())
            .collect();
        let late = [(); 2].map(|()| strangers.enter(forwarder, Phase::Silent).unwrap());
        (shaking, late)
    }

    #[tokio::test]
    async fn behind_one_address_those_who_wait_shake_hands_in_the_order_of_their_arrival() {
        let strangers = Strangers::new(DEFAULT_HANDSHAKES);
        let (mut shaking, [mut first, mut second]) = crowd(&strangers);
        let mut first_turn = Box::pin(first.shake_hands());
        let mut second_turn = Box::pin(second.shake_hands());
        assert!(futures_util::poll!(&mut first_turn).is_pending());
        assert!(futures_util::poll!(&mut second_turn).is_pending());
        shaking.pop();
        assert_eq!(
            strangers
                .enter(address("192.0.2.1"), Phase::Handshake)
                .err(),
            Some(Full),
            "a newcomer does not come before them"
        );
        assert!(futures_util::poll!(&mut second_turn).is_pending());
        assert_eq!(first_turn.await, Ok(()));
        shaking.pop();
        assert_eq!(second_turn.await, Ok(()));
    }
}
