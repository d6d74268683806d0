//! The pin of a join: the digest of the proxies' CA certificate, and a verifier that trusts only
//! that authority.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};

/// SHA-256 of a CA certificate's DER, written as `sha256:` and 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pin([u8; 32]);

/// A text that is not a pin.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a CA pin: copy `sha256:` and its 64 hex digits from `culvert token create`")]
pub(crate) struct InvalidPin(String);

/// The peer's certificates do not include the pinned one.
#[derive(Debug, thiserror::Error)]
#[error(
    "its certificates do not include the CA {pin}: this proxy is not the one that made the token, \
     or something in between \
     terminates TLS"
)]
pub(crate) struct PinMismatch {
    pin: Pin,
}

impl Pin {
    /// The pin of `certificate`.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl FromStr for Pin {
    type Err = InvalidPin;

    fn from_str(text: &str) -> Result<Self, InvalidPin> {
        match parse_digest(text.trim()) {
            Some(digest) => Ok(Self(digest)),
            None => Err(InvalidPin(text.chars().take(80).collect())),
        }
    }
}

fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix("sha256:")?;
    let digest = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok()?;
    digest.try_into().ok()
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Accepts a server whose chain contains the pinned CA and whose leaf is valid under it.
#[derive(Debug)]
pub(crate) struct PinVerifier {
    pin: Pin,
    provider: Arc<CryptoProvider>,
}

impl PinVerifier {
    pub(crate) fn new(pin: Pin, provider: Arc<CryptoProvider>) -> Self {
        Self { pin, provider }
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(pinned) = intermediates
            .iter()
            .find(|certificate| Pin::of(certificate) == self.pin)
        else {
            let mismatch = PinMismatch { pin: self.pin };
            return Err(Error::Other(OtherError(Arc::new(mismatch))));
        };
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|error| Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::CertificateError;

    use super::*;
    use crate::crypto::provider;
    use crate::test_pki::Authority;

    fn verify(
        pin: Pin,
        chain: &[CertificateDer<'static>],
        name: &'static str,
    ) -> Result<(), Error> {
        let name = ServerName::try_from(name).unwrap();
        PinVerifier::new(pin, provider())
            .verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now())
            .map(drop)
    }

    #[test]
    fn a_pin_reads_as_it_is_written() {
        let pin = Pin::of(&Authority::new("a").certificate());
        assert_eq!(pin.to_string().parse::<Pin>().unwrap(), pin);
        for bad in [
            "",
            "sha256:",
            "sha256:00",
            "sha1:00",
            &format!("sha256:{}", "g".repeat(64)),
            &"0".repeat(64),
        ] {
            assert!(bad.parse::<Pin>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_leaf_under_the_pinned_authority_is_accepted_by_its_name_only() {
        let authority = Authority::new("culvert");
        let chain = authority.issue("culvert-proxy").chain_with_ca;
        let pin = Pin::of(&authority.certificate());
        verify(pin, &chain, "culvert-proxy").unwrap();
        let error = verify(pin, &chain, "other-proxy").unwrap_err();
        assert!(
            matches!(
                error,
                Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })
            ),
            "{error:?}"
        );
    }

    #[test]
    fn another_authority_is_a_pin_mismatch() {
        let right = Authority::new("culvert");
        let wrong = Authority::new("culvert");
        let error = verify(
            Pin::of(&right.certificate()),
            &wrong.issue("culvert-proxy").chain_with_ca,
            "culvert-proxy",
        )
        .unwrap_err();
        assert!(matches!(error, Error::Other(_)), "{error:?}");
    }

    #[test]
    fn the_pinned_certificate_beside_a_foreign_leaf_proves_nothing() {
        let right = Authority::new("culvert");
        let wrong = Authority::new("culvert");
        let mut chain = wrong.issue("culvert-proxy").chain_with_ca;
        chain.push(right.certificate());
        let error = verify(Pin::of(&right.certificate()), &chain, "culvert-proxy").unwrap_err();
        assert!(matches!(error, Error::InvalidCertificate(_)), "{error:?}");
    }
}
