//! An agent's end of a tunnel on a plain-text listener, so that any stock gRPC client can call
//! `Describe` and `Open`.
//!
//! Usage: `plaintext_agent LISTEN_ADDRESS`; prints the address it listens on, and dials any backend
//! on loopback.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use culvert_tunnel::proto::tunnel::{DescribeResponse, DialCode, Open};
use culvert_tunnel::{
    AgentTunnel, AgentTunnelState, Backend, Backends, Budget, DEFAULT_MAX_STREAMS,
    DEFAULT_STREAM_WINDOW, DialFailure, MovableStreams, ReadAhead, STREAMS_IN_LIFE, StreamEnd,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

struct Loopback;

impl Backends for Loopback {
    async fn dial(&self, open: &Open) -> Result<Backend, DialFailure> {
        let failure = |code, message| DialFailure { code, message };
        let port = u16::try_from(open.port)
            .map_err(|_| failure(DialCode::Invalid, format!("no port: {}", open.port)))?;
        let backend = (IpAddr::from(Ipv4Addr::LOCALHOST), port);
        TcpStream::connect(backend)
            .await
            .map(Backend::from)
            .map_err(|error| failure(DialCode::Refused, format!("dial {backend:?}: {error}")))
    }

    fn stream_ended(&self, open: &Open, end: &StreamEnd) {
        eprintln!("{}: {:?}", open.original_dst, end.result);
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let tunnel = AgentTunnel {
        stream_window: DEFAULT_STREAM_WINDOW,
        max_streams: DEFAULT_MAX_STREAMS,
        streams_in_life: STREAMS_IN_LIFE,
        budget: Budget::new(1 << 20),
        movable: MovableStreams::default(),
        describe: DescribeResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: "plaintext".to_owned(),
            ..Default::default()
        },
    };
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        let tunnel = tunnel.clone();
        connections.spawn(async move {
            let io = ReadAhead::new(socket);
            let socket_state = io.socket_state();
            tunnel
                .serve(
                    io,
                    socket_state,
                    AgentTunnelState::default(),
                    Arc::new(Loopback),
                    std::future::pending(),
                )
                .await
        });
        while connections.try_join_next().is_some() {}
    }
}
