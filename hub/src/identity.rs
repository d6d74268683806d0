//! Who asks. A client certificate makes a program the node. A bearer token makes it the identity
//! that the API server names in a TokenReview (`server/review.rs`).

use std::sync::Arc;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use http::{HeaderMap, header};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use strum::{IntoStaticStr, VariantNames};

use crate::cache::Identity;
use crate::crypto::provider;
use crate::upstream::Credential;
use crate::upstream::cloud_identity::CloudIdentity;

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// What a request has shown of its sender.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Proof {
    Node,
    Token(Token),
    #[strum(serialize = "none")]
    Nothing,
}

/// A bearer token, as far as the hub keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// SHA-256 in hex.
    pub(crate) digest: String,
    /// The owner, once the API server accepts the token for a request. `None`: that is not known.
    pub(crate) owner: Option<Identity>,
    /// When it says that it expires, in seconds since 1970.
    pub(crate) expires: Option<u64>,
}

impl Proof {
    /// What the headers prove, if the connection has shown no certificate of the node.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Self {
        match bearer_token(headers) {
            Some(token) => Self::Token(Token {
                digest: HEXLOWER.encode(&Sha256::digest(token.as_bytes())),
                owner: None,
                expires: expiry(token),
            }),
            None => Self::Nothing,
        }
    }

    pub(crate) fn credential(&self) -> Credential {
        match self {
            Self::Node => Credential::Node,
            Self::Token(_) | Self::Nothing => Credential::Bearer,
        }
    }

    /// The label of metrics.
    pub(crate) fn kind(&self) -> &'static str {
        self.into()
    }
}

/// The token in `Authorization: Bearer`.
pub(crate) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = value.trim().split_once(' ')?;
    // Up to the next space, as the API server reads it: one token must not have many texts.
    let token = rest.split(' ').next()?;
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return None;
    }
    Some(token)
}

/// Who sends a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) proof: Proof,
    /// What the API server took it for when the request came. `None`: that is not known yet.
    pub(crate) identity: Option<Identity>,
}

#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    sub: String,
    exp: Option<u64>,
}

fn claims(token: &str) -> Option<Claims> {
    let payload = token.split('.').nth(1)?;
    let claims = BASE64URL_NOPAD.decode(payload.as_bytes()).ok()?;
    serde_json::from_slice(&claims).ok()
}

fn expiry(token: &str) -> Option<u64> {
    claims(token)?.exp
}

/// The service account that a token names. Its signature covers the name, and only the API server
/// can check it.
pub(crate) fn claimed(token: &str) -> Option<Identity> {
    service_account(&claims(token)?.sub)
}

/// The service account with this name of a user.
pub(crate) fn service_account(user: &str) -> Option<Identity> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    Some(Identity::ServiceAccount {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Lets every certificate through the handshake, which proves that the client has its key. Whether
/// it makes the client the node is decided afterwards: one that does not is as good as none, as at
/// the API server.
#[derive(Debug)]
pub(crate) struct NodeCertificates {
    local: Arc<dyn ClientCertVerifier>,
    cloud: Arc<CloudIdentity>,
}

impl NodeCertificates {
    pub(crate) fn new(
        local_authority: &CertificateDer<'static>,
        cloud: Arc<CloudIdentity>,
    ) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(local_authority.clone())?;
        let local =
            WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).build()?;
        Ok(Self { local, cloud })
    }

    /// Whether this certificate is the node's: made by the local authority, or for the same key as
    /// kubelet's certificate of the cluster, even if it has expired.
    pub(crate) fn is_node(&self, certificate: &CertificateDer<'_>) -> bool {
        let now = UnixTime::now();
        if self.local.verify_client_cert(certificate, &[], now).is_ok()
            || self.cloud.has_key_of(certificate)
        {
            return true;
        }
        self.cloud.reload_for_client() && self.cloud.has_key_of(certificate)
    }
}

impl ClientCertVerifier for NodeCertificates {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.local
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.local
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.local.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::{Kubeconfig, NodeCredential, PemSource};

    fn of_header(value: &str) -> Proof {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        Proof::of_headers(&headers)
    }

    #[test]
    fn the_token_of_a_service_account_names_it() {
        let payload = BASE64URL_NOPAD.encode(br#"{"sub":"system:serviceaccount:shop:cart"}"#);
        assert_eq!(
            claimed(&format!("head.{payload}.signature")),
            Some(Identity::ServiceAccount {
                namespace: "shop".to_owned(),
                name: "cart".to_owned()
            })
        );
        assert_eq!(claimed("opaque"), None);
    }

    fn self_signed(name: &str) -> (rcgen::Certificate, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        (params.self_signed(&key).unwrap(), key)
    }

    #[test]
    fn a_certificate_that_kubelet_has_just_renewed_is_the_nodes_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubelet.pem");
        let renew = || {
            let (certificate, key) = self_signed("system:node:edge-1");
            std::fs::write(&file, certificate.pem() + &key.serialize_pem()).unwrap();
            certificate.der().clone()
        };
        let source = PemSource::File(file.clone());
        let kubeconfig = Kubeconfig {
            server: http::Uri::from_static("https://10.0.0.1:6443"),
            authority: source.clone(),
            credential: NodeCredential::Certificate {
                certificate: source.clone(),
                key: source,
            },
        };
        let (local, _) = self_signed("local");
        let cloud = Arc::new(CloudIdentity::new(&kubeconfig, local.der().clone()));
        let certificates = NodeCertificates::new(local.der(), cloud.clone()).unwrap();
        let first = renew();
        cloud.reload().unwrap();
        assert!(certificates.is_node(&first));
        let renewed = renew();
        let (strange, _) = self_signed("system:node:edge-1");
        assert!(certificates.is_node(&renewed));
        assert!(!certificates.is_node(strange.der()));
        assert!(
            !certificates.is_node(&first),
            "its key is not the node's now"
        );
    }

    #[test]
    fn a_token_alone_is_nobody() {
        let Proof::Token(token) = of_header("bearer a") else {
            panic!("that is a token");
        };
        assert_eq!(token.owner, None);
    }

    #[test]
    fn other_schemes_prove_nothing() {
        assert_eq!(of_header("Basic bm9kZTpub2Rl"), Proof::Nothing);
        assert_eq!(of_header("Bearer "), Proof::Nothing);
        assert_eq!(of_header("Bearer  token"), Proof::Nothing);
    }

    #[test]
    fn one_token_has_one_text() {
        assert_eq!(of_header("Bearer token 1"), of_header("bearer token"));
    }
}
