//! A connection to an edge node's VIP that the proxy of this host answers itself: how are
//! connections steered here, now?

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use culvert_api::ports::CHECK_PORT;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(5);
/// The label of a way.
const MAX_ANSWER: usize = 32;

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("connect to it")]
    Connect(#[source] std::io::Error),
    #[error("no answer in {} s", TIMEOUT.as_secs())]
    Silent,
    #[error("it was ended without an answer")]
    Read(#[source] std::io::Error),
    #[error("something answers that is not the proxy of this host: {0:?}")]
    Stranger(String),
}

/// The frontend that took the connection: `ebpf` or `nftables`.
pub(super) async fn dial(vip: IpAddr) -> Result<String, DialError> {
    let ask = async {
        let mut stream = TcpStream::connect(SocketAddr::new(vip, CHECK_PORT))
            .await
            .map_err(DialError::Connect)?;
        let mut answer = Vec::new();
        let mut limited = (&mut stream).take(MAX_ANSWER as u64);
        limited
            .read_to_end(&mut answer)
            .await
            .map_err(DialError::Read)?;
        match String::from_utf8_lossy(&answer).into_owned() {
            label if label == "ebpf" || label == "nftables" => Ok(label),
            other => Err(DialError::Stranger(other)),
        }
    };
    tokio::time::timeout(TIMEOUT, ask)
        .await
        .unwrap_or(Err(DialError::Silent))
}
