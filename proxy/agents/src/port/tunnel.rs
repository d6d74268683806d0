//! One tunnel of an agent, from the check of its certificate to its end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use culvert_api::{NodeName, REFUSED};
use culvert_daemon::{Drain, VERSION, chain};
use culvert_proxy_streams::registry::Registration;
use culvert_proxy_streams::sockets::strangers::HandshakePermit;
use culvert_proxy_trust::identity::{Credential, Purpose};
use culvert_tunnel::proto::tunnel::DescribeRequest;
use culvert_tunnel::{Driver, ProxyTunnel, Tunnel, TunnelError};
use rustls::pki_types::CertificateDer;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::{AgentError, Agents, PARTING, Tls};

/// The time in which a refused agent can read the reason.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

impl Agents {
    /// The roles are reversed here: the proxy becomes the client of the agent.
    pub(super) async fn serve_tunnel(
        &self,
        tls: Tls,
        chain: Vec<CertificateDer<'static>>,
        client: SocketAddr,
        mut permit: HandshakePermit,
    ) -> Result<(), AgentError> {
        let node = match self.identify(&chain) {
            Ok(credential) => credential.node,
            Err(refused) => {
                self.record_refusal(&refused);
                return Err(send_refusal(tls, refused).await);
            }
        };
        permit.start_call().await?;
        let evicted = permit.evicted();
        let established = tokio::select! {
            established = self.establish(&node, tls) => established,
            () = evicted.cancelled() => return Err(AgentError::Evicted),
        };
        let (tunnel, driver) = established.map_err(AgentError::Tunnel)?;
        let mut driven = std::pin::pin!(driver.run());
        let request = DescribeRequest {
            version: VERSION.to_owned(),
            instance: self.parts.instance.to_string(),
        };
        let described = tokio::select! {
            described = tunnel.describe(&request) => described.map_err(AgentError::Tunnel)?,
            ended = &mut driven => return ended.map_err(AgentError::Tunnel),
            () = evicted.cancelled() => return Err(AgentError::Evicted),
        };
        drop(permit);
        self.parts.strangers.proven(client.ip());
        let registration = self
            .parts
            .registry
            .register(node.clone(), tunnel, described, client);
        self.drive(&node, chain, registration, client, driven).await
    }

    /// Drives a registered tunnel of `node` until it ends or must be closed.
    async fn drive(
        &self,
        node: &NodeName,
        chain: Vec<CertificateDer<'static>>,
        registration: Registration,
        client: SocketAddr,
        mut driven: Pin<&mut impl Future<Output = Result<(), TunnelError>>>,
    ) -> Result<(), AgentError> {
        let proxies = self.parts.proxies.clone();
        let proxies_sent = proxies.send_to(registration.tunnel().clone());
        // The node may have been removed since, when this tunnel was not yet registered and could
        // not be closed.
        let mut admission = self.parts.admissions.add(self.identify(&chain)?);
        // An idle tunnel holds what it needs and no more.
        drop(chain);
        let generation = registration.generation();
        tracing::info!(
            %node,
            tunnel = generation,
            client.addr = %client,
            agent_version = registration.agent_version(),
            "tunnel up"
        );
        let ended = tokio::select! {
            ended = &mut driven => ended.map_err(AgentError::Tunnel),
            () = registration.closed() => Ok(()),
            void = admission.void() => Err(AgentError::Void(void)),
            never = proxies_sent => match never {},
            () = self.drained() => {
                // The tunnel has no users left. It closes after all pending data is sent.
                drop(registration);
                let parted = timeout(PARTING, &mut driven).await;
                parted.unwrap_or(Ok(())).map_err(AgentError::Tunnel)
            }
        };
        let reason = why_down(&ended, &self.parts.drain);
        tracing::info!(%node, tunnel = generation, reason, "tunnel down");
        self.parts.registry.history().record_end(node, reason);
        ended
    }

    /// Pending data for the node's clients, and for the node itself, counts against the node's
    /// share of the budget.
    async fn establish(
        &self,
        node: &NodeName,
        tls: Tls,
    ) -> Result<(Tunnel, Driver<Tls>), TunnelError> {
        let socket_state = tls.get_ref().0.socket_state();
        let tunnel = ProxyTunnel {
            budget: self.parts.tunnel.budget.of(node.as_str()),
            ..self.parts.tunnel.clone()
        };
        tunnel.establish(tls, socket_state).await
    }

    /// Records the refusal, so that operators see why the node is offline. A client with a forged
    /// certificate does not get this far.
    fn record_refusal(&self, refused: &AgentError) {
        if let AgentError::Identity(error) = refused
            && let Some(node) = error.node()
        {
            self.parts
                .registry
                .history()
                .record_refusal(node, error.to_string());
        }
    }

    fn identify(&self, chain: &[CertificateDer<'static>]) -> Result<Credential, AgentError> {
        self.parts
            .trust
            .identify(chain, Purpose::Tunnel)
            .map_err(AgentError::Identity)
    }

    /// When the proxy drains, its tunnels stay open until no client needs them.
    async fn drained(&self) {
        self.parts.drain.begun().await;
        self.parts.clients.close();
        self.parts.clients.wait().await;
        self.parts.streams.idle().await;
    }
}

/// The reason why a tunnel ended, for the log and the history.
fn why_down(ended: &Result<(), AgentError>, drain: &Drain) -> String {
    match ended {
        Ok(()) if drain.has_begun() => "the proxy drained".to_owned(),
        Ok(()) => "its agent left, or the proxy closed it: the node was removed or had too many \
            tunnels"
            .to_owned(),
        Err(AgentError::Tunnel(error)) if is_cut(error) => {
            "its connection was cut without a word: the agent was killed, or something on the way \
             gave up; the log of the agent says which"
                .to_owned()
        }
        Err(AgentError::Tunnel(error)) => chain(error),
        Err(error) => chain(error),
    }
}

fn is_cut(error: &TunnelError) -> bool {
    let TunnelError::Http2(error) = error else {
        return false;
    };
    // The kind depends on whether the last operation was a read or a write.
    matches!(
        error.get_io().map(io::Error::kind),
        Some(
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
        )
    )
}

/// Sends the reason of a refusal in place of the first line of HTTP/2. Without it the agent could
/// not report what to fix.
async fn send_refusal(mut tls: Tls, refused: AgentError) -> AgentError {
    let line = format!("{REFUSED}{}\n", chain(&refused));
    let sent = async {
        tls.write_all(line.as_bytes()).await?;
        tls.shutdown().await
    };
    if !matches!(timeout(REFUSAL_TIMEOUT, sent).await, Ok(Ok(()))) {
        tracing::debug!("a refused agent was gone before it had read the reason");
    }
    refused
}
