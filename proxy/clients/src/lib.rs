//! How clients come in: steered connections, HTTP CONNECT, clients that name their node, HTTP that
//! ends here, and forwarded ports. Each frontend learns where its client wants to go, and leaves the
//! choice of a tunnel to `culvert-proxy-streams`.
#![forbid(unsafe_code)]

pub mod admitted;
pub mod connect;
pub mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub(crate) mod http;
pub mod intercept;
pub mod names;
pub mod original_dst;
pub mod raw;
pub mod refusals;

use std::net::SocketAddr;
use std::time::Duration;

use culvert_daemon::Drain;
use culvert_tunnel::{Close, Socket};
use tokio::net::TcpStream;

/// When the proxy drains: the time for a handshake or a request that is under way.
const PARTING: Duration = Duration::from_secs(1);

/// The socket of a client that is relayed. Closing it resets the connection, until it is told
/// otherwise.
fn resetting(accepted: TcpStream, client: SocketAddr) -> Socket {
    if let Err(error) = culvert_tunnel::tune_relayed(&accepted) {
        tracing::debug!(client.addr = %client, %error, "tune a socket");
    }
    let socket = Socket::from(accepted);
    socket.on_close(Close::Reset);
    socket
}

/// Completes when no client that was accepted may be waited for any longer.
async fn has_drained(drain: &Drain) {
    drain.begun().await;
    tokio::time::sleep(PARTING).await;
}
