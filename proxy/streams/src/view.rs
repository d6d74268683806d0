//! What operators see of a connection.

use culvert_api::NodeName;
use serde::Serialize;

/// An open connection as `/debug/streams` shows it.
#[derive(Debug, Serialize)]
pub struct StreamView {
    /// Its number.
    pub stream: u64,
    /// How it came to the proxy.
    pub frontend: &'static str,
    /// The client.
    pub client: String,
    /// Who the client says it is; nothing has verified it.
    #[serde(rename = "user_claimed", skip_serializing_if = "Option::is_none")]
    pub claimed_user: Option<String>,
    /// What the client dialled.
    pub original_dst: String,
    /// The node.
    pub node: Option<NodeName>,
    /// `tunnel`, or `direct` for a connection that the proxy dialled itself. Logs and pages call it
    /// `mechanism`.
    #[serde(rename = "mechanism")]
    pub path: &'static str,
    /// The tunnel here that it is in.
    pub tunnel: Option<u64>,
    /// The host of the other proxy by way of which it goes.
    pub peer: Option<String>,
    /// How often it has moved to another tunnel.
    pub moves: u32,
    /// Why it moved last: `shared_tunnel`, or `by_peer` if it went by way of another proxy before.
    pub move_reason: Option<&'static str>,
    /// Since it was accepted.
    pub age_seconds: f64,
    /// Payload so far.
    pub bytes_to_backend: u64,
    /// Payload so far.
    pub bytes_to_client: u64,
    /// Where the last bytes went: `to_backend`, `to_client`, or nothing while there are none.
    pub last_bytes: Option<&'static str>,
    /// Whether the backend has bytes of the client that it has not answered.
    #[serde(skip)]
    pub answer_is_due: bool,
}
