//! Tokens with which agents join: the request, the node that it makes, and what the agent needs.

use std::net::IpAddr;
use std::time::Duration;

use culvert_api::proto::control as proto;
use culvert_api::{HostPort, MAX_NAME, NodeName, Zone, other_meaning};
use culvert_proxy_trust::tokens::{TokenText, TokenView, TokensError};
use tonic::Status;

use super::error::to_status;
use super::{Control, node_name};

/// The longest lifetime of a token. A join command is not kept longer on purpose.
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
        let mut addresses = Vec::new();
        for text in &request.addresses {
            addresses.push(address(text)?);
        }
        let mut ports = Vec::new();
        for number in &request.ports {
            ports.push(port(*number)?);
        }
        let mut token = None;
        if !request.token.is_empty() {
            let parsed = request.token.parse().map_err(TokensError::Refused);
            token = Some(parsed.map_err(to_status)?);
        }
        Ok(Self {
            node: node_name(&request.node)?,
            addresses,
            ports,
            lifetime: lifetime(request.lifetime_seconds)?,
            token,
        })
    }
}

fn address(text: &str) -> Result<IpAddr, Status> {
    text.parse().map_err(|_| {
        Status::invalid_argument(format!("{text:?} is not an IP address, such as 10.0.3.7"))
    })
}

fn port(number: u32) -> Result<u16, Status> {
    match u16::try_from(number) {
        Ok(port @ 1..) => Ok(port),
        Ok(0) | Err(_) => Err(Status::invalid_argument(format!(
            "{number} is not a port: write 1 to 65535"
        ))),
    }
}

/// `None`: the usual lifetime.
fn lifetime(seconds: u64) -> Result<Option<Duration>, Status> {
    if seconds == 0 {
        return Ok(None);
    }
    let lifetime = Duration::from_secs(seconds);
    if lifetime > MAX_TOKEN_LIFETIME {
        let text = "a token may live for a year at most";
        return Err(Status::invalid_argument(text));
    }
    Ok(Some(lifetime))
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
            return Err(no_tokens_in_cluster(&node));
        }
        let ca_pin = self.trust.pin().map_err(to_status)?;
        if node.as_str() == self.trust.server_name() {
            let text = format!(
                "{node} is the name in the proxies' own certificates: name the node otherwise"
            );
            return Err(Status::invalid_argument(text));
        }
        if !self.directory.contains(&node) {
            check_new_name(&node, &self.directory.zone())?;
        }
        let put = self.editor.put(&node, addresses, ports);
        put.map_err(to_status)?;
        let token = match token {
            None => self.tokens.create(&node, lifetime),
            Some(token) => self.tokens.add(&token, &node),
        };
        let token = token.map_err(to_status)?;
        tracing::info!(%node, token = %token.text.id(), "token made");
        let (proxies, assumed) = self.advertised.proxies();
        let mut notes: Vec<String> = assumed.into_iter().collect();
        notes.extend(self.name_note(&node));
        notes.extend(self.address_notes(&node));
        Ok(proto::CreateTokenResponse {
            token: token.text.reveal(),
            proxies: self.all_proxies(proxies.iter().map(ToString::to_string).collect()),
            ca_pin,
            server_name: self.trust.server_name().to_owned(),
            expires: token.expires.seconds(),
            notes,
        })
    }

    /// Says how to reach a node whose name alone may be another host's, or another node's.
    fn name_note(&self, node: &NodeName) -> Option<String> {
        let names = self.directory.names_of(node);
        if let Some(name) = names.first()
            && name == node.as_str()
        {
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
        for peer in self.registry.peers() {
            for address in &peer.info.addresses {
                // What agents' configurations refuse is left out.
                if let Ok(address) = address.parse::<HostPort>() {
                    add_once(&mut all, address.to_string());
                }
            }
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
            add_once(&mut all, address);
        }
        created.proxies = self.all_proxies(all);
        created
    }

    /// The reasons why addresses of the node do not route.
    fn address_notes(&self, node: &NodeName) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(view) = self.directory.node(node) {
            for address in view.addresses {
                reasons.push(address.reason);
            }
        }
        reasons.retain(|reason| !reason.is_empty());
        reasons
    }
}

fn no_tokens_in_cluster(node: &NodeName) -> Status {
    Status::failed_precondition(format!(
        "this proxy is part of a cluster, where agents enrol by themselves with the token of their \
         pod: label the Node {node} as --node-selector says, and the DaemonSet culvert-agent brings \
         its agent; a join token would outlive its Node"
    ))
}

fn add_once(all: &mut Vec<String>, address: String) {
    if !all.contains(&address) {
        all.push(address);
    }
}

/// Refuses names of new nodes by which clients could not reach them.
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
