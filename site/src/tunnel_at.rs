//! A tunnel of a node, and the proxy at which it ends.

use std::time::Duration;

use serde::Serialize;

use crate::cloud_host::Tunnel;

/// A tunnel of the node.
#[derive(Clone, Debug, Serialize)]
pub struct TunnelAt {
    /// The host of the proxy.
    pub proxy: String,
    /// Its number there.
    pub tunnel: u64,
    /// Where the agent came from.
    pub agent: String,
    /// The version of the agent.
    pub version: String,
    /// Since it was made.
    pub age_seconds: u64,
    /// Connections in it.
    pub streams: u32,
    /// As last measured.
    pub round_trip_ms: Option<f64>,
}

impl TunnelAt {
    /// As the page of this proxy has it.
    pub fn of(proxy: &str, tunnel: &Tunnel) -> Self {
        Self {
            proxy: proxy.to_owned(),
            tunnel: tunnel.tunnel,
            agent: tunnel.agent.clone(),
            version: tunnel.agent_version.clone(),
            age_seconds: Duration::try_from_secs_f64(tunnel.age_seconds)
                .unwrap_or_default()
                .as_secs(),
            streams: tunnel.streams,
            round_trip_ms: tunnel.round_trip_ms(),
        }
    }
}
