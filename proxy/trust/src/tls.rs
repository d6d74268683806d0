//! The TLS settings of the proxy's ports, and of its dials to other proxies.

use std::path::Path;
use std::sync::Arc;

use rustls::server::VerifierBuilderError;
use rustls::{ClientConfig, ServerConfig};

use super::handshake::{self, ServerIdentity};
use super::identity::Leaf;
use super::source::Material;
use super::{Callers, Trust, TrustConfig, TrustError};

impl Trust {
    /// TLS settings for the agent port. Call this for each connection: the settings change with the
    /// files.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.0.agent_config.load_full()
    }

    /// TLS settings for clients that show a token: the proxy has a certificate, and they have none. It
    /// changes by itself when the proxy's certificate does.
    pub fn token_server_config(&self) -> Arc<ServerConfig> {
        Arc::new(handshake::token_config(&self.0.identity))
    }

    /// TLS settings for the peer port. Call this for each connection.
    pub fn peer_server_config(&self) -> Result<Arc<ServerConfig>, TrustError> {
        let material = self.material();
        handshake::peer_server_config(&self.0.identity, material.authorities())
            .map(Arc::new)
            .map_err(|source| self.verifier_error(source))
    }

    /// TLS settings for dialling another proxy. Call this for each connection.
    pub fn peer_client_config(&self, alpn: &[u8]) -> Result<ClientConfig, TrustError> {
        let material = self.material();
        handshake::peer_client_config(&self.0.identity, material.authorities(), alpn)
            .map_err(|source| self.verifier_error(source))
    }

    /// Checks that other proxies will accept this proxy's certificate.
    pub fn check_proxy_role(&self) -> Result<(), TrustError> {
        let own = self.0.identity.present();
        if let Some(der) = own.cert.first()
            && let Ok(leaf) = Leaf::read(der)
            && leaf.is_proxy
        {
            return Ok(());
        }
        Err(TrustError::NoProxyRole {
            what: self.0.config.source.to_string(),
        })
    }

    fn verifier_error(&self, source: VerifierBuilderError) -> TrustError {
        TrustError::Verifier {
            what: self.0.config.source.to_string(),
            source,
        }
    }

    /// TLS settings for the CONNECT listener: the proxy's certificate, and a required client
    /// certificate of an authority in the file. The file is read again when it changes.
    pub fn callers(&self, client_ca: &Path) -> Result<Callers, TrustError> {
        let callers = Callers::open(client_ca, &self.0.identity, self.material().authorities())?;
        *self.lock_callers() = Some(callers.clone());
        Ok(callers)
    }
}

/// TLS settings for the agent port, with the present authorities.
pub(super) fn agent_config(
    config: &TrustConfig,
    identity: &ServerIdentity,
    material: &Material,
) -> Result<ServerConfig, TrustError> {
    handshake::agent_config(identity, material.authorities()).map_err(|source| {
        TrustError::Verifier {
            what: config.source.to_string(),
            source,
        }
    })
}
