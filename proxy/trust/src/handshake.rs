//! TLS on the proxy's ports: the certificates that are accepted, and the certificate that the proxy
//! shows.

use std::sync::Arc;

use arc_swap::ArcSwap;
use culvert_api::{ALPN_ENROLL, ALPN_PEER, ALPN_TUNNEL};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime as TlsTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, VerifierBuilderError,
    WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, DistinguishedName, Error,
    RootCertStore, ServerConfig, SignatureScheme, WantsVerifier,
};

use crate::authority::ServerCertificate;
use crate::identity::{Leaf, RENEWAL_GRACE};

/// The one crypto provider of the process.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The proxy's certificate, replaced while connections continue. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ServerIdentity(Arc<ArcSwap<CertifiedKey>>);

impl ServerIdentity {
    pub(super) fn new(certificate: ServerCertificate) -> Result<Self, Error> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(certified(
            certificate,
        )?))))
    }

    pub(super) fn replace(&self, certificate: ServerCertificate) -> Result<(), Error> {
        self.0.store(Arc::new(certified(certificate)?));
        Ok(())
    }

    /// The certificate that handshakes use now.
    pub(crate) fn present(&self) -> Arc<CertifiedKey> {
        self.0.load_full()
    }
}

fn certified(certificate: ServerCertificate) -> Result<CertifiedKey, Error> {
    CertifiedKey::from_der(certificate.chain, certificate.key, &provider())
}

impl ResolvesServerCert for ServerIdentity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.present())
    }
}

/// TLS settings for the agent port: TLS 1.3, tunnel or enrolment by ALPN, and an optional client
/// certificate of one of `authorities`.
pub(super) fn agent_config(
    identity: &ServerIdentity,
    authorities: &[CertificateDer<'static>],
) -> Result<ServerConfig, VerifierBuilderError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authorities), provider())
        .allow_unauthenticated()
        .build()?;
    let verifier = ClientVerifier {
        webpki: verifier,
        rule: Rule::ExpiredMayRenew,
    };
    let mut config = config(identity, verifier, &[&rustls::version::TLS13]);
    config.alpn_protocols = vec![ALPN_TUNNEL.to_vec(), ALPN_ENROLL.to_vec()];
    Ok(config)
}

/// TLS settings for CONNECT: a client certificate of one of `authorities` is required, and none
/// that an authority of the agents issued.
pub(super) fn caller_config(
    identity: &ServerIdentity,
    authorities: &[CertificateDer<'static>],
    agents: Vec<Vec<u8>>,
) -> Result<ServerConfig, VerifierBuilderError> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots(authorities), provider()).build()?;
    let verifier = ClientVerifier {
        webpki: verifier,
        rule: Rule::NotThrough(agents),
    };
    let mut config = config(
        identity,
        verifier,
        &[&rustls::version::TLS13, &rustls::version::TLS12],
    );
    // In the order of preference: Go's HTTP client offers both, and then sends its CONNECT in
    // HTTP/1.1 whatever was chosen.
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    Ok(config)
}

/// TLS settings for the peer port: a proxy's certificate of one of `authorities` is required.
pub(super) fn peer_server_config(
    identity: &ServerIdentity,
    authorities: &[CertificateDer<'static>],
) -> Result<ServerConfig, VerifierBuilderError> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots(authorities), provider()).build()?;
    let verifier = ClientVerifier {
        webpki: verifier,
        rule: Rule::OnlyProxies,
    };
    let mut config = config(identity, verifier, &[&rustls::version::TLS13]);
    config.alpn_protocols = vec![ALPN_TUNNEL.to_vec(), ALPN_PEER.to_vec()];
    Ok(config)
}

/// TLS settings for clients without a certificate: they show a token, over HTTP/1.1.
pub(super) fn token_config(identity: &ServerIdentity) -> ServerConfig {
    let config = builder(&[&rustls::version::TLS13, &rustls::version::TLS12]);
    let config = config.with_no_client_auth();
    let mut config = without_resumption(config.with_cert_resolver(Arc::new(identity.clone())));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// TLS settings for dialling a peer, whose certificate must be a proxy's of one of `authorities`.
pub(super) fn peer_client_config(
    identity: &ServerIdentity,
    authorities: &[CertificateDer<'static>],
    alpn: &[u8],
) -> Result<ClientConfig, VerifierBuilderError> {
    let webpki =
        WebPkiServerVerifier::builder_with_provider(roots(authorities), provider()).build()?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("aws-lc-rs has cipher suites for TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PeerVerifier(webpki)))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.present())));
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn config(
    identity: &ServerIdentity,
    verifier: ClientVerifier,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ServerConfig {
    let config = builder(versions).with_client_cert_verifier(Arc::new(verifier));
    without_resumption(config.with_cert_resolver(Arc::new(identity.clone())))
}

fn builder(
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ConfigBuilder<ServerConfig, WantsVerifier> {
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .expect("aws-lc-rs has cipher suites for TLS 1.2 and 1.3")
}

fn without_resumption(mut config: ServerConfig) -> ServerConfig {
    // Tunnels are long-lived: resumption would save nothing and keep state for strangers.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

fn roots(authorities: &[CertificateDer<'static>]) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    Arc::new(roots)
}

/// Verifies client certificates by the standard rules with one exception.
#[derive(Debug)]
struct ClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    /// Certificates that expired recently pass: the identity check tells a tunnel from a renewal,
    /// and the handshake cannot.
    ExpiredMayRenew,
    /// Only proxies' certificates pass.
    OnlyProxies,
    /// No authority with one of these public keys may be between the certificate and its root.
    NotThrough(Vec<Vec<u8>>),
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.webpki.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: TlsTime,
    ) -> Result<ClientCertVerified, Error> {
        // No part of a stranger's certificate is parsed here before webpki accepts it.
        let verified = self
            .webpki
            .verify_client_cert(end_entity, intermediates, now);
        match &self.rule {
            Rule::ExpiredMayRenew => {
                let Some(then) = lately_expired(&verified, now) else {
                    return verified;
                };
                let verified = self
                    .webpki
                    .verify_client_cert(end_entity, intermediates, then)?;
                // It is not an authority on the path to its root.
                if !ends_at(end_entity, then) {
                    return Err(CertificateError::Expired.into());
                }
                Ok(verified)
            }
            Rule::OnlyProxies => {
                let verified = verified?;
                if !is_proxys(end_entity) {
                    return Err(NOT_A_PROXYS);
                }
                Ok(verified)
            }
            Rule::NotThrough(keys) => {
                let verified = verified?;
                if intermediates.iter().any(|der| has_key(der, keys)) {
                    return Err(CertificateError::ApplicationVerificationFailure.into());
                }
                Ok(verified)
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// What is said of a certificate of our authority that is not a proxy's.
const NOT_A_PROXYS: Error =
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);

fn is_proxys(certificate: &CertificateDer<'_>) -> bool {
    Leaf::read(certificate).is_ok_and(|certificate| certificate.is_proxy)
}

/// Verifies a peer's certificate by the standard rules, and that it is a proxy's.
#[derive(Debug)]
struct PeerVerifier(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: TlsTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.0.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        if is_proxys(end_entity) {
            Ok(verified)
        } else {
            Err(NOT_A_PROXYS)
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn has_key(certificate: &CertificateDer<'_>, keys: &[Vec<u8>]) -> bool {
    Leaf::read(certificate).is_ok_and(|certificate| keys.contains(&certificate.public_key))
}

/// The end of a certificate whose only fault so far is that it has expired, within the grace for
/// renewals.
fn lately_expired(verified: &Result<ClientCertVerified, Error>, now: TlsTime) -> Option<TlsTime> {
    let Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) =
        verified
    else {
        return None;
    };
    let lately = now.as_secs().checked_sub(not_after.as_secs())? <= RENEWAL_GRACE.as_secs();
    lately.then_some(*not_after)
}

fn ends_at(certificate: &CertificateDer<'_>, then: TlsTime) -> bool {
    Leaf::read(certificate)
        .is_ok_and(|certificate| certificate.not_after.seconds() == then.as_secs())
}
