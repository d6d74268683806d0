//! What Culvert's programs share besides the tunnel: the services of the agent port and of the
//! proxy's sockets, and common types and constants.
#![forbid(unsafe_code)]

pub mod agent_config;
mod allow_list;
mod allowed_range;
pub mod busy;
mod claimed_user;
mod framing;
mod host_port;
pub mod installed;
mod join_command;
pub mod named_ports;
mod node_label;
mod node_name;
mod node_names;
mod non_empty;
pub mod ports;
mod query;
mod routing;
mod unknown_node;
pub mod view;
mod zone;
/// The generated messages and services of `proto/`, one module per package.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated; documented in the .proto files"
)]
#[allow(
    unreachable_pub,
    clippy::use_self,
    clippy::wildcard_enum_match_arm,
    reason = "generated"
)]
pub mod proto {
    pub mod enroll {
        tonic::include_proto!("culvert.enroll.v1");
    }
    pub mod directory {
        tonic::include_proto!("culvert.directory.v1");
    }
    pub mod control {
        tonic::include_proto!("culvert.control.v1");
    }
    pub mod peer {
        tonic::include_proto!("culvert.peer.v1");
    }
}

pub use allow_list::{AllowList, Candidates, Forbidden, INSTEAD_MAX};
pub use allowed_range::{AllowedRange, InvalidAllowedRange};
pub use claimed_user::{CLAIMED_USER_HEADER, ClaimedUser, InvalidClaimedUser};
pub use framing::{FRAMING_HEADER, FRAMING_HTTP2};
pub use host_port::{Host, HostPort, InvalidHostPort};
pub use join_command::{NoProxy, join_command, shell_word};
pub use node_label::kubelet_may_write;
pub use node_name::{InvalidNodeName, MAX_NAME, NodeName};
pub use node_names::{
    NodeKind, NodeNames, NotNamed, OtherMeaning, dial_instead, names_of, node_named, other_meaning,
};
pub use non_empty::non_empty;
pub use query::Query;
pub use routing::Routing;
pub use unknown_node::UnknownNode;
pub use zone::{InvalidZone, Zone};

/// ALPN of a tunnel: mutual TLS, then HTTP/2 with reversed roles.
pub const ALPN_TUNNEL: &[u8] = b"culvert-tunnel/1";
/// ALPN of ordinary gRPC on the agent port: `culvert.enroll.v1`.
pub const ALPN_ENROLL: &[u8] = b"h2";
/// ALPN of ordinary gRPC on the peer port: `culvert.peer.v1`.
pub const ALPN_PEER: &[u8] = b"h2";
/// What a proxy writes instead of HTTP/2's preface when it refuses an agent: this text, the reason,
/// and a line feed.
pub const REFUSED: &str = "REFUSED ";
/// The name in every proxy's certificate. Agents verify it whatever host they dialled, so NAT, load
/// balancers and forwarders in front of a proxy need no configuration.
pub const PROXY_SERVER_NAME: &str = "culvert-proxy";
