//! Who asks. A client certificate makes a program the node; a bearer token makes it whoever the API
//! server takes it for.
//!
//! The owner of a token is read from the token itself, once the API server has accepted it: it has
//! checked the signature, which covers the owner's name, and it answers 401 to a
//! token that it does not accept, whatever it allows to strangers. A `TokenReview` would say the
//! same, but nodes may not be allowed to ask for one.

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

use crate::cache::Identity;
use crate::crypto::provider;
use crate::upstream::Credential;
use crate::upstream::cloud_identity::CloudIdentity;

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// What a request has shown of its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    Node,
    Token(Token),
    Nothing,
}

/// A bearer token, as far as the hub keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// SHA-256 in hex.
    pub(crate) digest: String,
    /// Whose it is if the API server accepts it.
    pub(crate) claimed: Identity,
}

impl Proof {
    /// A certificate goes before a token, as at the API server.
    pub(crate) fn of_request(node: bool, headers: &HeaderMap) -> Self {
        if node {
            return Self::Node;
        }
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        match token {
            Some((_, token)) if !token.trim().is_empty() => Self::Token(Token::read(token.trim())),
            Some(_) | None => Self::Nothing,
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
        match self {
            Self::Node => "node",
            Self::Token(_) => "token",
            Self::Nothing => "none",
        }
    }
}

impl Token {
    fn read(token: &str) -> Self {
        let digest = HEXLOWER.encode(&Sha256::digest(token.as_bytes()));
        let claimed = service_account(token).unwrap_or_else(|| {
            // Of another kind: it has an identity of its own.
            Identity::User(format!("token {digest}"))
        });
        Self { digest, claimed }
    }
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
}

fn service_account(token: &str) -> Option<Identity> {
    let payload = token.split('.').nth(1)?;
    let claims = BASE64URL_NOPAD.decode(payload.as_bytes()).ok()?;
    let claims: Claims = serde_json::from_slice(&claims).ok()?;
    let (namespace, name) = claims.sub.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
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
        self.local.verify_client_cert(certificate, &[], now).is_ok()
            || self.cloud.has_key_of(certificate)
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

    fn of_header(value: &str) -> Proof {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        Proof::of_request(false, &headers)
    }

    #[test]
    fn the_token_of_a_service_account_names_it() {
        let payload = BASE64URL_NOPAD.encode(br#"{"sub":"system:serviceaccount:shop:cart"}"#);
        let Proof::Token(token) = of_header(&format!("bearer head.{payload}.signature")) else {
            panic!("that is a token");
        };
        assert_eq!(
            token.claimed,
            Identity::ServiceAccount {
                namespace: "shop".to_owned(),
                name: "cart".to_owned()
            }
        );
    }

    #[test]
    fn a_token_of_another_kind_is_nobody_else() {
        let (Proof::Token(one), Proof::Token(other)) =
            (of_header("Bearer a"), of_header("Bearer b"))
        else {
            panic!("these are tokens");
        };
        assert_ne!(one.claimed, other.claimed);
        assert_ne!(one.claimed, Identity::Node);
    }

    #[test]
    fn other_schemes_prove_nothing() {
        assert_eq!(of_header("Basic bm9kZTpub2Rl"), Proof::Nothing);
        assert_eq!(of_header("Bearer "), Proof::Nothing);
    }
}
