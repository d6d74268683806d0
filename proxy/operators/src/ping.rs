//! Measures the round trip to a node's agent, in each of its tunnels that end here.

use std::time::Duration;

use culvert_api::proto::control as proto;
use culvert_api::{NodeName, UnknownNode};
use culvert_daemon::chain;
use culvert_proxy_core::directory::Directory;
use culvert_proxy_streams::registry::{Candidate, Registered, Registry};
use culvert_tunnel::proto::tunnel::DescribeRequest;
use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

/// The time limit for an answer.
const PING_TIME: Duration = Duration::from_secs(5);

/// The reason why no agent is asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PingError {
    #[error(transparent)]
    Unknown(#[from] UnknownNode),
    #[error("{0} has no tunnel: `culvert why {0}` says since when, and why")]
    Offline(NodeName),
    #[error("{node} has tunnels only at {}: ask the proxy there", hosts.join(" and "))]
    Elsewhere { node: NodeName, hosts: Vec<String> },
}

/// Asks the agent once in each tunnel.
pub(crate) async fn ping(
    directory: &Directory,
    registry: &Registry,
    node: NodeName,
) -> Result<proto::PingResponse, PingError> {
    if !directory.contains(&node) {
        return Err(UnknownNode::new(node.as_str()).into());
    }
    let mut elsewhere = Vec::new();
    for peer in registry.holders(&node) {
        elsewhere.push(peer.info.host.clone());
    }
    let mut own = Vec::new();
    for candidate in registry.candidates(&node) {
        if let Candidate::Agent(registered) = candidate {
            own.push(registered);
        }
    }
    if own.is_empty() {
        return Err(if elsewhere.is_empty() {
            PingError::Offline(node)
        } else {
            let hosts = elsewhere;
            PingError::Elsewhere { node, hosts }
        });
    }
    let pings = own.iter().map(|registered| ping_through(registered));
    Ok(proto::PingResponse {
        tunnels: join_all(pings).await,
        elsewhere,
    })
}

async fn ping_through(registered: &Registered) -> proto::TunnelPing {
    let asked = Instant::now();
    let request = DescribeRequest::default();
    let answer = timeout(PING_TIME, registered.tunnel.describe(&request)).await;
    let time = asked.elapsed();
    let problem = match answer {
        Ok(Ok(_)) => String::new(),
        Ok(Err(error)) => chain(&error),
        Err(_) => format!("no answer within {} s", PING_TIME.as_secs()),
    };
    proto::TunnelPing {
        tunnel: registered.generation,
        agent: registered.agent.to_string(),
        micros: u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
        problem,
    }
}
