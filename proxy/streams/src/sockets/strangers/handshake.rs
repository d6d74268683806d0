//! TLS with a stranger: its ClientHello has to come at once, and each step needs a permit.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::server::Acceptor;
use rustls::{InvalidMessage, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::HandshakePermit;

/// From the accepted connection to the whole ClientHello, which a client sends at once: from far
/// away it may be lost twice.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// From there to the end of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The description of TLS's alert `internal_error`.
pub(super) const INTERNAL_ERROR: u8 = 80;

/// TLS's fatal alert of this description, for a client that cannot be served now: in plain text, as
/// before any handshake.
pub(super) const fn busy(description: u8) -> [u8; 7] {
    [21, 3, 3, 0, 2, 2, description]
}

/// Why there was no handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The client did not begin in time.
    #[error("no TLS ClientHello within {} s", HELLO_TIMEOUT.as_secs())]
    Silent,
    /// The handshake took too long.
    #[error("TLS handshake timed out")]
    TimedOut,
    /// The client sent something else.
    #[error(
        "what came is not TLS: a client without it, or a balancer's PROXY header, which only the \
         agent port reads, from addresses in --proxy-protocol"
    )]
    NotTls,
    /// TLS failed.
    #[error("TLS handshake failed")]
    Failed(#[source] io::Error),
    /// Too many strangers were there already.
    #[error("too many connections are in their TLS handshake")]
    Busy,
}

/// The server's side of a handshake.
pub async fn handshake<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    config: Arc<ServerConfig>,
    permit: &mut HandshakePermit,
) -> Result<TlsStream<T>, HandshakeError> {
    let mut hello = pin!(LazyConfigAcceptor::new(Acceptor::default(), io));
    let begun = timeout(HELLO_TIMEOUT, hello.as_mut())
        .await
        .map_err(|_| HandshakeError::Silent)?;
    let mut begun = begun.map_err(no_hello)?;
    if permit.shake_hands().await.is_err() {
        // The send buffer of a new connection takes these seven bytes. The client may have gone.
        let alert = busy(permit.busy_alert());
        timeout(HELLO_TIMEOUT, begun.io.write_all(&alert))
            .await
            .ok();
        return Err(HandshakeError::Busy);
    }
    let accepted = timeout(HANDSHAKE_TIMEOUT, begun.into_stream(config)).await;
    accepted
        .map_err(|_| HandshakeError::TimedOut)?
        .map_err(HandshakeError::Failed)
}

fn no_hello(error: io::Error) -> HandshakeError {
    let reason = error
        .get_ref()
        .and_then(|reason| reason.downcast_ref::<rustls::Error>());
    let no_record = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
    if reason == Some(&no_record) {
        HandshakeError::NotTls
    } else {
        HandshakeError::Failed(error)
    }
}

/// Tells a TLS client that it cannot be served now.
pub fn say_busy(client: &TcpStream) {
    // As above.
    client.try_write(&busy(INTERNAL_ERROR)).ok();
}
