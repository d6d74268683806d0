//! One slot: sets a tunnel up, serves it, and when it ends sets up the next, for ever. The
//! placement says to which address; the proxy that is met there is claimed or declined.

mod error;
mod opening;
mod pace;
mod worn_out;

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use culvert_api::{ALPN_TUNNEL, HostPort};
use culvert_daemon::{Drain, VERSION, jittered};
use culvert_tunnel::proto::tunnel::{
    DescribeRequest, DescribeResponse, DialProxyRequest, Open, Proxy, TunnelEnd,
};
use culvert_tunnel::{
    AgentTunnel, AgentTunnelState, Backend, Backends, Budget, DEFAULT_MAX_STREAMS, Declined,
    DialFailure, MovableStreams, SocketState, StreamEnd,
};
use tokio::io::BufReader;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::backends::allow_list::CurrentRules;
use crate::backends::dial::NodeBackends;
use crate::certificate::current::Certificates;
use crate::dial::connect::{Connection, connect};
use crate::dial::outbound::Outbound;
use crate::dial::tls;
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::tunnels::placement::{Choice, Failure, Leave, Look, Met, Placement, Seat, SlotNumber};
use crate::tunnels::states::{LiveTunnel, SlotEntry};
use error::SlotError;
use opening::{wait_for_introduction, wait_for_preface};
use pace::{MAX_LOOKS, Pace};
use worn_out::{Serving, WornOut, leave};

/// Longest pause before a slot looks for another proxy behind an address. The first proxy tells
/// meanwhile whether there are others.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// How the last tunnel of a run ended, in whichever slot: another one may have taken its place.
#[derive(Debug, Default)]
pub(crate) struct LastEnd(AtomicI32);

impl LastEnd {
    fn set(&self, end: TunnelEnd) {
        self.0.store(end.into(), Ordering::Relaxed);
    }

    fn now(&self) -> TunnelEnd {
        TunnelEnd::try_from(self.0.load(Ordering::Relaxed)).unwrap_or_default()
    }
}

/// What all slots share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) outbound: Arc<Outbound>,
    pub(crate) allow: CurrentRules,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stream_window: u32,
    pub(crate) budget: Budget,
    pub(crate) keepalive: Duration,
    /// How many streams a tunnel carries before another one replaces it.
    pub(crate) streams_in_life: u32,
    /// Random for each run of the agent.
    pub(crate) instance: String,
    /// When this run of the agent began, in milliseconds since 1970.
    pub(crate) started: u64,
    /// Number of the last tunnel of this run.
    pub(crate) sequence: AtomicU64,
    /// How the last tunnel of this run ended.
    pub(crate) last_end: LastEnd,
    pub(crate) placement: Placement,
    /// The streams of all tunnels.
    pub(crate) movable: MovableStreams,
    /// Notified when a proxy refuses this agent's certificate.
    pub(crate) refused: Arc<Notify>,
}

/// How a tunnel's life in its slot ended well.
enum End {
    Drained,
    /// Its certificate was renewed, it has carried all that it may, or its proxy should be left: it
    /// goes on beside the next one for as long as it has streams, and no longer than its
    /// certificate. Or there is one more than bulk data needs.
    WornOut,
}

/// One slot.
pub(crate) struct TunnelSlot {
    pub(crate) number: SlotNumber,
    pub(crate) shared: Arc<Shared>,
    pub(crate) entry: SlotEntry,
}

impl TunnelSlot {
    /// Keeps a tunnel until the drain begins.
    pub(crate) async fn run(self, drain: Drain) {
        let mut worn_out = WornOut::default();
        self.run_tunnels(&drain, &mut worn_out).await;
        worn_out.end().await;
    }

    async fn run_tunnels(&self, drain: &Drain, worn_out: &mut WornOut) {
        let mut pace = Pace::new(&self.shared.placement);
        while !drain.has_begun() {
            let address = tokio::select! {
                address = self.next_address(&mut pace, worn_out) => address,
                () = drain.begun() => return,
            };
            let started = Instant::now();
            pace.attempts = pace.attempts.wrapping_add(1);
            if !self.has_tunnel() {
                self.entry.connecting(&address);
            }
            let identity = self.shared.certificates.refresh();
            let attempt = Attempt {
                address: &address,
                identity: &identity,
                number: pace.attempts,
            };
            let error = match self.run_tunnel(attempt, drain, worn_out).await {
                Ok(End::Drained) => return,
                Ok(End::WornOut) => {
                    pace.looks = MAX_LOOKS;
                    continue;
                }
                Err(error) => error,
            };
            if drain.has_begun() {
                return;
            }
            if let SlotError::Tunnel(error) = &error {
                self.shared.last_end.set(error.reported());
            }
            let wait = self.after(&error, attempt, &mut pace, started.elapsed());
            self.let_go(worn_out);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = drain.begun() => return,
            }
        }
    }

    /// Ends a tunnel to a proxy that wants to end, or was removed, where the slot found no other
    /// place and other slots did.
    fn let_go(&self, worn_out: &mut WornOut) {
        if self.shared.placement.may_end(self.number) {
            worn_out.are_replaced();
        }
    }

    fn has_tunnel(&self) -> bool {
        self.shared.placement.has_tunnel(self.number)
    }

    /// Waits until there is an address to dial.
    async fn next_address(&self, pace: &mut Pace, worn_out: &mut WornOut) -> HostPort {
        let placement = &self.shared.placement;
        let mut changes = placement.changes();
        let mut look = Look::Soon;
        loop {
            changes.mark_unchanged();
            pace.update(placement.reasons_to_look());
            let allowed = if pace.looks == 0 { Look::Never } else { look };
            let choice = placement.next(self.number, allowed);
            let until = match choice {
                Choice::Dial(address) => return address,
                Choice::Look(address) if allowed == Look::Now => return address,
                Choice::Look(_) => {
                    tokio::time::sleep(jittered(LOOK_PAUSE)).await;
                    look = Look::Now;
                    continue;
                }
                Choice::Wait(until) => until,
            };
            self.let_go(worn_out);
            if until.is_none() && !self.has_tunnel() {
                self.entry.spare();
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(until.unwrap_or(pace.look_again)) => {
                    if until.is_none() {
                        pace.look_again();
                    }
                }
            }
        }
    }

    /// What follows from a failure: it is reported, and the returned time is waited before the next
    /// attempt.
    fn after(
        &self,
        error: &SlotError,
        attempt: Attempt<'_>,
        pace: &mut Pace,
        life: Duration,
    ) -> Duration {
        if let Some(outcome) = error.outcome() {
            self.shared.metrics.record_attempt(outcome);
        }
        if let SlotError::Declined(proxy) = error {
            pace.looks = pace.looks.saturating_sub(1);
            tracing::debug!(
                tunnel = %self.number,
                proxy = %attempt.address,
                proxy.instance = %proxy,
                "met a proxy with enough tunnels; looking for another one"
            );
            return jittered(LOOK_PAUSE);
        }
        let wait = pace.wait(error, life);
        self.report(error, attempt, wait);
        wait
    }

    /// One tunnel's life in this slot.
    async fn run_tunnel(
        &self,
        attempt: Attempt<'_>,
        drain: &Drain,
        worn_out: &mut WornOut,
    ) -> Result<End, SlotError> {
        let connection = tokio::select! {
            connection = self.establish(attempt) => connection?,
            () = drain.begun() => return Ok(End::Drained),
        };
        let state = AgentTunnelState::new(self.shared.metrics.transferred.clone());
        let (replaced, leave) = leave(drain.clone());
        let socket = connection.get_ref().get_ref().0.socket_state();
        let (met, mut serving) =
            self.serve(attempt, connection, socket.clone(), state.clone(), leave);
        let Some(proxy) = wait_for_introduction(met, &mut serving).await? else {
            return Ok(End::Drained);
        };
        worn_out.are_replaced();
        let up = self.shared.metrics.tunnel();
        let mut serving: Serving = Box::pin(async move {
            let _up = up;
            serving.await
        });
        let node = &attempt.identity.node;
        tracing::info!(
            %node,
            tunnel = %self.number,
            proxy = %attempt.address,
            proxy.instance = %proxy,
            "tunnel up"
        );
        self.entry.up(LiveTunnel {
            state: state.clone(),
            socket,
            proxy,
            address: attempt.address.clone(),
        });
        let reason = tokio::select! {
            served = &mut serving => return served.map(|()| End::Drained).map_err(Into::into),
            reason = self.worn_out(attempt.identity, &state), if worn_out.has_room() => reason,
        };
        tracing::info!(
            %node,
            tunnel = %self.number,
            proxy = %attempt.address,
            "{reason}"
        );
        worn_out.add(serving, replaced);
        Ok(End::WornOut)
    }

    /// Completes when the tunnel should end with its streams, with the reason.
    async fn worn_out(&self, identity: &Identity, state: &AgentTunnelState) -> &'static str {
        tokio::select! {
            () = self.renewed(identity) => {
                "certificate renewed; another tunnel takes this one's place"
            }
            () = state.worn_out() => "tunnel worn out; another tunnel takes this one's place",
            leave = self.shared.placement.leaving(self.number) => match leave {
                Leave::Proxy => {
                    "the proxy drains, was removed, or has too many tunnels; another tunnel takes \
                     this one's place"
                }
                Leave::Surplus => "bulk data needs this tunnel no longer; it ends with its streams",
            },
        }
    }

    /// Completes once there is another certificate: a tunnel ends with the one that it was set up
    /// by.
    async fn renewed(&self, identity: &Identity) {
        let mut changes = self.shared.certificates.changes();
        if changes
            .wait_for(|current| current.chain != identity.chain)
            .await
            .is_err()
        {
            std::future::pending().await
        }
    }

    async fn establish(&self, attempt: Attempt<'_>) -> Result<BufReader<Connection>, SlotError> {
        let identity = attempt.identity;
        let config = tls::mutual(identity, ALPN_TUNNEL)?;
        // A name's other addresses are tried in turn, in case they lead to different proxies.
        let turn = usize::from(self.number.0) + attempt.number;
        let outbound = self.shared.outbound.for_tunnel(turn);
        let connection = connect(&outbound, attempt.address, config, &identity.server_name).await?;
        wait_for_preface(connection, &identity.server_name).await
    }

    /// Serves the proxy at the other end of `connection`. Also returns who introduces itself there.
    fn serve(
        &self,
        attempt: Attempt<'_>,
        connection: BufReader<Connection>,
        socket: SocketState,
        state: AgentTunnelState,
        leave: impl Future<Output = ()> + Send + 'static,
    ) -> (watch::Receiver<Option<Met>>, Serving) {
        let sequence = self.shared.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let seat = self
            .shared
            .placement
            .seat(self.number, sequence, attempt.address);
        let met = seat.met();
        let backends = SlotBackends {
            backends: NodeBackends::new(
                attempt.identity.node.clone(),
                self.shared.allow.clone(),
                self.shared.metrics.clone(),
            ),
            seat,
            shared: self.shared.clone(),
        };
        let tunnel = self.tunnel(attempt.address, sequence);
        let serving = async move {
            tunnel
                .serve(connection, socket, state, Arc::new(backends), leave)
                .await
        };
        (met, Box::pin(serving))
    }

    fn tunnel(&self, address: &HostPort, sequence: u64) -> AgentTunnel {
        AgentTunnel {
            stream_window: self.shared.stream_window,
            max_streams: DEFAULT_MAX_STREAMS,
            streams_in_life: self.shared.streams_in_life,
            budget: self.shared.budget.of(&address.to_string()),
            movable: self.shared.movable.clone(),
            describe: DescribeResponse {
                version: VERSION.to_owned(),
                instance: self.shared.instance.clone(),
                slot: self.number.to_string(),
                keepalive_seconds: u32::try_from(self.shared.keepalive.as_secs())
                    .unwrap_or(u32::MAX),
                sequence,
                started: self.shared.started,
                moves: true,
                // The backends know the rest.
                ..DescribeResponse::default()
            },
        }
    }

    fn report(&self, error: &SlotError, attempt: Attempt<'_>, wait: Duration) {
        let text = culvert_daemon::chain(error);
        // With another certificate than the refused one, there is nothing to wait for.
        let is_current = self.shared.certificates.current().chain == attempt.identity.chain;
        let failure = match error {
            _ if error.is_refusal() && is_current => Failure::Refused,
            SlotError::Tunnel(_) => Failure::Ended,
            SlotError::Connect(_)
            | SlotError::Tls(_)
            | SlotError::Refused(_)
            | SlotError::Dismissed
            | SlotError::Unused
            | SlotError::Declined(_) => Failure::Unreachable,
        };
        let retry = self
            .shared
            .placement
            .failed(self.number, attempt.address, failure, &text);
        if !self.has_tunnel() {
            self.entry.waiting(attempt.address, &text);
        }
        if failure == Failure::Refused {
            self.shared.refused.notify_one();
        }
        let wait = wait.max(retry.at.saturating_duration_since(Instant::now()));
        let retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let tunnel = self.number;
        let proxy = attempt.address;
        if retry.is_news {
            tracing::warn!(%tunnel, %proxy, reason = text, retry_ms, "no tunnel; trying again");
        } else {
            tracing::debug!(%tunnel, %proxy, reason = text, retry_ms, "no tunnel; trying again");
        }
    }
}

/// One attempt to set up a tunnel, and the tunnel that comes of it.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    address: &'a HostPort,
    identity: &'a Identity,
    /// The number of this slot.
    number: usize,
}

/// What a slot's tunnel does for its proxy.
struct SlotBackends {
    backends: NodeBackends,
    seat: Seat,
    shared: Arc<Shared>,
}

impl Backends for SlotBackends {
    async fn dial(&self, open: &Open) -> Result<Backend, DialFailure> {
        self.backends.dial(open).await
    }

    fn stream_ended(&self, open: &Open, end: &StreamEnd) {
        self.backends.stream_ended(open, end);
    }

    fn describe(&self, known: &DescribeResponse) -> DescribeResponse {
        let described = self.backends.describe(known);
        DescribeResponse {
            last_end: self.shared.last_end.now().into(),
            ..described
        }
    }

    fn admit_proxy(&self, proxy: &DescribeRequest) -> Result<(), Declined> {
        self.seat.introduced(&proxy.instance)
    }

    fn set_proxies(&self, proxies: Vec<Proxy>) {
        self.seat.record_report(proxies);
    }

    fn request_tunnels(&self, count: u32) {
        self.seat.ask(count);
    }

    async fn request_tunnels_to(&self, request: DialProxyRequest) {
        self.seat.ask_for(&request.proxy, request.count);
    }
}

#[cfg(test)]
impl Shared {
    /// What an agent of node `edge-1` shares that joined at a proxy of this authority. No proxy is
    /// listed yet.
    pub(crate) fn for_tests(
        authority: &crate::test_pki::Authority,
        state: &std::path::Path,
        spread: crate::tunnels::placement::Spread,
    ) -> Self {
        let identity = crate::identity::IdentityText::for_tests(authority, "edge-1");
        let state = crate::certificate::store::StateDir::new(state);
        state.store_join(&identity, &[]).unwrap();
        let source = crate::certificate::current::Source::Joined {
            state,
            server_name: None,
        };
        Self {
            certificates: Arc::new(Certificates::load(source).unwrap()),
            outbound: Arc::new(Outbound::from_environment(|_| None).unwrap()),
            allow: crate::backends::allow_list::DialRules::default().fixed(),
            metrics: Arc::default(),
            stream_window: culvert_tunnel::DEFAULT_STREAM_WINDOW,
            budget: culvert_tunnel::Budget::new(1 << 20),
            keepalive: culvert_tunnel::DEFAULT_KEEPALIVE,
            streams_in_life: culvert_tunnel::STREAMS_IN_LIFE,
            instance: "test".to_owned(),
            started: 1,
            sequence: AtomicU64::default(),
            last_end: LastEnd::default(),
            placement: Placement::new(spread),
            movable: MovableStreams::default(),
            refused: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests;
