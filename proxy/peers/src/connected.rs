//! The peers that are connected now, to ask them something. Nothing is dialled to ask.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::enroll::enroll_client::EnrollClient;
use culvert_api::proto::enroll::{Certificate, JoinRequest};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// A peer signs a certificate after one write to disk.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Peers that are asked about one token.
const MAX_ASKED: usize = 16;
/// Tokens that peers are asked about at once: strangers can make up tokens.
const MAX_JOINS: usize = 4;

/// What a proxy is to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Peer,
    /// The one that this proxy follows.
    Primary,
}

/// The connections to peers, by number. Clones share them.
#[derive(Clone)]
pub struct ConnectedPeers {
    channels: Arc<Mutex<Channels>>,
    joins: Arc<Semaphore>,
}

#[derive(Default)]
struct Channels {
    last: u64,
    all: BTreeMap<u64, (Channel, Role)>,
}

/// A connection that can be used while this exists.
pub(super) struct ConnectedPeer {
    peers: ConnectedPeers,
    number: u64,
}

/// What peers answered about a token.
#[derive(Debug)]
pub enum JoinAnswer {
    /// No peer knows the token.
    Unknown,
    /// The answer of the peer that does, or of one that failed.
    Answered(Result<Certificate, Status>),
}

impl Default for ConnectedPeers {
    fn default() -> Self {
        Self {
            channels: Arc::default(),
            joins: Arc::new(Semaphore::new(MAX_JOINS)),
        }
    }
}

impl ConnectedPeers {
    pub(super) fn add(&self, channel: Channel, role: Role) -> ConnectedPeer {
        let mut channels = self.channels.lock();
        channels.last += 1;
        let number = channels.last;
        channels.all.insert(number, (channel, role));
        ConnectedPeer {
            peers: self.clone(),
            number,
        }
    }

    /// The newest connection to the primary.
    pub(super) fn primary(&self) -> Option<Channel> {
        let channels = self.channels.lock();
        for (channel, role) in channels.all.values().rev() {
            if *role == Role::Primary {
                return Some(channel.clone());
            }
        }
        None
    }

    /// Asks the peers for a certificate in exchange for a token that this proxy does not know. They
    /// ask no further ones.
    pub(crate) async fn join(&self, request: &JoinRequest) -> JoinAnswer {
        match timeout(JOIN_TIMEOUT, self.ask_each(request)).await {
            Ok(answer) => answer,
            Err(_) => JoinAnswer::Answered(Err(Status::unavailable(
                "another proxy may know the token, but did not answer in time: try again",
            ))),
        }
    }

    /// Asks one peer after another, until one has a certificate.
    async fn ask_each(&self, request: &JoinRequest) -> JoinAnswer {
        // It is never closed.
        let _permit = self.joins.acquire().await;
        let mut answer = JoinAnswer::Unknown;
        for channel in self.first(MAX_ASKED) {
            match EnrollClient::new(channel).join(request.clone()).await {
                Ok(certificate) => return JoinAnswer::Answered(Ok(certificate.into_inner())),
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => answer = JoinAnswer::Answered(Err(status)),
            }
        }
        answer
    }

    /// So many connections.
    fn first(&self, count: usize) -> Vec<Channel> {
        let channels = self.channels.lock();
        let first = channels.all.values().take(count);
        first.map(|(channel, _)| channel.clone()).collect()
    }
}

impl Drop for ConnectedPeer {
    fn drop(&mut self) {
        self.peers.channels.lock().all.remove(&self.number);
    }
}
