//! A connection to a peer that reports its tunnels and revocations: first a snapshot, then changes.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::ALPN_PEER;
use culvert_api::proto::peer as proto;
use culvert_api::proto::peer::peer_client::PeerClient;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_streams::peers::PeerInfo;
use culvert_proxy_trust::identity::Leaf;
use http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::Peers;
use crate::connected::Role;
use crate::dial::{Connection, DialError, dial};
use crate::wire::{peer_info, proxy_message};

/// A silent peer is pinged after this time, and given up after as long again.
const PING_AFTER: Duration = Duration::from_secs(4);
/// The first message of a peer is there by then.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
/// A snapshot of a proxy with ten thousand nodes takes some megabytes.
const MESSAGE_MAX: usize = 64 << 20;

/// Why a peer is not followed now.
#[derive(Debug, thiserror::Error)]
pub(super) enum FollowError {
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

impl From<Status> for FollowError {
    /// From the innermost cause: tonic's own text is for programmers.
    fn from(status: Status) -> Self {
        let mut cause: Option<&dyn std::error::Error> = status.source();
        let mut text = status.message().to_owned();
        while let Some(error) = cause {
            if let Some(io) = error.downcast_ref::<io::Error>()
                && io.kind() == io::ErrorKind::UnexpectedEof
            {
                return Self::Ended;
            }
            text = error.to_string();
            cause = error.source();
        }
        Self::Watch(text)
    }
}

/// A connection to a peer, with its snapshot.
pub(super) struct Watch {
    pub(super) channel: Channel,
    pub(super) info: PeerInfo,
    pub(super) snapshot: proto::Update,
    pub(super) updates: Updates,
}

/// The changes that a peer reports.
pub(super) struct Updates(Streaming<proto::Update>);

impl Updates {
    /// The next one. The end of the connection is an error.
    pub(super) async fn next(&mut self) -> Result<proto::Update, FollowError> {
        match self.0.message().await? {
            Some(update) => Ok(update),
            None => Err(FollowError::Ended),
        }
    }
}

impl Watch {
    /// Connects to the proxy at `address`, and waits for its snapshot.
    pub(super) async fn start(
        peers: &Arc<Peers>,
        address: SocketAddr,
        role: Role,
    ) -> Result<Self, FollowError> {
        let connection = dial(peers, address, ALPN_PEER).await?;
        let certificate_ends = certificate_ends(&connection);
        let channel = channel(connection).await?;
        let request = proto::WatchRequest {
            proxy: Some(proxy_message(&peers.own)),
            directory: role == Role::Primary,
        };
        let subscribed = subscribe(channel.clone(), request);
        let Ok(subscribed) = timeout(FIRST_TIMEOUT, subscribed).await else {
            return Err(FollowError::NoSnapshot);
        };
        let (mut snapshot, updates) = subscribed?;
        let Some(proxy) = snapshot.proxy.take() else {
            return Err(FollowError::NoSnapshot);
        };
        let info = PeerInfo {
            certificate_ends,
            ..peer_info(&proxy)
        };
        Ok(Self {
            channel,
            info,
            snapshot,
            updates,
        })
    }
}

async fn subscribe(
    channel: Channel,
    request: proto::WatchRequest,
) -> Result<(proto::Update, Updates), FollowError> {
    let mut client = PeerClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
    let mut updates = client.watch(request).await?.into_inner();
    match updates.message().await? {
        Some(snapshot) => Ok((snapshot, Updates(updates))),
        None => Err(FollowError::NoSnapshot),
    }
}

fn certificate_ends(connection: &Connection) -> Option<UnixTime> {
    let certificate = connection.get_ref().1.peer_certificates()?.first()?;
    let leaf = Leaf::read(certificate).ok()?;
    Some(leaf.not_after)
}

/// A channel over this connection, and no other.
async fn channel(connection: Connection) -> Result<Channel, FollowError> {
    let unused = Mutex::new(Some(connection));
    let connector = tower::service_fn(move |_: Uri| {
        let connection = unused.lock().take();
        async move {
            let connection = connection.ok_or(io::ErrorKind::NotConnected)?;
            Ok::<_, io::Error>(TokioIo::new(connection))
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
