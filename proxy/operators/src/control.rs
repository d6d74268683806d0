//! `culvert.control.v1`: the running proxy's answers to `culvert`.

mod error;
mod node_status;
mod removal;
mod token;

use std::cmp::Reverse;
use std::time::Duration;

use anyhow::Result;
use culvert_api::proto::control as proto;
use culvert_api::proto::control::control_server::{Control as Service, ControlServer};
use culvert_api::{NodeName, UnknownNode};
use culvert_daemon::Drain;
use culvert_proxy_core::advertise::Advertised;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::{Directory, Editor};
use culvert_proxy_peers::PrimaryClient;
use culvert_proxy_streams::peers::{PeerInfo, PeerView};
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::sockets::local_grpc;
use culvert_proxy_streams::sockets::local_socket::LocalSocket;
use culvert_proxy_trust::Trust;
use culvert_proxy_trust::tokens::Tokens;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::explain::{Dial, ExplainError, Explainer, Explanation, Line};
use crate::stream_list::{ListedStream, StreamList};
use crate::{observe, ping};
use error::to_status;
use token::{TokenRequest, token_status};

/// Streams in one answer.
const MAX_STREAMS: usize = 1_000;

/// Nodes whose agents are asked at once, if need be.
const CONCURRENT_NODES: usize = 64;

/// The time that an operator waits until a cluster's other proxies have a change.
const SHARED_TIMEOUT: Duration = Duration::from_secs(5);
/// The parts that operators see and change.
#[derive(Clone)]
pub struct Control {
    /// The nodes.
    pub directory: Directory,
    /// What changes nodes.
    pub editor: Editor,
    /// Who is who.
    pub trust: Trust,
    /// The one-time tokens.
    pub tokens: Tokens,
    /// The tunnels.
    pub registry: Registry,
    /// What this proxy says about itself.
    pub own: PeerInfo,
    /// How agents reach this proxy.
    pub advertised: Advertised,
    /// What answers `explain`.
    pub explainer: Explainer,
    /// The open connections.
    pub streams: StreamList,
    /// Set if this proxy follows another one, which has the nodes and the tokens.
    pub primary: Option<PrimaryClient>,
}

/// Serves operators until the drain begins.
pub fn serve(
    socket: LocalSocket,
    control: Control,
    drain: Drain,
) -> BoxFuture<'static, Result<()>> {
    let service = ControlServer::new(control);
    Box::pin(local_grpc::serve(socket, "control_socket", service, drain))
}

#[tonic::async_trait]
impl Service for Control {
    async fn list_nodes(
        &self,
        _: Request<proto::ListNodesRequest>,
    ) -> Result<Response<proto::ListNodesResponse>, Status> {
        let nodes = stream::iter(self.directory.nodes())
            .map(|node| self.status(node))
            .buffered(CONCURRENT_NODES)
            .collect()
            .await;
        let note = self.staleness().unwrap_or_default();
        Ok(Response::new(proto::ListNodesResponse { nodes, note }))
    }

    async fn remove_node(
        &self,
        request: Request<proto::RemoveNodeRequest>,
    ) -> Result<Response<proto::RemoveNodeResponse>, Status> {
        let node = node_name(&request.into_inner().name)?;
        if let Some(primary) = &self.primary {
            self.remove_at(primary, node).await?;
            return Ok(Response::new(proto::RemoveNodeResponse {}));
        }
        let name = node.clone();
        let removed = self.blocking(move |control| control.remove(&name)).await;
        let shared = self.trust.revocations_shared();
        if timeout(SHARED_TIMEOUT, shared).await.is_err() {
            return Err(Status::unavailable(format!(
                "{node} is shut out of this proxy and its tunnels here are closed, but the other \
                 proxies do not know it yet, for the ConfigMap culvert-revocations cannot be \
                 written: this proxy does so as soon as it can, see its log"
            )));
        }
        removed?;
        Ok(Response::new(proto::RemoveNodeResponse {}))
    }

    async fn create_token(
        &self,
        request: Request<proto::CreateTokenRequest>,
    ) -> Result<Response<proto::CreateTokenResponse>, Status> {
        if let Some(primary) = &self.primary {
            let created = primary.create_token(request.into_inner()).await?;
            return Ok(Response::new(self.with_own_addresses(created)));
        }
        let request = TokenRequest::try_from(request.into_inner())?;
        let created = self.blocking(move |control| control.create(request)).await;
        created.map(Response::new)
    }

    async fn list_tokens(
        &self,
        _: Request<proto::ListTokensRequest>,
    ) -> Result<Response<proto::ListTokensResponse>, Status> {
        if let Some(primary) = &self.primary {
            return primary.list_tokens().await.map(Response::new);
        }
        let tokens = self.tokens.list().into_iter().map(token_status).collect();
        Ok(Response::new(proto::ListTokensResponse { tokens }))
    }

    async fn revoke_token(
        &self,
        request: Request<proto::RevokeTokenRequest>,
    ) -> Result<Response<proto::RevokeTokenResponse>, Status> {
        if let Some(primary) = &self.primary {
            let revoked = primary.revoke_token(request.into_inner()).await;
            return revoked.map(Response::new);
        }
        let id = request.into_inner().id;
        self.blocking(move |control| {
            let revoked = control.tokens.revoke(&id);
            revoked.map_err(to_status)
        })
        .await?;
        Ok(Response::new(proto::RevokeTokenResponse {}))
    }

    async fn explain(
        &self,
        request: Request<proto::ExplainRequest>,
    ) -> Result<Response<proto::ExplainResponse>, Status> {
        let proto::ExplainRequest { destination, dial } = request.into_inner();
        let dial = if dial { Dial::Yes } else { Dial::No };
        let explained = self.explainer.explain(&destination, dial).await;
        let explained =
            explained.map_err(|error: ExplainError| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(explained_message(explained)))
    }

    async fn ping(
        &self,
        request: Request<proto::PingRequest>,
    ) -> Result<Response<proto::PingResponse>, Status> {
        let node = self.asked_node(&request.into_inner().node)?;
        let answer = ping::ping(&self.directory, &self.registry, node).await;
        answer
            .map(Response::new)
            .map_err(|error| Status::failed_precondition(error.to_string()))
    }

    async fn list_streams(
        &self,
        request: Request<proto::ListStreamsRequest>,
    ) -> Result<Response<proto::ListStreamsResponse>, Status> {
        let request = request.into_inner();
        let mut listed = self.streams_of(&request.node)?;
        let idle = Duration::from_secs(request.idle_seconds);
        listed.retain(|listed| listed.idle() >= idle);
        Ok(Response::new(most_urgent(listed)))
    }

    type ObserveStream = BoxStream<'static, Result<proto::StreamEvent, Status>>;

    async fn observe(
        &self,
        request: Request<proto::ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let streams = self.streams.streams().clone();
        let events = observe::observe(streams, request.into_inner());
        Ok(Response::new(events))
    }

    async fn list_proxies(
        &self,
        _: Request<proto::ListProxiesRequest>,
    ) -> Result<Response<proto::ListProxiesResponse>, Status> {
        let proxies = self.proxies();
        Ok(Response::new(proto::ListProxiesResponse { proxies }))
    }

    async fn list_certificates(
        &self,
        _: Request<proto::ListCertificatesRequest>,
    ) -> Result<Response<proto::ListCertificatesResponse>, Status> {
        let certificates = self.certificates();
        Ok(Response::new(proto::ListCertificatesResponse {
            certificates,
        }))
    }
}

impl Control {
    /// Runs on a blocking thread, because it writes to disk.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let control = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&control)).await;
        match done {
            Ok(done) => done,
            Err(_) => Err(Status::internal(
                "the proxy gave up on the request: see its log",
            )),
        }
    }

    /// The node that an operator asks about: the one with this name, or else as clients reach it.
    fn asked_node(&self, text: &str) -> Result<NodeName, Status> {
        let exact = node_name(text);
        if let Ok(node) = &exact
            && self.directory.contains(node)
        {
            return exact;
        }
        match self.directory.named(text) {
            Some(named) => Ok(named),
            None => exact,
        }
    }

    /// The streams of a node; all, if it is not named.
    fn streams_of(&self, node: &str) -> Result<Vec<ListedStream>, Status> {
        let mut listed = self.streams.all();
        if node.is_empty() {
            return Ok(listed);
        }
        let node = self.asked_node(node)?;
        listed.retain(|listed| listed.stream.node.as_ref() == Some(&node));
        // Streams of a node that was removed may end later.
        if listed.is_empty() && !self.directory.contains(&node) {
            return Err(no_such_node(&node));
        }
        Ok(listed)
    }

    /// For people: why the directory may be old; `None`: it is not.
    pub(crate) fn staleness(&self) -> Option<String> {
        if let Some(freshness) = self.directory.freshness()
            && let Some(remark) = freshness.remark()
        {
            return Some(remark);
        }
        self.primary.as_ref()?.primary().warning()
    }

    /// This proxy, then those that it knows.
    pub(crate) fn proxies(&self) -> Vec<proto::ProxyStatus> {
        let mut proxies = vec![self.own_status()];
        proxies.extend(self.registry.peers().iter().map(peer_status));
        proxies
    }

    /// The certificates of this proxy.
    pub(crate) fn certificates(&self) -> Vec<proto::CertificateStatus> {
        let mut certificates = Vec::new();
        for (owner, certificate) in self.trust.certificates() {
            certificates.push(proto::CertificateStatus {
                owner: owner.to_owned(),
                not_before: certificate.not_before.seconds(),
                not_after: certificate.not_after.seconds(),
            });
        }
        certificates
    }

    fn own_status(&self) -> proto::ProxyStatus {
        let mut certificate_ends = 0;
        if let Some((_, own)) = self.trust.certificates().first() {
            certificate_ends = own.not_after.seconds();
        }
        proto::ProxyStatus {
            host: self.own.host.clone(),
            instance: self.own.instance.to_string(),
            version: self.own.version.clone(),
            tunnels: self.registry.own_tunnels(),
            nodes: self.registry.own_nodes(),
            streams: saturated(self.streams.count()),
            certificate_ends,
            ..proto::ProxyStatus::default()
        }
    }
}

/// The streams that have waited for the longest.
pub(crate) fn most_urgent(mut listed: Vec<ListedStream>) -> proto::ListStreamsResponse {
    listed.sort_by_key(|listed| Reverse((listed.waits(), listed.idle())));
    let left_out = listed.len().saturating_sub(MAX_STREAMS);
    listed.truncate(MAX_STREAMS);
    proto::ListStreamsResponse {
        streams: listed.iter().map(stream_status).collect(),
        left_out: left_out as u64,
    }
}

/// As `culvert` reads it.
pub(crate) fn explained_message(explained: Explanation) -> proto::ExplainResponse {
    proto::ExplainResponse {
        title: explained.title,
        lines: explained.lines.into_iter().map(line_message).collect(),
        reachable: explained.reachable,
        no_node: explained.no_node,
    }
}

fn line_message(line: Line) -> proto::ExplainLine {
    proto::ExplainLine {
        subject: line.subject.to_owned(),
        text: line.text,
        broken: line.broken,
    }
}

fn no_such_node(node: &NodeName) -> Status {
    Status::not_found(UnknownNode::new(node.as_str()).to_string())
}

fn node_name(text: &str) -> Result<NodeName, Status> {
    text.parse()
        .map_err(|error: culvert_api::InvalidNodeName| Status::invalid_argument(error.to_string()))
}

fn stream_status(listed: &ListedStream) -> proto::StreamStatus {
    let stream = &listed.stream;
    let node = stream.node.as_ref();
    proto::StreamStatus {
        stream: stream.stream,
        frontend: stream.frontend.to_owned(),
        client: stream.client.clone(),
        destination: stream.original_dst.clone(),
        node: node.map(NodeName::to_string).unwrap_or_default(),
        age_seconds: Duration::from_secs_f64(stream.age_seconds).as_secs(),
        bytes_to_backend: stream.bytes_to_backend,
        bytes_to_client: stream.bytes_to_client,
        idle_seconds: listed.idle().as_secs(),
        waits: listed.waits().is_some(),
        tunnel: stream.tunnel.unwrap_or_default(),
        peer: stream.peer.clone().unwrap_or_default(),
        moves: stream.moves,
        move_reason: stream.move_reason.unwrap_or_default().to_owned(),
    }
}

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn peer_status(peer: &PeerView) -> proto::ProxyStatus {
    let round_trip = peer.round_trip.unwrap_or_default();
    let certificate_ends = peer.info.certificate_ends.map(UnixTime::seconds);
    proto::ProxyStatus {
        host: peer.info.host.clone(),
        instance: peer.info.instance.to_string(),
        version: peer.info.version.clone(),
        tunnels: saturated(peer.tunnels),
        nodes: saturated(peer.nodes),
        links: saturated(peer.links),
        streams: peer.streams,
        round_trip_micros: u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX),
        draining: peer.draining,
        certificate_ends: certificate_ends.unwrap_or_default(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
