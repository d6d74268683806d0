//! How the node proves to the API server who it is, by certificate or token, and the authority of the API
//! server's own. Kubelet renews the certificate in its file, so the file is followed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use tokio::sync::watch;
use tokio::time::Instant;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use super::node_token::{NodeToken, TokenError};
use crate::crypto::provider;
use crate::kubeconfig::{Kubeconfig, KubeconfigError, NodeCredential, PemSource};

const AUTHORITY: &str = "authority of the API server";
/// Between two readings of the files because of a client.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// Why the credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialError {
    #[error("read the {what}")]
    Read {
        what: &'static str,
        source: std::io::Error,
    },
    #[error("the {what} is not PEM")]
    Pem {
        what: &'static str,
        source: rustls::pki_types::pem::Error,
    },
    #[error("the {what} names no certificate")]
    Empty { what: &'static str },
    #[error("use the {what}")]
    Use {
        what: &'static str,
        source: rustls::Error,
    },
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("the certificate of the node was made by the local authority, not by the cluster")]
    Local,
}

/// The node's identity at the API server. It may change while the program runs.
#[derive(Debug)]
pub(crate) struct CloudIdentity {
    /// Certificate and key. `None`: it has a token.
    pem: Option<(PemSource, PemSource)>,
    token: Option<NodeToken>,
    /// The certificate of the local authority: kubelet may put the certificate that it has from
    /// there into the file, and no API server would accept it.
    local_authority: CertificateDer<'static>,
    current: Mutex<Option<Arc<CertifiedKey>>>,
    changes: watch::Sender<()>,
    /// When a client made the hub read the files again.
    asked: Mutex<Option<Instant>>,
}

impl CloudIdentity {
    pub(crate) fn new(cloud: &Kubeconfig, local_authority: CertificateDer<'static>) -> Self {
        let pem = match &cloud.credential {
            NodeCredential::Certificate { certificate, key } => {
                Some((certificate.clone(), key.clone()))
            }
            NodeCredential::TokenFile(_) | NodeCredential::Token(_) | NodeCredential::Exec(_) => {
                None
            }
        };
        Self {
            pem,
            token: NodeToken::of(&cloud.credential),
            local_authority,
            current: Mutex::new(None),
            changes: watch::Sender::new(()),
            asked: Mutex::new(None),
        }
    }

    /// Reads the files again. `true`: there is another certificate now.
    pub(crate) fn reload(&self) -> Result<bool, CredentialError> {
        const WHAT: &str = "certificate of the node";
        const KEY: &str = "key of the node";
        let Some((certificate, key)) = &self.pem else {
            return Ok(false);
        };
        let chain = certificates(&read(certificate, WHAT)?, WHAT)?;
        if self.is_local(&chain[0]) {
            return Err(CredentialError::Local);
        }
        if let Some(current) = self.current()
            && current.cert.first() == chain.first()
        {
            return Ok(false);
        }
        let key = PrivateKeyDer::from_pem_slice(&read(key, KEY)?)
            .map_err(|source| CredentialError::Pem { what: KEY, source })?;
        let made = CertifiedKey::from_der(chain, key, &provider())
            .map_err(|source| CredentialError::Use { what: WHAT, source })?;
        *self.current.lock() = Some(Arc::new(made));
        self.changes.send_replace(());
        Ok(true)
    }

    /// The header by which the node proves who it is, where it has a token.
    pub(crate) async fn authorization(&self) -> Result<Option<HeaderValue>, TokenError> {
        match &self.token {
            Some(token) => token.authorization().await.map(Some),
            None => Ok(None),
        }
    }

    /// The API server refuses the node.
    pub(crate) async fn was_refused(&self) {
        if let Some(token) = &self.token {
            token.forget().await;
        }
    }

    /// What is wrong when the API server answers the node with 401, and what helps.
    pub(crate) fn refusal(&self) -> String {
        let Some((certificate, _)) = &self.pem else {
            return "the API server refuses the node's token: its kubeconfig needs another one"
                .to_owned();
        };
        let end = match self.valid_until() {
            Some(end) => end.to_string(),
            None => "an unknown date".to_owned(),
        };
        let remedy = match certificate {
            PemSource::File(path) => format!("put a new one into {}", path.display()),
            PemSource::Inline(_) => {
                "put a new one into the node's kubeconfig and restart the hub".to_owned()
            }
        };
        format!(
            "the API server refuses the node's certificate, which is valid until {end}: {remedy}"
        )
    }

    /// Changes when there is another certificate.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Reads the files again because a client shows an unknown certificate: kubelet has just renewed
    /// its own, and comes with it before the file is read the next time. At most once a second,
    /// whatever clients show. `true`: there is another certificate now.
    pub(crate) fn reload_for_client(&self) -> bool {
        let now = Instant::now();
        let mut asked = self.asked.lock();
        if asked.is_some_and(|last| now.duration_since(last) < RELOAD_PAUSE) {
            return false;
        }
        *asked = Some(now);
        drop(asked);
        // What is wrong with the files is reported when they are read by themselves.
        self.reload().unwrap_or(false)
    }

    /// Whether a client has shown the node's own certificate, or another one for the same key.
    pub(crate) fn has_key_of(&self, certificate: &CertificateDer<'_>) -> bool {
        let Some(current) = self.current() else {
            return false;
        };
        let own = current.cert.first().and_then(public_key);
        own.is_some() && own == public_key(certificate)
    }

    /// The node that the certificate names. `None`: there is no certificate, or not one of a node.
    pub(crate) fn node_name(&self) -> Option<String> {
        let current = self.current()?;
        let (_, leaf) = X509Certificate::from_der(current.cert.first()?).ok()?;
        let name = leaf.subject().iter_common_name().next()?;
        let node = name.as_str().ok()?.strip_prefix("system:node:")?;
        Some(node.to_owned())
    }

    /// When the certificate expires.
    pub(crate) fn valid_until(&self) -> Option<ASN1Time> {
        let current = self.current()?;
        let (_, leaf) = X509Certificate::from_der(current.cert.first()?).ok()?;
        Some(leaf.validity().not_after)
    }

    fn is_local(&self, certificate: &CertificateDer<'_>) -> bool {
        let issuer = X509Certificate::from_der(certificate);
        let local = X509Certificate::from_der(&self.local_authority);
        match (issuer, local) {
            (Ok((_, leaf)), Ok((_, local))) => leaf.issuer() == local.subject(),
            (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
        }
    }

    fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.current.lock().clone()
    }
}

impl ResolvesClientCert for CloudIdentity {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current()
    }

    fn has_certs(&self) -> bool {
        self.current().is_some()
    }
}

/// The key in a certificate, as bytes of its SubjectPublicKeyInfo.
fn public_key(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.public_key().raw.to_vec())
}

fn certificates(
    pem: &[u8],
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|source| CredentialError::Pem { what, source })?;
    if all.is_empty() {
        return Err(CredentialError::Empty { what });
    }
    Ok(all)
}

/// Where the authority of the API server is read from. Clusters replace it: both the old and the new
/// one are in the file for a while.
pub(crate) struct AuthoritySource {
    pem: PemSource,
    /// What is in a kubeconfig itself is read from there again.
    kubeconfig: Option<PathBuf>,
}

impl AuthoritySource {
    pub(crate) fn new(pem: PemSource, kubeconfig: Option<PathBuf>) -> Self {
        Self { pem, kubeconfig }
    }

    /// The certificates as they are now, in PEM.
    pub(crate) fn read(&self) -> Result<Vec<u8>, CredentialError> {
        let read = match (&self.pem, &self.kubeconfig) {
            (PemSource::Inline(_), Some(path)) => Kubeconfig::read(path)?.authority.read(),
            (pem @ (PemSource::Inline(_) | PemSource::File(_)), _) => pem.read(),
        };
        read.map_err(|source| CredentialError::Read {
            what: AUTHORITY,
            source,
        })
    }
}

/// TLS to the API server: as the node, and without a certificate (a bearer token then says who
/// asks).
pub(crate) struct CloudTls {
    /// What it trusts, in PEM.
    pub(crate) authority: Vec<u8>,
    pub(crate) node: Arc<ClientConfig>,
    pub(crate) bearer: Arc<ClientConfig>,
}

fn read(source: &PemSource, what: &'static str) -> Result<Vec<u8>, CredentialError> {
    source
        .read()
        .map_err(|source| CredentialError::Read { what, source })
}

impl CloudTls {
    pub(crate) fn new(
        authority: Vec<u8>,
        identity: &Arc<CloudIdentity>,
    ) -> Result<Self, CredentialError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&authority, AUTHORITY)? {
            roots
                .add(certificate)
                .map_err(|source| CredentialError::Use {
                    what: AUTHORITY,
                    source,
                })?;
        }
        Self::trusting(roots, authority, identity)
    }

    /// No API server is trusted.
    pub(crate) fn trusting_none(identity: &Arc<CloudIdentity>) -> Result<Self, CredentialError> {
        Self::trusting(RootCertStore::empty(), Vec::new(), identity)
    }

    fn trusting(
        roots: RootCertStore,
        authority: Vec<u8>,
        identity: &Arc<CloudIdentity>,
    ) -> Result<Self, CredentialError> {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|source| CredentialError::Use {
                what: AUTHORITY,
                source,
            })?;
        let builder = builder.with_root_certificates(roots);
        let mut node = builder.clone().with_client_cert_resolver(identity.clone());
        // A session of an earlier certificate would be resumed with that certificate's name.
        node.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            authority,
            node: node.into(),
            bearer: builder.with_no_client_auth().into(),
        })
    }
}
