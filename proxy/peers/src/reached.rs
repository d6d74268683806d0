//! The peers that are connected now, to ask them something. Nothing is dialled to ask.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_api::proto::enroll::enroll_client::EnrollClient;
use culvert_api::proto::enroll::{Certificate, JoinRequest};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::follow::Role;

/// A peer signs a certificate after one write to disk.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Peers that are asked about one token.
const MAX_ASKED: usize = 16;
/// Tokens that peers are asked about at once: strangers can make up tokens.
const MAX_ASKING: usize = 4;

/// The connections to peers, by number. Clones share them.
#[derive(Clone)]
pub struct Reached {
    channels: Arc<Mutex<Channels>>,
    asking: Arc<Semaphore>,
}

#[derive(Default)]
struct Channels {
    last: u64,
    all: BTreeMap<u64, (Channel, Role)>,
}

/// A connection that can be used while this exists.
pub(super) struct Reachable {
    reached: Reached,
    number: u64,
}

/// How peers answered to a token.
#[derive(Debug)]
pub enum Asked {
    /// No peer knows the token.
    Unknown,
    /// The answer of the peer that does, or of one that failed.
    Answered(Result<Certificate, Status>),
}

impl Default for Reached {
    fn default() -> Self {
        Self {
            channels: Arc::default(),
            asking: Arc::new(Semaphore::new(MAX_ASKING)),
        }
    }
}

impl Reached {
    pub(super) fn add(&self, channel: Channel, role: Role) -> Reachable {
        let mut channels = self.lock();
        channels.last += 1;
        let number = channels.last;
        channels.all.insert(number, (channel, role));
        Reachable {
            reached: self.clone(),
            number,
        }
    }

    /// The connection to the primary.
    pub(super) fn primary(&self) -> Option<Channel> {
        let channels = self.lock();
        let mut all = channels.all.values().rev();
        all.find(|(_, role)| *role == Role::Primary)
            .map(|(channel, _)| channel.clone())
    }

    /// Asks the peers for a certificate in exchange for a token that this proxy does not know. They
    /// ask nobody.
    pub(crate) async fn join(&self, request: &JoinRequest) -> Asked {
        let asked = async {
            // It is never closed.
            let _turn = self.asking.acquire().await;
            let channels: Vec<_> = {
                let channels = self.lock();
                let all = channels.all.values().map(|(channel, _)| channel.clone());
                all.take(MAX_ASKED).collect()
            };
            let mut answer = Asked::Unknown;
            for channel in channels {
                let mut client = EnrollClient::new(channel);
                match client.join(request.clone()).await {
                    Ok(certificate) => {
                        return Asked::Answered(Ok(certificate.into_inner()));
                    }
                    Err(status) if status.code() == Code::NotFound => {}
                    Err(status) => answer = Asked::Answered(Err(status)),
                }
            }
            answer
        };
        timeout(JOIN_TIMEOUT, asked).await.unwrap_or_else(|_| {
            let text = "another proxy may know the token, but did not answer in time: try again";
            Asked::Answered(Err(Status::unavailable(text)))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reachable {
    fn drop(&mut self) {
        self.reached.lock().all.remove(&self.number);
    }
}
