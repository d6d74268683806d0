//! TLS 1.3 with the settings of Culvert's tunnels: rustls with aws-lc-rs, a large buffer below it,
//! of which it takes 4 KiB at a time, and the same write limit.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Size of the TLS write buffer, as in the proxy and the agent.
const TLS_BUFFER: usize = 256 << 10;
/// Size of the buffer that one read of the socket fills, as in the proxy and the agent.
pub(super) const READ_BUFFER: usize = 128 << 10;
const NAME: &str = "relay.bench";

pub(super) type ClientStream = tokio_rustls::client::TlsStream<BufReader<TcpStream>>;
pub(super) type ServerStream = tokio_rustls::server::TlsStream<BufReader<TcpStream>>;

/// Makes a certificate, writes it to `path` for the other half, and returns an acceptor that uses
/// it.
pub(super) fn acceptor(path: &Path) -> Result<TlsAcceptor> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    std::fs::write(path, made.cert.der()).with_context(|| format!("write {}", path.display()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// How the near half connects: its TLS settings, and the bytes of the buffer below TLS.
#[derive(Clone)]
pub(super) struct Client {
    config: Arc<ClientConfig>,
    read_buffer: usize,
}

/// Trusts only the certificate at `path`.
pub(super) fn client_config(path: &Path, read_buffer: usize) -> Result<Client> {
    let der = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(der))?;
    let config = ClientConfig::builder_with_provider(default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Client {
        config: Arc::new(config),
        read_buffer,
    })
}

pub(super) async fn connect(client: &Client, socket: TcpStream) -> Result<ClientStream> {
    let name = ServerName::try_from(NAME)?;
    let mut stream = TlsConnector::from(client.config.clone())
        .connect(name, BufReader::with_capacity(client.read_buffer, socket))
        .await?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    Ok(stream)
}

pub(super) async fn accept(
    acceptor: &TlsAcceptor,
    socket: TcpStream,
    read_buffer: usize,
) -> Result<ServerStream> {
    let mut stream = acceptor
        .accept(BufReader::with_capacity(read_buffer, socket))
        .await?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    Ok(stream)
}
