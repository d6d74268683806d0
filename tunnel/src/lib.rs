//! The wire protocol that agent and proxy share.
//!
//! An agent dials a proxy. After mutual TLS the roles are reversed: the agent is the gRPC server of
//! `culvert.tunnel.v1.Agent` and the proxy its client. One HTTP/2 stream carries one relayed
//! connection.

mod agent_end;
mod answer;
mod budget;
mod congestion;
mod dial_failure;
mod error;
mod first_message;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gate;
mod grpc;
mod http2;
mod io;
mod load;
mod proxy_end;
mod relay;
mod role;
mod send_queue;
mod socket;
mod tcp;
mod tls_records;
mod traffic;
mod transferred;
/// The generated messages of `proto/`.
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
    pub mod tunnel {
        tonic::include_proto!("culvert.tunnel.v1");
    }
}

pub use agent_end::{
    AgentTunnel, AgentTunnelState, Backend, Backends, Declined, LiveStream, MovableStreams,
    StreamEnd, StreamError, ThroughTunnel,
};
pub use answer::Direction;
pub use budget::Budget;
pub use congestion::Congestion;
pub use dial_failure::{DialFailure, dial_code, dial_codes, dial_reason};
pub use error::TunnelError;
pub use frame::FrameError;
pub use http2::{
    DEFAULT_KEEPALIVE, DEFAULT_MAX_STREAMS, DEFAULT_STREAM_WINDOW, KEEPALIVE_RANGE, PEER_KEEPALIVE,
    RoundTrip, STREAM_WINDOW_RANGE, STREAMS_IN_LIFE,
};
pub use io::{ReadAhead, SocketState};
pub use proxy_end::{
    DIAL_TIMEOUT, Driver, EarlyClient, FarEnd, MovableStream, MoveError, OpenError, ProxyTunnel,
    Stream, Tunnel,
};
pub use relay::RelayError;
pub use send_queue::TunnelSocket;
pub use socket::{Close, Detached, Socket};
pub use tcp::{has_mptcp, limit_segments, tune, tune_relayed};
pub use transferred::{Meter, Total, Transferred};
