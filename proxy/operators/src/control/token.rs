//! Tokens with which agents join: the request, the node that it makes, and what the agent needs.

use std::net::IpAddr;
use std::time::Duration;

use culvert_api::proto::control as proto;
use culvert_api::{HostPort, MAX_NAME, NodeName, Zone, other_meaning};
use culvert_proxy_trust::tokens::{TokenText, TokenView, TokensError};
use tonic::Status;

use super::error::refused;
use super::{Control, node_name};

/// The longest lifetime of a token. Nobody keeps a join command longer on purpose.
const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// A checked request for a token.
pub(super) struct TokenRequest {
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
    pub(super) fn create(
        &self,
        request: TokenRequest,
    ) -> Result<proto::CreateTokenResponse, Status> {
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
    pub(super) fn with_own_addresses(
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

pub(super) fn token_status(token: TokenView) -> proto::TokenStatus {
    proto::TokenStatus {
        id: token.id.to_string(),
        node: token.node.to_string(),
        expires: token.expires.seconds(),
        state: token.state.to_string(),
    }
}
