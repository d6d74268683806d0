//! `culvert.control.v1`: the running proxy's answers to `culvert`.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use culvert_api::proto::control as proto;
use culvert_api::proto::control::control_server::{Control as Service, ControlServer};
use culvert_api::{Forbidden, HostPort, MAX_NAME, NodeName, Zone, other_meaning};
use culvert_daemon::Drain;
use culvert_proxy_core::advertise::Advertised;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::{
    Destination, Directory, DirectoryError, Editor, NodeView, Removal,
};
use culvert_proxy_peers::PrimaryClient;
use culvert_proxy_streams::elsewhere::{PeerInfo, PeerView};
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::sockets::local_grpc;
use culvert_proxy_streams::sockets::local_socket::LocalSocket;
use culvert_proxy_trust::identity::Leaf;
use culvert_proxy_trust::tokens::{TokenText, TokenView, Tokens, TokensError};
use culvert_proxy_trust::{Trust, TrustError};
use culvert_tunnel::proto::tunnel::{DescribeResponse, TunnelEnd};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use tonic::{Code, Request, Response, Status};

use crate::explain::{Dial, ExplainError, Explainer, Line, ReportedRules};
use crate::stream_list::{ListedStream, StreamList};
use crate::{observe, ping};

/// The longest lifetime of a token. Nobody keeps a join command longer on purpose.
const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// Streams in one answer.
const MOST_STREAMS: usize = 1_000;

/// Nodes whose agents are asked at once, if need be.
const NODES_AT_ONCE: usize = 64;

/// The time that an operator waits until a cluster's other proxies have a change.
const SHARED_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after the end of a tunnel its agent is asked what it knows of that.
const RECENT_END: Duration = Duration::from_secs(600);

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
            .buffered(NODES_AT_ONCE)
            .collect()
            .await;
        let primary = self.primary.as_ref();
        let note = self
            .directory
            .freshness()
            .and_then(|freshness| freshness.remark())
            .or_else(|| primary.and_then(|client| client.primary().note()))
            .unwrap_or_default();
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
        match tokio::time::timeout(SHARED_TIMEOUT, self.trust.revocations_shared()).await {
            Ok(()) => removed.map(|()| Response::new(proto::RemoveNodeResponse {})),
            Err(_) => Err(Status::unavailable(format!(
                "{node} is shut out of this proxy and its tunnels here are closed, but the other \
                 proxies do not know it yet, for the ConfigMap culvert-revocations cannot be \
                 written: this proxy does so as soon as it can, see its log"
            ))),
        }
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
        self.blocking(move |control| control.create(request))
            .await
            .map(Response::new)
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
            control
                .tokens
                .revoke(&id)
                .map_err(|error| refused(&error.into()))
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
        let line = |line: Line| proto::ExplainLine {
            subject: line.subject.to_owned(),
            text: line.text,
            broken: line.broken,
        };
        Ok(Response::new(proto::ExplainResponse {
            title: explained.title,
            lines: explained.lines.into_iter().map(line).collect(),
            reachable: explained.reachable,
            no_node: explained.no_node,
        }))
    }

    async fn ping(
        &self,
        request: Request<proto::PingRequest>,
    ) -> Result<Response<proto::PingResponse>, Status> {
        let node = node_name(&request.into_inner().node)?;
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
        let node = match request.node.as_str() {
            "" => None,
            name => Some(node_name(name)?),
        };
        let mut listed = self.streams.all();
        if let Some(node) = node {
            listed.retain(|listed| listed.stream.node.as_ref() == Some(&node));
            // Streams of a node that was removed may end later.
            if listed.is_empty() && !self.directory.contains(&node) {
                return Err(no_such_node(&node));
            }
        }
        let idle = Duration::from_secs(request.idle_seconds);
        listed.retain(|listed| listed.idle() >= idle);
        listed.sort_by_key(|listed| Reverse((listed.waits(), listed.idle())));
        let left_out = listed.len().saturating_sub(MOST_STREAMS);
        listed.truncate(MOST_STREAMS);
        Ok(Response::new(proto::ListStreamsResponse {
            streams: listed.iter().map(stream_status).collect(),
            left_out: left_out as u64,
        }))
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
        let ends = self
            .trust
            .certificates()
            .first()
            .map(|(_, own)| own.not_after);
        let own = proto::ProxyStatus {
            host: self.own.host.clone(),
            instance: self.own.instance.to_string(),
            version: self.own.version.clone(),
            tunnels: self.registry.own_tunnels(),
            nodes: self.registry.own_nodes(),
            streams: saturated(self.streams.count()),
            certificate_ends: ends.map_or(0, UnixTime::seconds),
            ..proto::ProxyStatus::default()
        };
        let peers = self.registry.peers();
        let proxies = std::iter::once(own).chain(peers.iter().map(peer_status));
        Ok(Response::new(proto::ListProxiesResponse {
            proxies: proxies.collect(),
        }))
    }

    async fn list_certificates(
        &self,
        _: Request<proto::ListCertificatesRequest>,
    ) -> Result<Response<proto::ListCertificatesResponse>, Status> {
        let status = |(owner, certificate): (&str, Leaf)| proto::CertificateStatus {
            owner: owner.to_owned(),
            not_before: certificate.not_before.seconds(),
            not_after: certificate.not_after.seconds(),
        };
        let certificates = self.trust.certificates().into_iter().map(status).collect();
        Ok(Response::new(proto::ListCertificatesResponse {
            certificates,
        }))
    }
}

/// A checked request for a token.
struct TokenRequest {
    node: NodeName,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    lifetime: Option<Duration>,
    /// The token that the node may use; `None`: a new one.
    token: Option<TokenText>,
}

impl TryFrom<proto::CreateTokenRequest> for TokenRequest {
    type Error = Status;

    fn try_from(request: proto::CreateTokenRequest) -> Result<Self, Status> {
        let address = |text: &String| {
            text.parse().map_err(|_| {
                Status::invalid_argument(format!("{text:?} is not an IP address, such as 10.0.3.7"))
            })
        };
        let port = |port: &u32| {
            let no_port =
                || Status::invalid_argument(format!("{port} is not a port: write 1 to 65535"));
            u16::try_from(*port)
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(no_port)
        };
        let lifetime = match request.lifetime_seconds {
            0 => None,
            seconds if seconds <= MAX_TOKEN_LIFETIME.as_secs() => {
                Some(Duration::from_secs(seconds))
            }
            _ => {
                return Err(Status::invalid_argument(
                    "a token may live for a year at most",
                ));
            }
        };
        let token = match request.token.as_str() {
            "" => None,
            text => {
                let parsed = text.parse().map_err(TokensError::Refused);
                Some(parsed.map_err(|error| refused(&error.into()))?)
            }
        };
        Ok(Self {
            token,
            node: node_name(&request.node)?,
            addresses: request
                .addresses
                .iter()
                .map(address)
                .collect::<Result<_, _>>()?,
            ports: request.ports.iter().map(port).collect::<Result<_, _>>()?,
            lifetime,
        })
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
        done.unwrap_or_else(|_| {
            Err(Status::internal(
                "the proxy gave up on the request: see its log",
            ))
        })
    }

    fn create(&self, request: TokenRequest) -> Result<proto::CreateTokenResponse, Status> {
        let TokenRequest {
            node,
            addresses,
            ports,
            lifetime,
            token,
        } = request;
        if self.directory.is_cluster() {
            return Err(Status::failed_precondition(format!(
                "this proxy is part of a cluster, where agents enrol by themselves with the token \
                 of their pod: label the Node {node} as --node-selector says, and the DaemonSet \
                 culvert-agent brings its agent; a join token would outlive its Node"
            )));
        }
        let ca_pin = self.trust.pin().map_err(|error| refused(&error.into()))?;
        if node.as_str() == self.trust.server_name() {
            let text = format!(
                "{node} is the name in the proxies' own certificates: name the node otherwise"
            );
            return Err(Status::invalid_argument(text));
        }
        if !self.directory.contains(&node) {
            check_new_name(&node, &self.directory.zone())?;
        }
        self.editor
            .put(&node, addresses, ports)
            .map_err(|error| refused(&error.into()))?;
        let token = match token {
            None => self.tokens.create(&node, lifetime),
            Some(token) => self.tokens.add(&token, &node),
        };
        let token = token.map_err(|error| refused(&error.into()))?;
        tracing::info!(%node, token = %token.text.id(), "token made");
        let (proxies, assumed) = self.advertised.proxies();
        Ok(proto::CreateTokenResponse {
            token: token.text.reveal(),
            proxies: self.all_proxies(proxies.iter().map(ToString::to_string).collect()),
            ca_pin,
            server_name: self.trust.server_name().to_owned(),
            expires: token.expires.seconds(),
            notes: assumed
                .into_iter()
                .chain(self.name_note(&node))
                .chain(self.address_notes(&node))
                .collect(),
        })
    }

    /// Says how to reach a node whose name alone may be another host's, or another node's.
    fn name_note(&self, node: &NodeName) -> Option<String> {
        let names = self.directory.names_of(node);
        if names.first().is_some_and(|name| name == node.as_str()) {
            return None;
        }
        let names = names.join(" and ");
        Some(format!(
            "{node} alone is no name of the node, since it may be another host's: clients dial \
             {names}"
        ))
    }

    /// These addresses for agents, then those of the other proxies.
    fn all_proxies(&self, mut all: Vec<String>) -> Vec<String> {
        let peers = self.registry.peers();
        for address in peers.iter().flat_map(|peer| &peer.info.addresses) {
            // Others than agents' configurations take are no addresses.
            let address: Option<HostPort> = address.parse().ok();
            let address = address.map(|address| address.to_string());
            all.extend(address.filter(|address| !all.contains(address)));
        }
        all
    }

    /// The primary's answer for agents that are near this proxy.
    fn with_own_addresses(
        &self,
        mut created: proto::CreateTokenResponse,
    ) -> proto::CreateTokenResponse {
        let given = self.advertised.given.iter().map(ToString::to_string);
        let mut all: Vec<_> = given.collect();
        for address in std::mem::take(&mut created.proxies) {
            all.extend(Some(address).filter(|address| !all.contains(address)));
        }
        created.proxies = self.all_proxies(all);
        created
    }

    /// Removes the node at the primary. If it does not answer, the node is shut out all the same:
    /// all proxies hear of a revocation by this one.
    async fn remove_at(&self, primary: &PrimaryClient, node: NodeName) -> Result<(), Status> {
        let removed = primary.remove_node(&node).await;
        let Err(status) = &removed else {
            return Ok(());
        };
        if status.code() != Code::Unavailable {
            return removed;
        }
        let reason = status.message().to_owned();
        self.blocking(move |control| {
            let _admission = control.trust.admission();
            let revoked = control.trust.revoke(&node).map_err(ControlError::from);
            control.registry.close(&node);
            revoked.map_err(|error| half_removed(&node, &error))?;
            Err(Status::unavailable(format!(
                "the certificates of {node} are revoked and its tunnels closed, here and at all \
                 proxies that this one reaches; but the node and its tokens are still there: \
                 remove it again later: {reason}"
            )))
        })
        .await
    }

    /// The reasons why addresses of the node do not route.
    fn address_notes(&self, node: &NodeName) -> Vec<String> {
        let addresses = self
            .directory
            .node(node)
            .map(|node| node.addresses)
            .unwrap_or_default();
        addresses
            .into_iter()
            .map(|address| address.reason)
            .filter(|reason| !reason.is_empty())
            .collect()
    }

    /// Shuts the node out first, whether or not that can be written to disk.
    fn remove(&self, node: &NodeName) -> Result<(), Status> {
        let _admission = self.trust.admission();
        let absent = !self.directory.contains(node);
        let revoked = self.trust.revoke(node).map_err(ControlError::from);
        self.registry.close(node);
        let disarmed = self.tokens.revoke_of(node).map_err(ControlError::from);
        if absent {
            revoked
                .and(disarmed)
                .map_err(|error| half_removed(node, &error))?;
            return Err(Status::not_found(format!(
                "there is no node {node}; the certificates and tokens that it may have had are \
                 revoked"
            )));
        }
        let removed = self.editor.remove(node).map_err(ControlError::from);
        match revoked
            .and(disarmed)
            .and(removed)
            .map_err(|error| half_removed(node, &error))?
        {
            Removal::Gone => {
                tracing::info!(%node, "node removed");
                Ok(())
            }
            Removal::StillInCluster if self.trust.revokes_everywhere() => {
                Err(Status::failed_precondition(format!(
                    "the certificates of {node} are revoked on all proxies and its tunnels \
                     closed, but the cluster still has it: its agent enrols again with the token \
                     of its pod; delete its Node to keep it out"
                )))
            }
            Removal::StillInCluster => Err(Status::failed_precondition(format!(
                "the certificates of {node} that this proxy has seen are revoked here and its \
                 tunnels closed; with --agent-ca no other proxy hears of it: say the same at each \
                 of them, or delete the Node of {node}"
            ))),
            Removal::StillInFile(file) => Err(Status::failed_precondition(format!(
                "the certificates and tokens of {node} are revoked and its tunnels closed, but {} \
                 still describes it: remove it there too",
                file.display()
            ))),
        }
    }

    /// The node's ports that its agent says it would not dial.
    async fn forbidden_ports(&self, node: &NodeView) -> Vec<u16> {
        let Some(tunnel) = self.registry.preferred(&node.name) else {
            return Vec::new();
        };
        match self.forbidden_by(&tunnel.described, node) {
            // It may allow them by now.
            ports if !ports.is_empty() => self.forbidden_by(&tunnel.described_now().await, node),
            none => none,
        }
    }

    /// Whether the node's agent says that its large packets are lost. It is asked while a tunnel's
    /// end is recent: it may know of that end later than it answered for the next tunnel.
    async fn loses_large_packets(&self, node: &NodeName) -> bool {
        let Some(tunnel) = self.registry.preferred(node) else {
            return false;
        };
        let described = match self.registry.history().of(node).ended {
            Some(event) if UnixTime::now().since(event.at) < RECENT_END => {
                tunnel.described_now().await
            }
            Some(_) | None => tunnel.described.clone(),
        };
        described.last_end() == TunnelEnd::LargePacketsLost
    }

    fn forbidden_by(&self, agent: &DescribeResponse, node: &NodeView) -> Vec<u16> {
        let Some(rules) = ReportedRules::of(agent) else {
            return Vec::new();
        };
        let is_forbidden = |port: &u16| {
            let destination = Destination::Node(node.name.clone(), *port);
            let target = self.directory.resolve(&destination);
            let decided = target.map(|target| rules.decide(&target));
            // An agent on another host: that is what `misplaced` says.
            let is_strange = matches!(decided, Ok(Err(Forbidden::OtherAddress(_))));
            decided.is_ok_and(|decided| decided.is_err()) && !is_strange
        };
        node.ports.iter().copied().filter(is_forbidden).collect()
    }

    async fn status(&self, node: NodeView) -> proto::NodeStatus {
        let misplaced = self.registry.misplaced_of(&node);
        proto::NodeStatus {
            large_packets_lost: self.loses_large_packets(&node.name).await,
            misplaced_fix: misplaced
                .as_ref()
                .map(|misplaced| misplaced.fix(&node.name))
                .unwrap_or_default(),
            misplaced: misplaced
                .map(|misplaced| misplaced.to_string())
                .unwrap_or_default(),
            tunnels: u32::try_from(self.registry.count(&node.name)).unwrap_or(u32::MAX),
            elsewhere: self
                .registry
                .holders(&node.name)
                .iter()
                .map(|peer| peer.info.host.clone())
                .collect(),
            forbidden_ports: self
                .forbidden_ports(&node)
                .await
                .into_iter()
                .map(u32::from)
                .collect(),
            name: node.name.to_string(),
            addresses: node
                .addresses
                .iter()
                .map(|address| address.ip.to_string())
                .chain(node.behind.iter().map(|it| it.destination.to_string()))
                .collect(),
            reasons: node
                .addresses
                .into_iter()
                .map(|address| address.reason)
                .chain(node.behind.into_iter().map(|it| it.reason))
                .collect(),
            vip4: node.vip4.to_string(),
            vip6: node.vip6.to_string(),
            ports: node.ports.iter().copied().map(u32::from).collect(),
        }
    }
}

/// The ways in which an operator's request can fail.
#[derive(Debug, thiserror::Error)]
enum ControlError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Tokens(#[from] TokensError),
}

fn half_removed(node: &NodeName, error: &ControlError) -> Status {
    let status = refused(error);
    let text = format!(
        "{node} is shut out and its tunnels are closed, but only until this proxy restarts: mend \
         this and remove the node again: {}",
        status.message()
    );
    tracing::error!(%node, reason = text, "node not wholly removed");
    Status::new(status.code(), text)
}

fn refused(error: &ControlError) -> Status {
    let text = culvert_daemon::chain(error);
    match error {
        ControlError::Directory(DirectoryError::UnknownNode { .. })
        | ControlError::Tokens(TokensError::Unknown { .. }) => Status::not_found(text),
        ControlError::Directory(DirectoryError::Vip(_) | DirectoryError::Full(_))
        | ControlError::Tokens(TokensError::Full(_)) => Status::resource_exhausted(text),
        ControlError::Directory(
            DirectoryError::Node(_) | DirectoryError::AddressInVipRange { .. },
        ) => Status::invalid_argument(text),
        ControlError::Directory(
            DirectoryError::DescribedInFile { .. }
            | DirectoryError::DescribedInCluster { .. }
            | DirectoryError::NotInCluster { .. },
        )
        | ControlError::Trust(TrustError::NoAuthority) => Status::failed_precondition(text),
        ControlError::Directory(_) | ControlError::Trust(_) | ControlError::Tokens(_) => {
            Status::internal(text)
        }
    }
}

fn no_such_node(node: &NodeName) -> Status {
    Status::not_found(format!("no edge node is named {node}: see `culvert nodes`"))
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
    }
}

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Refuses names of new nodes by which nobody could reach them.
fn check_new_name(node: &NodeName, zone: &Zone) -> Result<(), Status> {
    let full = zone.full_name(node);
    if let Some(meaning) = other_meaning(node) {
        let text = format!("{node} {meaning}: name the node otherwise");
        return Err(Status::invalid_argument(text));
    }
    if full.len() > MAX_NAME {
        let text = format!(
            "{full} has {} letters, and a name in DNS at most {MAX_NAME}: choose a shorter name",
            full.len()
        );
        return Err(Status::invalid_argument(text));
    }
    Ok(())
}

fn peer_status(peer: &PeerView) -> proto::ProxyStatus {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    proto::ProxyStatus {
        host: peer.info.host.clone(),
        instance: peer.info.instance.to_string(),
        version: peer.info.version.clone(),
        tunnels: saturated(peer.tunnels),
        nodes: saturated(peer.nodes),
        links: saturated(peer.links),
        streams: peer.streams,
        round_trip_micros: peer.round_trip.map_or(0, micros),
        draining: peer.draining,
        certificate_ends: peer.info.certificate_ends.map_or(0, UnixTime::seconds),
    }
}

fn token_status(token: TokenView) -> proto::TokenStatus {
    proto::TokenStatus {
        id: token.id.to_string(),
        node: token.node.to_string(),
        expires: token.expires.seconds(),
        state: token.state.to_string(),
    }
}

#[cfg(test)]
mod tests;
