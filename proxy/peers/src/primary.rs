//! The proxy that this one follows: its nodes and VIPs are applied here, and what only it can do is
//! passed on to it.

use std::sync::Arc;
use std::time::Duration;

use culvert_api::proto::control as control_proto;
use culvert_api::proto::control::control_client::ControlClient;
use culvert_api::proto::peer as proto;
use culvert_api::{HostPort, NodeName};
use culvert_daemon::{Gate, chain};
use culvert_proxy_core::directory::{Directory, DirectoryError, FactsWriter};
use culvert_proxy_core::state::StateError;
use culvert_proxy_streams::registry::Registry;
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::Peers;
use super::wire::{BadDirectory, facts};

/// The primary answers from memory or after one write to disk.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// For so long an operator waits until this proxy has what was changed at the primary.
const SYNC_TIMEOUT: Duration = Duration::from_secs(2);
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
pub(super) enum DirectoryUpdate {
    /// It is applied, or is of no use.
    Done,
    /// One proxy takes the place of another on this host: try again in a moment.
    StateFrozen,
}

/// Why the primary's directory is not applied.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
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
        primary.record_failure("it has not answered since this proxy started".to_owned());
        primary
    }

    pub(crate) fn host(&self) -> &HostPort {
        &self.host
    }

    /// Applies the primary's directory. Ends the tunnels of nodes that are not in it any more.
    pub(super) fn apply_directory(&self, message: &proto::Directory) -> DirectoryUpdate {
        match self.write(message.clone()) {
            Ok(removed) => {
                for node in &removed {
                    self.registry.close(node);
                }
                *self.problem.lock() = None;
                self.gate.open();
                self.gate.remark(None);
            }
            Err(ApplyError::Directory(DirectoryError::State(StateError::Frozen { .. }))) => {
                return DirectoryUpdate::StateFrozen;
            }
            Err(error) => {
                let reason = chain(&error);
                tracing::error!(primary = %self.host, reason, "the primary's directory is not used");
                self.record_failure(reason);
            }
        }
        DirectoryUpdate::Done
    }

    /// Writes the directory. Returns the nodes that were removed.
    fn write(&self, message: proto::Directory) -> Result<Vec<NodeName>, ApplyError> {
        Ok(self.writer.replace(facts(message)?)?)
    }

    /// Records why the primary is not followed now. This proxy goes on with what it has.
    pub(super) fn record_failure(&self, reason: String) {
        let text = self.not_followed(&reason);
        *self.problem.lock() = Some(reason);
        if self.directory.is_known() {
            self.gate.open();
            self.gate.remark(Some(text));
        } else {
            self.gate.close(text);
        }
    }

    /// For people: why what this proxy knows may be old; `None`: it is not.
    pub fn warning(&self) -> Option<String> {
        let reason = self.problem.lock().clone()?;
        Some(self.not_followed(&reason))
    }

    /// The answer to a call that only the primary could answer.
    pub(crate) fn unavailable(&self) -> Status {
        let reason = self.problem.lock().clone();
        self.unavailable_because(&reason.unwrap_or_default())
    }

    fn unavailable_because(&self, reason: &str) -> Status {
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
        self.wait_for(&node, Presence::Present).await;
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
        self.call(async |mut client| client.remove_node(self.request(request)).await)
            .await?;
        self.wait_for(node.as_str(), Presence::Absent).await;
        Ok(())
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
        let Some(channel) = self.peers.connected.primary() else {
            return Err(self.primary.unavailable());
        };
        let client = ControlClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
        match timeout(CALL_TIMEOUT, call(client)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            // What the primary itself says is for the operator as it is.
            Ok(Err(status)) if failed_on_the_way(&status) => {
                Err(self.primary.unavailable_because(status.message()))
            }
            Ok(Err(status)) => Err(Status::new(status.code(), status.message())),
            Err(_) => {
                let reason = format!("{} s have passed", CALL_TIMEOUT.as_secs());
                Err(self.primary.unavailable_because(&reason))
            }
        }
    }

    /// Waits until this proxy has the change that the primary made.
    async fn wait_for(&self, node: &str, presence: Presence) {
        let Ok(node) = node.parse::<NodeName>() else {
            return;
        };
        let known = self.directory_has(&node, presence);
        if timeout(SYNC_TIMEOUT, known).await.is_err() {
            tracing::warn!(%node, "the primary's change is not known here yet");
        }
    }

    async fn directory_has(&self, node: &NodeName, presence: Presence) {
        let directory = &self.primary.directory;
        let mut changes = directory.changes();
        while directory.contains(node) != (presence == Presence::Present) {
            // The sender is a part of the directory.
            drop(changes.changed().await);
        }
    }
}

/// Whether the directory is to have a node or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Present,
    Absent,
}

/// Whether this host's client made the status, because it got no answer.
fn failed_on_the_way(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}
