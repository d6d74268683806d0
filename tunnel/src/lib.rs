//! The wire protocol that agent and proxy share.
//!
//! An agent dials a proxy; after mutual TLS the roles turn round: on that connection the agent is the gRPC server of
//! `culvert.tunnel.v1.Agent` and the proxy its client. One HTTP/2 stream carries one relayed connection.
#![forbid(unsafe_code)]

mod agent_end;
mod budget;
mod dial_failure;
mod error;
mod first_message;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grpc;
mod http2;
mod io;
mod node_name;
mod outbox;
mod proxy_end;
mod relay;
mod socket;
mod transferred;
/// The generated messages and services of `proto/`, one module per package.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated; documented in the .proto files"
)]
#[allow(unreachable_pub, clippy::use_self, clippy::wildcard_enum_match_arm, reason = "generated")]
pub mod proto {
    pub mod tunnel {
        tonic::include_proto!("culvert.tunnel.v1");
    }
    pub mod enroll {
        tonic::include_proto!("culvert.enroll.v1");
    }
    pub mod directory {
        tonic::include_proto!("culvert.directory.v1");
    }
    pub mod control {
        tonic::include_proto!("culvert.control.v1");
    }
}

pub use agent_end::{AgentTunnel, AgentTunnelState, Backends, LiveStream, StreamEnd, StreamError};
pub use budget::Budget;
pub use dial_failure::{DialFailure, dial_code, dial_reason};
pub use error::TunnelError;
pub use frame::FrameError;
pub use http2::{
    DEFAULT_KEEPALIVE, DEFAULT_MAX_STREAMS, DEFAULT_STREAM_WINDOW, KEEPALIVE_RANGE, RoundTrip, STREAM_WINDOW_RANGE,
    STREAMS_IN_LIFE,
};
pub use io::{LastRead, ReadAhead, tune};
pub use node_name::{InvalidNodeName, NodeName};
pub use proxy_end::{DIAL_TIMEOUT, Driver, Early, OpenError, ProxyTunnel, Stream, Tunnel};
pub use relay::RelayError;
pub use socket::{Close, Detached, Socket};
pub use transferred::{Meter, Total, Transferred};

/// ALPN of a tunnel: mutual TLS, then HTTP/2 with the roles turned round.
pub const ALPN_TUNNEL: &[u8] = b"culvert-tunnel/1";
/// ALPN of ordinary gRPC on the agent port: `culvert.enroll.v1`.
pub const ALPN_ENROLL: &[u8] = b"h2";
/// What a proxy writes in place of HTTP/2's preface when it refuses an agent: this, the reason, and a line feed.
pub const REFUSED: &str = "REFUSED ";
/// The name in every proxy's certificate. Agents verify it whatever host they dialled, so NAT, load balancers and
/// forwarders in front of a proxy need nothing.
pub const PROXY_SERVER_NAME: &str = "culvert-proxy";
/// Port on which proxies take agents.
pub const AGENT_PORT: u16 = 7400;
