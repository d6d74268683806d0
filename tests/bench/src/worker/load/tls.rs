//! TLS of clients that have a certificate.

use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A connection with TLS.
pub(super) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Whom clients trust, and who they are.
#[derive(Clone)]
pub(super) struct Client(Arc<ClientConfig>);

impl Client {
    /// Reads PEM files: the servers' authority, and the client's certificate and key.
    pub(super) fn read(authority: &Path, certificate: &Path, key: &Path) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(read_certificate(authority)?)?;
        let key = PrivateKeyDer::from_pem_file(key);
        let key = key.context("read the key of the clients")?;
        let config = ClientConfig::builder_with_provider(default_provider().into())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![read_certificate(certificate)?], key)?;
        Ok(Self(Arc::new(config)))
    }

    /// A connection with that server, which proves its address. The handshake comes with the first
    /// bytes.
    pub(super) fn connect(&self, server: IpAddr, socket: TcpStream) -> Result<TlsStream> {
        let connection = ClientConnection::new(self.0.clone(), server.into())?;
        Ok(StreamOwned::new(connection, socket))
    }
}

fn read_certificate(path: &Path) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_file(path).with_context(|| format!("read {}", path.display()))
}
