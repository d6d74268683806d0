//! The other end of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use culvert_api::NodeName;
use culvert_api::proto::control as proto;
use culvert_api::proto::control::control_client::ControlClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// The proxy answers from memory or after one write to disk.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// A list of all nodes of a large site is larger than gRPC's usual 4 MiB.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A connection to the running proxy.
pub struct Client(ControlClient<Channel>);

impl Client {
    /// Connects to the control socket.
    ///
    /// # Errors
    ///
    /// No proxy listens there, or this user may not connect.
    pub async fn connect(socket: &Path) -> Result<Self> {
        // Tried first on its own, for tonic would hide the cause.
        drop(
            UnixStream::connect(socket)
                .await
                .map_err(|error| explained(socket, error))?,
        );
        let path: PathBuf = socket.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is never dialled; HTTP/2 wants an authority.
        let endpoint = Endpoint::from_static("http://control.invalid")
            .timeout(CALL_TIMEOUT)
            .connect_timeout(CALL_TIMEOUT);
        let channel = endpoint.connect_with_connector(connector).await;
        let channel =
            channel.with_context(|| format!("speak to the proxy on {}", socket.display()))?;
        Ok(Self(
            ControlClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
        ))
    }

    /// All nodes, with their tunnels.
    ///
    /// # Errors
    ///
    /// The proxy does not answer, or refuses.
    pub async fn list_nodes(&mut self) -> Result<Vec<proto::NodeStatus>> {
        let answer = self.0.list_nodes(proto::ListNodesRequest {}).await;
        let answer = answer.map_err(|status| refusal(&status))?;
        Ok(answer.into_inner().nodes)
    }

    pub(crate) async fn list_streams(
        &mut self,
        request: proto::ListStreamsRequest,
    ) -> Result<proto::ListStreamsResponse> {
        let answer = self.0.list_streams(request).await;
        Ok(answer.map_err(|status| refusal(&status))?.into_inner())
    }

    pub(crate) async fn list_certificates(&mut self) -> Result<Vec<proto::CertificateStatus>> {
        let answer = self
            .0
            .list_certificates(proto::ListCertificatesRequest {})
            .await;
        Ok(answer
            .map_err(|status| refusal(&status))?
            .into_inner()
            .certificates)
    }

    /// Removes a node.
    ///
    /// # Errors
    ///
    /// The proxy does not answer, or refuses.
    pub async fn remove_node(&mut self, node: &NodeName) -> Result<()> {
        let answer = self
            .0
            .remove_node(proto::RemoveNodeRequest {
                name: node.to_string(),
            })
            .await;
        answer.map(drop).map_err(|status| refusal(&status))
    }

    /// Makes a token, and its node if there is none.
    ///
    /// # Errors
    ///
    /// The proxy does not answer, or refuses.
    pub async fn create_token(
        &mut self,
        request: proto::CreateTokenRequest,
    ) -> Result<proto::CreateTokenResponse> {
        Ok(self
            .0
            .create_token(request)
            .await
            .map_err(|status| refusal(&status))?
            .into_inner())
    }

    /// All tokens.
    ///
    /// # Errors
    ///
    /// The proxy does not answer, or refuses.
    pub async fn list_tokens(&mut self) -> Result<Vec<proto::TokenStatus>> {
        let answer = self.0.list_tokens(proto::ListTokensRequest {}).await;
        Ok(answer
            .map_err(|status| refusal(&status))?
            .into_inner()
            .tokens)
    }

    /// Revokes a token.
    ///
    /// # Errors
    ///
    /// The proxy does not answer, or refuses.
    pub async fn revoke_token(&mut self, id: &str) -> Result<()> {
        let answer = self
            .0
            .revoke_token(proto::RevokeTokenRequest { id: id.to_owned() })
            .await;
        answer.map(drop).map_err(|status| refusal(&status))
    }
}

/// The proxy's answers are whole sentences; the status code adds nothing for people.
fn refusal(status: &tonic::Status) -> anyhow::Error {
    match status.message() {
        "" => anyhow!(
            "the proxy answered {:?} without a reason: see its log",
            status.code()
        ),
        message => anyhow!("{message}"),
    }
}

fn explained(socket: &Path, error: io::Error) -> anyhow::Error {
    let hint = if error.kind() == io::ErrorKind::PermissionDenied {
        "only root and the proxy's own user may use it: try with sudo"
    } else {
        "is culvert-proxy running on this host? If it has another --control-socket, give the same \
         here"
    };
    anyhow!(
        "no answer on the control socket {}: {error}: {hint}",
        socket.display()
    )
}
