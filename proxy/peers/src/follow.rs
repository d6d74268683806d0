//! Follows the peer at one address: watches its tunnels and revocations, and keeps links to it that
//! carry streams. From the primary it takes the directory too.

use std::error::Error as _;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::peer as proto;
use culvert_api::proto::peer::peer_client::PeerClient;
use culvert_api::{ALPN_PEER, ALPN_TUNNEL, NodeName};
use culvert_daemon::{Backoff, Problem, VERSION, chain};
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::instance::Instance;
use culvert_proxy_streams::peers::{PeerChange, PeerInfo};
use culvert_proxy_streams::registry::PeerRegistration;
use culvert_proxy_trust::identity::Leaf;
use culvert_tunnel::TunnelError;
use culvert_tunnel::proto::tunnel::DescribeRequest;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::Peers;
use super::dial::{Connection, DialError, dial};
use super::primary::{Primary, Taken};
use super::reached::Reachable;
use super::wire::{peer_info, proxy_message, revoked};

/// Links to one peer. With one, all streams between two proxies would share one thread and one
/// connection's losses.
const LINKS: usize = 2;
/// A silent peer is pinged after this time, and given up after as long again.
const PING_AFTER: Duration = Duration::from_secs(4);
/// The first message of a peer is there by then.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that was lost keeps its nodes online for this long: it may only be hard to reach.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15);
/// The pause before a state directory that may not be changed now is tried again.
const FROZEN_PAUSE: Duration = Duration::from_millis(500);
/// When an address of this proxy itself, or of a peer that is followed already, is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// A snapshot of a proxy with ten thousand nodes takes some megabytes.
const MESSAGE_MAX: usize = 64 << 20;
/// Tunnels of one peer that are taken into account.
const MAX_TUNNELS: usize = 200_000;

/// Why a peer is not followed now.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("set the connection up")]
    Channel(#[source] tonic::transport::Error),
    #[error("watch it: {0}")]
    Watch(String),
    #[error("its first message did not come in time, or is no snapshot")]
    NoSnapshot,
    #[error("it ended")]
    Ended,
    #[error("--follow names this proxy itself: give the address of another one, or leave it out")]
    Itself,
}

impl FollowError {
    /// From the innermost cause: tonic's own text is for programmers.
    fn watch(status: &Status) -> Self {
        let mut cause: Option<&dyn std::error::Error> = status.source();
        let mut text = status.message().to_owned();
        while let Some(error) = cause {
            let io = error.downcast_ref::<std::io::Error>();
            if io.is_some_and(|io| io.kind() == std::io::ErrorKind::UnexpectedEof) {
                return Self::Ended;
            }
            text = error.to_string();
            cause = error.source();
        }
        Self::Watch(text)
    }
}

/// What a proxy is to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Peer,
    /// The one that this proxy follows.
    Primary,
}

/// A connection to a proxy that is watched.
struct Watched {
    channel: Channel,
    info: PeerInfo,
    first: proto::Update,
    updates: Streaming<proto::Update>,
}

/// What is at an address.
enum Found {
    /// This proxy itself.
    Own,
    /// A peer that is followed already.
    Known,
    /// A peer that drains. Its successor may be at the same address.
    Leaving(Box<Following>),
}

/// A peer with its connections.
struct Following {
    address: SocketAddr,
    role: Role,
    registration: PeerRegistration,
    updates: Streaming<proto::Update>,
    _links: JoinSet<()>,
    _reachable: Reachable,
}

/// Why following pauses.
enum Pause {
    Drains,
    Ended(FollowError),
}

/// A registered peer; its connection may be lost.
struct Kept {
    registration: PeerRegistration,
    lost_at: Option<Instant>,
}

/// Follows the peer at `address`. One that drains is followed to its end, beside the one that comes
/// after it. Once the address is `unlisted` it is not dialled again, and a connection that is up
/// goes on to its end.
pub(super) async fn follow(
    peers: Arc<Peers>,
    (address, role): (SocketAddr, Role),
    unlisted: CancellationToken,
) {
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
    let mut problem = Problem::default();
    let mut kept: Option<Kept> = None;
    let mut leaving = JoinSet::new();
    loop {
        let started = Instant::now();
        let wait = match live(&peers, (address, role), &mut kept).await {
            Ok(Found::Leaving(mut following)) => {
                let peers = peers.clone();
                leaving.spawn(async move {
                    following.go_on(&peers, false).await;
                });
                Duration::ZERO
            }
            Ok(Found::Own | Found::Known) => {
                kept = None;
                if leaving.is_empty() {
                    AGAIN_AFTER
                } else {
                    backoff.wait_after(started.elapsed())
                }
            }
            Err(error) => {
                let reason = chain(&error);
                if let (Some(primary), Role::Primary) = (&peers.primary, role) {
                    primary.missed(reason.clone());
                }
                if let Some(reason) = problem.record(Some(reason)) {
                    tracing::warn!(peer.addr = %address, reason, "no connection to a peer");
                }
                backoff.wait_after(started.elapsed())
            }
        };
        if let Some(kept) = &mut kept {
            kept.lost_at.get_or_insert_with(Instant::now);
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = unlisted.cancelled() => {
                while leaving.join_next().await.is_some() {}
                return;
            }
        }
        while leaving.try_join_next().is_some() {}
        kept = kept.filter(|kept| kept.lost_at.is_none_or(|at| at.elapsed() < FORGOTTEN_AFTER));
    }
}

/// Follows the peer for as long as its connection lives.
async fn live(
    peers: &Arc<Peers>,
    (address, role): (SocketAddr, Role),
    kept: &mut Option<Kept>,
) -> Result<Found, FollowError> {
    let Watched {
        channel,
        info,
        mut first,
        updates,
    } = watch(peers, address, role).await?;
    if info.instance == peers.own.instance {
        return match role {
            Role::Peer => Ok(Found::Own),
            Role::Primary => Err(FollowError::Itself),
        };
    }
    take(peers, &mut first, role).await;
    peers.trust.peer_has_told();
    let reachable = peers.reached.add(channel, role);
    let is_same = |kept: &Kept| kept.registration.info().instance == info.instance;
    // Otherwise another run of the proxy has taken the place of the former one.
    let registration = match kept.take().filter(is_same) {
        Some(kept) => kept.registration,
        None => match peers.registry.register_peer(info.clone()) {
            Some(registration) => registration,
            // Its tunnels are known by another address.
            None if role == Role::Primary && !first.draining => {
                return Err(take_all(peers, updates).await);
            }
            None => return Ok(Found::Known),
        },
    };
    let drains = first.draining;
    registration.replace(change(first));
    let PeerInfo {
        instance,
        host,
        version,
        ..
    } = &info;
    tracing::info!(peer.addr = %address, peer = %instance, host, version, "peer up");
    let mut links = JoinSet::new();
    for _ in 0..LINKS {
        let link = keep_link(peers.clone(), address, info.clone());
        links.spawn_on(link, peers.workers.next().handle());
    }
    let mut following = Following {
        address,
        role,
        registration,
        updates,
        _links: links,
        _reachable: reachable,
    };
    if drains {
        return Ok(Found::Leaving(Box::new(following)));
    }
    match following.go_on(peers, true).await {
        Pause::Drains => Ok(Found::Leaving(Box::new(following))),
        Pause::Ended(error) => {
            *kept = Some(Kept {
                registration: following.registration,
                lost_at: None,
            });
            Err(error)
        }
    }
}

impl Following {
    /// Takes what the peer says, until its connection ends or, if asked for, until it drains.
    async fn go_on(&mut self, peers: &Arc<Peers>, pauses: bool) -> Pause {
        let ended = loop {
            match self.updates.message().await {
                Ok(Some(mut update)) => {
                    take(peers, &mut update, self.role).await;
                    let drains = update.draining;
                    self.registration.change(change(update));
                    if pauses && drains {
                        return Pause::Drains;
                    }
                }
                Ok(None) => break FollowError::Ended,
                Err(status) => break FollowError::watch(&status),
            }
        };
        tracing::warn!(
            peer.addr = %self.address,
            peer = %self.registration.info().instance,
            reason = chain(&ended),
            "peer down"
        );
        Pause::Ended(ended)
    }
}

/// Takes over the revocations of an update and, from the primary, the directory: in this order, so
/// that a node that was removed and added again is there with its revocation.
async fn take(peers: &Arc<Peers>, update: &mut proto::Update, role: Role) {
    let revoked = revoked(std::mem::take(&mut update.revoked));
    let trust = peers.trust.clone();
    let taken = tokio::task::spawn_blocking(move || {
        if let Err(error) = trust.take_revoked(&revoked) {
            let reason = chain(&error);
            tracing::error!(
                reason,
                "revocations of another proxy hold, but are not on disk yet"
            );
        }
    });
    if let Err(error) = taken.await {
        tracing::error!(%error, "revocations of another proxy were not taken over");
    }
    let directory = update.directory.take();
    if let (Some(directory), Some(primary), Role::Primary) = (directory, &peers.primary, role) {
        take_directory(primary, directory).await;
    }
}

/// Takes over the primary's directory, as soon as this proxy may change its state directory.
async fn take_directory(primary: &Arc<Primary>, directory: proto::Directory) {
    let directory = Arc::new(directory);
    loop {
        let primary = primary.clone();
        let directory = directory.clone();
        match tokio::task::spawn_blocking(move || primary.take(&directory)).await {
            Ok(Taken::Done) => return,
            Ok(Taken::NotNow) => tokio::time::sleep(FROZEN_PAUSE).await,
            Err(error) => {
                tracing::error!(%error, "the primary's directory was not taken over");
                return;
            }
        }
    }
}

/// Takes over all that the primary says, for as long as its connection lives.
async fn take_all(peers: &Arc<Peers>, mut updates: Streaming<proto::Update>) -> FollowError {
    loop {
        match updates.message().await {
            Ok(Some(mut update)) => take(peers, &mut update, Role::Primary).await,
            Ok(None) => return FollowError::Ended,
            Err(status) => return FollowError::watch(&status),
        }
    }
}

/// Begins to watch. Returns who is there, and the snapshot.
async fn watch(
    peers: &Arc<Peers>,
    address: SocketAddr,
    role: Role,
) -> Result<Watched, FollowError> {
    let connection = dial(peers, address, ALPN_PEER).await?;
    let certificate_ends = certificate_ends(&connection);
    let channel = channel(connection).await?;
    let mut client = PeerClient::new(channel.clone()).max_decoding_message_size(MESSAGE_MAX);
    let request = proto::WatchRequest {
        proxy: Some(proxy_message(&peers.own)),
        directory: role == Role::Primary,
    };
    let watched = async {
        let watched = client.watch(request).await;
        let mut updates = watched
            .map_err(|status| FollowError::watch(&status))?
            .into_inner();
        let first = updates.message().await;
        let first = first.map_err(|status| FollowError::watch(&status))?;
        Ok((first, updates))
    };
    let (first, updates) = timeout(FIRST_TIMEOUT, watched)
        .await
        .unwrap_or(Err(FollowError::NoSnapshot))?;
    let mut first = first.ok_or(FollowError::NoSnapshot)?;
    let info = first.proxy.take().ok_or(FollowError::NoSnapshot)?;
    let info = PeerInfo {
        certificate_ends,
        ..peer_info(&info)
    };
    Ok(Watched {
        channel,
        info,
        first,
        updates,
    })
}

fn certificate_ends(connection: &Connection) -> Option<UnixTime> {
    let shown = connection.get_ref().1.peer_certificates()?.first()?;
    Leaf::read(shown).ok().map(|leaf| leaf.not_after)
}

/// A channel over this connection, and no other.
async fn channel(connection: Connection) -> Result<Channel, FollowError> {
    let only = std::sync::Mutex::new(Some(connection));
    let connector = tower::service_fn(move |_: Uri| {
        let connection = only.lock().ok().and_then(|mut only| only.take());
        async move {
            let connection = connection.ok_or(std::io::ErrorKind::NotConnected)?;
            Ok::<_, std::io::Error>(TokioIo::new(connection))
        }
    });
    // The address is never dialled; HTTP/2 wants an authority.
    Endpoint::from_static("https://peer.invalid")
        .http2_keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_AFTER)
        .keep_alive_while_idle(true)
        .connect_timeout(FIRST_TIMEOUT)
        .connect_with_connector(connector)
        .await
        .map_err(FollowError::Channel)
}

/// Keeps one link to the peer.
async fn keep_link(peers: Arc<Peers>, address: SocketAddr, peer: PeerInfo) {
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
    let mut problem = Problem::default();
    loop {
        let started = Instant::now();
        let ended = link(&peers, address, &peer).await;
        let reason = ended.err().map(|error| chain(&error));
        if let Some(reason) = problem.record(reason) {
            tracing::warn!(peer.addr = %address, peer = %peer.instance, reason, "link to a peer");
        }
        tokio::time::sleep(backoff.wait_after(started.elapsed())).await;
    }
}

/// Why a link is not up.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the link ended")]
    Tunnel(#[from] TunnelError),
    #[error("another proxy is at the address now")]
    OtherProxy,
}

async fn link(peers: &Peers, address: SocketAddr, peer: &PeerInfo) -> Result<(), LinkError> {
    let connection = dial(peers, address, ALPN_TUNNEL).await?;
    let socket_state = connection.get_ref().0.socket_state();
    let (tunnel, driver) = peers.link(peer).establish(connection, socket_state).await?;
    let mut driven = pin!(driver.run());
    let request = DescribeRequest {
        version: VERSION.to_owned(),
        instance: peers.own.instance.to_string(),
    };
    let described = tokio::select! {
        described = tunnel.describe(&request) => described?,
        ended = &mut driven => return Ok(ended?),
    };
    if Instance::from(described.instance.as_str()) != peer.instance {
        return Err(LinkError::OtherProxy);
    }
    let Some(_registered) = peers.registry.register_link(&peer.instance, tunnel) else {
        return Err(LinkError::OtherProxy);
    };
    Ok(driven.await?)
}

/// An update in our types. What is not a node's name is left out.
fn change(update: proto::Update) -> PeerChange {
    let opened = update.opened.into_iter().take(MAX_TUNNELS);
    let opened = opened.filter_map(|tunnel| {
        let node: NodeName = tunnel.node.parse().ok()?;
        Some((tunnel.generation, node, tunnel.into()))
    });
    PeerChange {
        opened: opened.collect(),
        closed: update.closed,
        draining: update.draining,
    }
}
