//! Connections to a peer: TCP, then mutual TLS, within one time limit. Errors say what to do.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_proxy_trust::TrustError;
use culvert_tunnel::ReadAhead;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, Error};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Peers;

/// Limit for TCP and TLS together. Proxies are near each other.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Capacity for TLS records that wait to be written: several HTTP/2 frames go out in one write.
const TLS_BUFFER: usize = 256 << 10;

/// A connection to a peer.
pub(super) type Connection = TlsStream<ReadAhead<TcpStream>>;

/// Why a peer cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("connect")]
    Connect(#[source] io::Error),
    #[error("no answer within {} s", CONNECT_TIMEOUT.as_secs())]
    TimedOut,
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(
        "its certificate is of another authority: is it a proxy of another installation? All \
         proxies of one have the same authority (--ca-cert, --ca-key)"
    )]
    Authority,
    #[error("its certificate is of this authority, but not a proxy's: is this a peer port?")]
    NotAProxy,
    #[error(
        "it does not accept the certificate of this proxy: is it a proxy of another installation? \
         All proxies of one have the same authority (--ca-cert, --ca-key)"
    )]
    Refused(#[source] io::Error),
    #[error("its certificate is not valid at this time: check the clocks of both hosts")]
    NotValidNow(#[source] io::Error),
    #[error("TLS")]
    Tls(#[source] io::Error),
}

/// Connects to the peer at `address`, to speak the protocol `alpn`.
pub(super) async fn dial(
    peers: &Peers,
    address: SocketAddr,
    alpn: &[u8],
) -> Result<Connection, DialError> {
    let config = peers.trust.peer_client_config(alpn)?;
    let server_name = ServerName::try_from(peers.trust.server_name().to_owned())
        .map_err(|_| TrustError::ServerNameText(peers.trust.server_name().to_owned()))?;
    let connector = TlsConnector::from(Arc::new(config));
    let connected = connect(address, &connector, server_name);
    match timeout(CONNECT_TIMEOUT, connected).await {
        Ok(connected) => connected,
        Err(_) => Err(DialError::TimedOut),
    }
}

async fn connect(
    address: SocketAddr,
    connector: &TlsConnector,
    server_name: ServerName<'static>,
) -> Result<Connection, DialError> {
    let socket = TcpStream::connect(address).await;
    let socket = socket.map_err(DialError::Connect)?;
    culvert_tunnel::tune(&socket).map_err(DialError::Connect)?;
    let tls = connector.connect(server_name, ReadAhead::new(socket)).await;
    let mut tls = tls.map_err(explained)?;
    tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    Ok(tls)
}

/// The meaning of a TLS error. In TLS 1.3 a refusal of this proxy's certificate comes with the first
/// read after the handshake.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "only these have advice of their own"
)]
pub(super) fn explained(error: io::Error) -> DialError {
    use CertificateError as Bad;
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature)) => {
            DialError::Authority
        }
        Some(Error::InvalidCertificate(Bad::ApplicationVerificationFailure)) => {
            DialError::NotAProxy
        }
        Some(Error::InvalidCertificate(
            Bad::Expired
            | Bad::ExpiredContext { .. }
            | Bad::NotValidYet
            | Bad::NotValidYetContext { .. },
        )) => DialError::NotValidNow(error),
        Some(Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError
            | AlertDescription::CertificateUnknown,
        )) => DialError::Refused(error),
        _ => DialError::Tls(error),
    }
}
