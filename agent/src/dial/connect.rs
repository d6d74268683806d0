//! A connection to a proxy: TCP, directly or through a forward proxy, then TLS, all within one time
//! limit.

use std::time::Duration;

use culvert_api::HostPort;
use culvert_tunnel::ReadAhead;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::client::TlsStream;

use crate::dial::outbound::{Outbound, OutboundError};
use crate::dial::tls::{self, TlsError};

/// Limit for the name lookup, TCP, the forward proxy's answer and TLS together.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Size of the TLS write buffer: several HTTP/2 frames go out in one write.
const TLS_BUFFER: usize = 256 << 10;

/// The connection below a tunnel or a call to the proxy.
pub(crate) type Connection = TlsStream<ReadAhead<TcpStream>>;

/// Why a connection to a proxy could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("proxy {}", Route { proxy, via: via.as_ref() })]
    Outbound {
        proxy: HostPort,
        via: Option<HostPort>,
        source: OutboundError,
    },
    #[error("proxy {}", Route { proxy, via: via.as_ref() })]
    Tls {
        proxy: HostPort,
        via: Option<HostPort>,
        source: TlsError,
    },
    #[error(
        "proxy {}: no answer to the TLS handshake in time, though a connection was made: perhaps \
         something on the way loses large packets, then --tunnel-mss 1200 helps",
        Route { proxy, via: via.as_ref() }
    )]
    TimedOut {
        proxy: HostPort,
        via: Option<HostPort>,
    },
}

impl ConnectError {
    /// Whether the proxy refused this agent's certificate.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Tls {
                source: TlsError::Refused(_),
                ..
            }
        )
    }
}

struct Route<'a> {
    proxy: &'a HostPort,
    via: Option<&'a HostPort>,
}

impl std::fmt::Display for Route<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.via {
            Some(via) => write!(f, "{} (through HTTPS_PROXY {via})", self.proxy),
            None => write!(f, "{}", self.proxy),
        }
    }
}

/// Connects to `proxy`. Its certificate must contain `server_name`, whatever host was dialled.
pub(crate) async fn connect(
    outbound: &Outbound,
    proxy: &HostPort,
    config: ClientConfig,
    server_name: &ServerName<'static>,
) -> Result<Connection, ConnectError> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let via = outbound.via(proxy);
    let proxy = proxy.clone();
    let stream = match outbound.dial(&proxy, deadline).await {
        Ok(stream) => ReadAhead::new(stream),
        Err(source) => return Err(ConnectError::Outbound { proxy, via, source }),
    };
    match timeout_at(deadline, tls::handshake(stream, config, server_name)).await {
        Ok(Ok(mut connection)) => {
            connection.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
            Ok(connection)
        }
        Ok(Err(source)) => Err(ConnectError::Tls { proxy, via, source }),
        Err(_) => Err(ConnectError::TimedOut { proxy, via }),
    }
}
