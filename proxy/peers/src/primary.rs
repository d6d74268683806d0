//! The proxy that this one follows: its nodes and VIPs are taken over here, and what only it can do
//! is passed on to it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_api::HostPort;
use culvert_api::NodeName;
use culvert_api::proto::control as control_proto;
use culvert_api::proto::control::control_client::ControlClient;
use culvert_api::proto::peer as proto;
use culvert_daemon::{Gate, chain};
use culvert_proxy_core::directory::{Directory, DirectoryError, FactsWriter};
use culvert_proxy_core::state::StateError;
use culvert_proxy_streams::registry::Registry;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::Peers;
use super::wire::{BadDirectory, facts};

/// The primary answers from memory or after one write to disk.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// For so long an operator waits until this proxy has what was changed at the primary.
const FOLLOWED_TIMEOUT: Duration = Duration::from_secs(2);
/// A list of all tokens is larger than gRPC's usual 4 MiB.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The primary, and what follows it here.
pub struct Primary {
    /// `--follow`.
    host: HostPort,
    directory: Directory,
    writer: FactsWriter,
    registry: Registry,
    /// Open as soon as there is a directory.
    gate: Gate,
    /// Why the primary is not followed now; `None`: it is.
    problem: Mutex<Option<String>>,
}

/// What became of the primary's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is taken, or is of no use.
    Done,
    /// One proxy takes the place of another on this host: ask again in a moment.
    NotNow,
}

/// Why the primary's directory is not taken.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error(transparent)]
    Bad(#[from] BadDirectory),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

impl Primary {
    /// `gate` is closed until there is a directory.
    pub fn new(
        host: HostPort,
        (directory, writer): (Directory, FactsWriter),
        registry: Registry,
        gate: Gate,
    ) -> Self {
        let primary = Self {
            host,
            directory,
            writer,
            registry,
            gate,
            problem: Mutex::default(),
        };
        primary.missed("it has not answered since this proxy started".to_owned());
        primary
    }

    pub(crate) fn host(&self) -> &HostPort {
        &self.host
    }

    /// Takes over the primary's directory.
    pub(super) fn take(&self, told: &proto::Directory) -> Taken {
        match self.taken(told.clone()) {
            Ok(gone) => {
                gone.iter().for_each(|node| self.registry.close(node));
                *self.problem() = None;
                self.gate.open();
                self.gate.remark(None);
            }
            Err(NotTaken::Directory(DirectoryError::State(StateError::Frozen { .. }))) => {
                return Taken::NotNow;
            }
            Err(error) => {
                let reason = chain(&error);
                tracing::error!(primary = %self.host, reason, "the primary's directory is not used");
                self.missed(reason);
            }
        }
        Taken::Done
    }

    fn taken(&self, told: proto::Directory) -> Result<Vec<NodeName>, NotTaken> {
        Ok(self.writer.replace(facts(told)?)?)
    }

    /// Notes that the primary is not followed now. This proxy goes on with what it has.
    pub(super) fn missed(&self, reason: String) {
        let text = self.not_followed(&reason);
        *self.problem() = Some(reason);
        if self.directory.is_known() {
            self.gate.open();
            self.gate.remark(Some(text));
        } else {
            self.gate.close(text);
        }
    }

    /// For people: why what this proxy knows may be old.
    pub fn note(&self) -> Option<String> {
        let reason = self.problem().clone();
        reason.map(|reason| self.not_followed(&reason))
    }

    /// What is said of a call that only the primary could answer.
    pub(crate) fn unanswered(&self) -> Status {
        let reason = self.problem().clone().unwrap_or_default();
        self.silent(&reason)
    }

    fn silent(&self, reason: &str) -> Status {
        Status::unavailable(format!(
            "only the primary {} can do this, and it does not answer: {reason}",
            self.host
        ))
    }

    fn not_followed(&self, reason: &str) -> String {
        format!(
            "the primary {} is not followed: {reason}; until it is, nodes and VIPs stay as they \
             are, and no tokens are made",
            self.host
        )
    }

    fn problem(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes on to the primary what operators ask of this proxy. Clones share it.
#[derive(Clone)]
pub struct PrimaryClient {
    peers: Arc<Peers>,
    primary: Arc<Primary>,
}

impl PrimaryClient {
    /// `None`: this proxy follows none.
    pub fn of(peers: &Arc<Peers>) -> Option<Self> {
        Some(Self {
            primary: peers.primary.clone()?,
            peers: peers.clone(),
        })
    }

    /// The proxy that is asked.
    pub fn primary(&self) -> &Primary {
        &self.primary
    }

    /// Passes it on.
    ///
    /// # Errors
    ///
    /// The primary does not answer, or refuses.
    pub async fn create_token(
        &self,
        request: control_proto::CreateTokenRequest,
    ) -> Result<control_proto::CreateTokenResponse, Status> {
        let node = request.node.clone();
        let created = self
            .call(async |mut client| client.create_token(self.request(request)).await)
            .await?;
        self.followed(&node, true).await;
        Ok(created)
    }

    /// All tokens of the primary.
    ///
    /// # Errors
    ///
    /// The primary does not answer, or refuses.
    pub async fn list_tokens(&self) -> Result<control_proto::ListTokensResponse, Status> {
        let request = control_proto::ListTokensRequest {};
        self.call(async |mut client| client.list_tokens(self.request(request)).await)
            .await
    }

    /// Passes it on.
    ///
    /// # Errors
    ///
    /// The primary does not answer, or refuses.
    pub async fn revoke_token(
        &self,
        request: control_proto::RevokeTokenRequest,
    ) -> Result<control_proto::RevokeTokenResponse, Status> {
        self.call(async |mut client| client.revoke_token(self.request(request)).await)
            .await
    }

    /// Passes it on, and waits until the node is gone here too.
    ///
    /// # Errors
    ///
    /// The primary does not answer, or refuses.
    pub async fn remove_node(&self, node: &NodeName) -> Result<(), Status> {
        let request = control_proto::RemoveNodeRequest {
            name: node.to_string(),
        };
        let removed = self
            .call(async |mut client| client.remove_node(self.request(request)).await)
            .await;
        if removed.is_ok() {
            self.followed(node.as_str(), false).await;
        }
        removed.map(drop)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(CALL_TIMEOUT);
        request
    }

    async fn call<T>(
        &self,
        call: impl AsyncFnOnce(ControlClient<tonic::transport::Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        let channel = self.peers.reached.primary();
        let channel = channel.ok_or_else(|| self.primary.unanswered())?;
        let client = ControlClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
        let answered = timeout(CALL_TIMEOUT, call(client)).await;
        match answered {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            // What the primary itself says is for the operator as it is.
            Ok(Err(status)) if is_own(&status) => Err(self.primary.silent(status.message())),
            Ok(Err(status)) => Err(Status::new(status.code(), status.message())),
            Err(_) => {
                let reason = format!("{} s have passed", CALL_TIMEOUT.as_secs());
                Err(self.primary.silent(&reason))
            }
        }
    }

    /// Waits until this proxy knows the change that the primary made.
    async fn followed(&self, node: &str, there: bool) {
        let Ok(node) = node.parse::<NodeName>() else {
            return;
        };
        let directory = &self.primary.directory;
        let mut changes: watch::Receiver<()> = directory.changes();
        let known = async {
            while directory.contains(&node) != there {
                // The sender is a part of the directory.
                drop(changes.changed().await);
            }
        };
        if timeout(FOLLOWED_TIMEOUT, known).await.is_err() {
            tracing::warn!(%node, "the primary's change is not known here yet");
        }
    }
}

/// Whether a call failed on the way.
fn is_own(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}
