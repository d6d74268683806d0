//! Certificates of the fake API server, and of its node.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authority::IssuedPem;
use crate::crypto::provider;

/// The certificate of an API server, which is its own authority.
pub(super) struct Serving {
    certificate: CertificateDer<'static>,
    key: KeyPair,
    /// The authority.
    pub(super) pem: Vec<u8>,
}

impl Serving {
    pub(super) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1", "api.test"].map(str::to_owned)).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self {
            pem: certificate.pem().into_bytes(),
            certificate: certificate.der().clone(),
            key,
        }
    }
}

/// Signs certificates of the node.
pub(super) struct NodeAuthority(CertifiedIssuer<'static, KeyPair>);

impl NodeAuthority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// A new key and a certificate that is valid until this year begins.
    pub(super) fn issue(&self, year: i32) -> IssuedPem {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(year, 1, 1);
        IssuedPem {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    /// An API server with this certificate and these protocols, in the words of ALPN.
    pub(super) fn acceptor(&self, serving: &Serving, protocols: &[Vec<u8>]) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider())
            .allow_unauthenticated()
            .build()
            .unwrap();
        let key = PrivateKeyDer::Pkcs8(serving.key.serialize_der().into());
        let mut tls = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![serving.certificate.clone()], key)
            .unwrap();
        tls.alpn_protocols = protocols.to_vec();
        TlsAcceptor::from(std::sync::Arc::new(tls))
    }
}

/// Whether a certificate has expired when this year begins.
pub(super) fn expires_before(certificate: &CertificateDer<'_>, year: i32) -> bool {
    let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
    parsed.validity().not_after.timestamp() < date_time_ymd(year, 1, 1).unix_timestamp()
}
