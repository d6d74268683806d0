//! The certificate authority: issues the proxy's own certificate and those of agents.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_api::NodeName;
use culvert_daemon::write_atomic;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::state::{StateDir, read_bounded};
use data_encoding::HEXLOWER;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKey,
    PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};
use sha2::{Digest, Sha256};

use crate::identity::{Binding, Leaf, PROXY_ROLE, Serial};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Long, because replacing the authority that edge nodes have pinned means a visit to each.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
/// The proxy's own certificate lives in memory only. It is renewed long before its end.
const SERVER_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// A request with an RSA key of 8192 bits takes 2 KiB.
const MAX_CSR_BYTES: usize = 8 << 10;
const CERT_FILE: &str = "ca.crt";
const KEY_FILE: &str = "ca.key";

/// The reason why certificates cannot be issued.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("write {}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The certificate or key cannot be used.
    #[error("{}: {problem}", path.display())]
    Unusable {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// One of certificate and key is missing.
    #[error(
        "{} is there but {} is missing: restore it, or move the former away to make a new \
         authority, with which all agents have to join again",
        present.display(),
        missing.display()
    )]
    Half {
        /// The file that is there.
        present: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },
    /// It cannot sign.
    #[error("sign a certificate for {subject}")]
    Sign {
        /// Whose certificate it is.
        subject: String,
        /// The cause.
        source: rcgen::Error,
    },
}

/// The reason why a certificate signing request is refused.
#[derive(Debug, thiserror::Error)]
pub enum CsrError {
    /// The signing request has so many bytes.
    #[error("the certificate signing request has {0} bytes, at most {MAX_CSR_BYTES} are read")]
    TooLarge(usize),
    /// It is no signing request.
    #[error(
        "the certificate signing request is not PKCS#10 in DER with a valid signature of its own: \
         {0}"
    )]
    Malformed(rcgen::Error),
    /// Its key is of another kind than agents' keys.
    #[error(
        "the certificate signing request has a key of a kind that is not taken: use ECDSA P-256 \
         or P-384, or Ed25519"
    )]
    KeyKind,
}

/// A public key whose owner proved possession of the private key.
#[derive(Clone, Debug)]
pub struct ProvenKey(PublicKey);

/// A certificate that was issued for a node.
#[derive(Debug)]
pub(crate) struct NodeCertificate {
    pub(crate) pem: String,
    pub(crate) serial: Serial,
    pub(crate) expires: UnixTime,
}

/// The proxy's certificate, its chain and key.
#[derive(Debug)]
pub(crate) struct ServerCertificate {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// A PEM text and its origin.
#[derive(Clone, Copy, Debug)]
pub struct Pem<'a> {
    /// Where it comes from, for messages.
    pub origin: &'a Path,
    /// PEM.
    pub text: &'a str,
}

/// The certificate and key of a new authority, in PEM.
pub struct NewAuthority {
    /// PEM.
    pub certificate: String,
    /// The key.
    pub key: String,
}

/// Signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The first authority signs. The others are trusted too, during the change from one authority
    /// to the next.
    certificates: Vec<CertificateDer<'static>>,
    pem: String,
}

impl ProvenKey {
    /// Reads the public key from a PKCS#10 request in DER, and nothing else.
    pub fn from_csr(der: &[u8]) -> Result<Self, CsrError> {
        if der.len() > MAX_CSR_BYTES {
            return Err(CsrError::TooLarge(der.len()));
        }
        let csr =
            CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(der))
                .map_err(CsrError::Malformed)?;
        let taken = [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ED25519,
        ];
        if taken
            .iter()
            .any(|kind| **kind == *csr.public_key.algorithm())
        {
            Ok(Self(csr.public_key))
        } else {
            Err(CsrError::KeyKind)
        }
    }

    /// SHA-256 of the key, to recognise it.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.der_bytes()).into()
    }
}

impl Authority {
    /// The authority in the state directory, created on the first start.
    pub(crate) fn embedded(state: &StateDir) -> Result<Self, AuthorityError> {
        let cert = state.join(CERT_FILE);
        let key = state.join(KEY_FILE);
        match (cert.exists(), key.exists()) {
            (true, true) => Self::from_files(&cert, &key),
            (true, false) => Err(AuthorityError::Half {
                present: cert,
                missing: key,
            }),
            (false, true) => Self::certify(&cert, &key),
            (false, false) => {
                let made =
                    KeyPair::generate().map_err(|source| sign_error("the authority", source))?;
                write(&key, made.serialize_pem().as_bytes(), 0o600)?;
                Self::certify(&cert, &key)
            }
        }
    }

    /// Issues an authority's own certificate for the key in a file.
    fn certify(cert: &Path, key: &Path) -> Result<Self, AuthorityError> {
        let pair = read_key(Pem {
            origin: key,
            text: &read(key)?,
        })?;
        write(cert, self_signed(&pair)?.as_bytes(), 0o644)?;
        tracing::info!(file = %cert.display(), "certificate authority made");
        Self::from_files(cert, key)
    }

    /// Creates an authority that is in no file yet.
    pub fn generate() -> Result<NewAuthority, AuthorityError> {
        let pair = KeyPair::generate().map_err(|source| sign_error("the authority", source))?;
        Ok(NewAuthority {
            certificate: self_signed(&pair)?,
            key: pair.serialize_pem(),
        })
    }

    /// Reads an authority from PEM files: its certificate, optionally followed by others to trust,
    /// and its key.
    pub fn from_files(cert: &Path, key: &Path) -> Result<Self, AuthorityError> {
        Self::from_pem(
            Pem {
                origin: cert,
                text: &read(cert)?,
            },
            Pem {
                origin: key,
                text: &read(key)?,
            },
        )
    }

    /// Reads an authority from PEM texts. Both may be the same text.
    pub fn from_pem(cert: Pem<'_>, key: Pem<'_>) -> Result<Self, AuthorityError> {
        let certificates = certificates_in(cert)?;
        let pair = read_key(key)?;
        let own =
            Leaf::read(&certificates[0]).map_err(|error| unusable(cert, error.to_string()))?;
        if !own.may_sign {
            let problem = "its first certificate is not an authority's: give the certificate that has \
                CA:TRUE first";
            return Err(unusable(cert, problem.to_owned()));
        }
        if own.public_key != pair.public_key_raw() {
            return Err(unusable(
                key,
                format!(
                    "is not the key of the first certificate in {}",
                    cert.origin.display()
                ),
            ));
        }
        let issuer = Issuer::from_ca_cert_der(&certificates[0], pair)
            .map_err(|error| unusable(cert, error.to_string()))?;
        Ok(Self {
            issuer,
            certificates,
            pem: certificates_only(cert.text),
        })
    }

    /// The pin that agents check when they join: `sha256:` and the digest of the authority's
    /// certificate.
    pub(crate) fn pin(&self) -> String {
        let digest = Sha256::digest(&self.certificates[0]);
        format!("sha256:{}", HEXLOWER.encode(&digest))
    }

    /// The certificates that agents trust for proxies, and the proxy for agents.
    pub(crate) fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// The same in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate for the proxy under these names: DNS names or IP addresses.
    pub(crate) fn server_certificate(
        &self,
        names: &[String],
        now: UnixTime,
    ) -> Result<ServerCertificate, AuthorityError> {
        let subject = match names.first() {
            Some(name) => name,
            None => "culvert-proxy",
        };
        self.sign_server(subject, names, now)
            .map_err(|source| sign_error(subject, source))
    }

    fn sign_server(
        &self,
        subject: &str,
        names: &[String],
        now: UnixTime,
    ) -> Result<ServerCertificate, rcgen::Error> {
        let pair = KeyPair::generate()?;
        let mut params = params(subject, now, DAY, SERVER_LIFETIME);
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        let role = PROXY_ROLE.try_into()?;
        params.subject_alt_names.push(SanType::URI(role));
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let made = params.signed_by(&pair, &self.issuer)?;
        Ok(ServerCertificate {
            chain: vec![made.der().clone(), self.certificates[0].clone()],
            key: PrivatePkcs8KeyDer::from(pair.serialize_der()).into(),
        })
    }

    /// Issues a certificate that identifies the key's owner as the node.
    pub(crate) fn node_certificate(
        &self,
        identity: (&NodeName, &Binding),
        key: &ProvenKey,
        lifetime: Duration,
        now: UnixTime,
    ) -> Result<NodeCertificate, AuthorityError> {
        self.sign_node(identity, key, lifetime, now)
            .map_err(|source| sign_error(identity.0.as_str(), source))
    }

    fn sign_node(
        &self,
        (node, binding): (&NodeName, &Binding),
        key: &ProvenKey,
        lifetime: Duration,
        now: UnixTime,
    ) -> Result<NodeCertificate, rcgen::Error> {
        let serial = Serial::random();
        let mut params = params(node.as_str(), now, lifetime.min(DAY), lifetime);
        let names = CertificateParams::new(vec![node.as_str().to_owned()])?;
        params.subject_alt_names = names.subject_alt_names;
        let uri = binding.to_string().try_into()?;
        params.subject_alt_names.push(SanType::URI(uri));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
        let made = params.signed_by(&key.0, &self.issuer)?;
        Ok(NodeCertificate {
            pem: made.pem(),
            serial,
            expires: now + lifetime,
        })
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("pin", &self.pin())
            .finish_non_exhaustive()
    }
}

/// The certificates in a PEM file: at least one.
pub(crate) fn read_certificates(
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, AuthorityError> {
    certificates_in(Pem {
        origin: path,
        text: &read(path)?,
    })
}

/// The private key in a PEM file.
pub(crate) fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, AuthorityError> {
    private_key_in(Pem {
        origin: path,
        text: &read(path)?,
    })
}

/// The certificates in a PEM text: at least one.
pub(crate) fn certificates_in(
    pem: Pem<'_>,
) -> Result<Vec<CertificateDer<'static>>, AuthorityError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(pem, format!("is not PEM: {error}")))?;
    if certificates.is_empty() {
        Err(unusable(
            pem,
            "has no certificate in PEM (-----BEGIN CERTIFICATE-----)".to_owned(),
        ))
    } else {
        Ok(certificates)
    }
}

fn private_key_in(pem: Pem<'_>) -> Result<PrivateKeyDer<'static>, AuthorityError> {
    let key = PrivateKeyDer::from_pem_slice(pem.text.as_bytes());
    key.map_err(|error| unusable(pem, format!("has no private key in PEM: {error}")))
}

/// The certificates of a PEM text, without anything else: the result is public, and the text may
/// also hold a key.
fn certificates_only(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let mut certificates = String::new();
    for part in text.split(BEGIN).skip(1) {
        if let Some(end) = part.find(END) {
            let body = part[..end].trim();
            certificates.push_str(&format!("{BEGIN}\n{body}\n{END}\n"));
        }
    }
    certificates
}

fn read_key(pem: Pem<'_>) -> Result<KeyPair, AuthorityError> {
    let key = private_key_in(pem)?;
    KeyPair::try_from(&key)
        .map_err(|error| unusable(pem, format!("its key cannot sign certificates: {error}")))
}

fn unusable(pem: Pem<'_>, problem: String) -> AuthorityError {
    AuthorityError::Unusable {
        path: pem.origin.to_owned(),
        problem,
    }
}

/// The certificate of an authority with this key.
fn self_signed(pair: &KeyPair) -> Result<String, AuthorityError> {
    let mut params = params(
        "Culvert authority",
        UnixTime::now(),
        DAY,
        AUTHORITY_LIFETIME,
    );
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let made = params
        .self_signed(pair)
        .map_err(|source| sign_error("the authority", source))?;
    Ok(made.pem())
}

fn params(
    common_name: &str,
    now: UnixTime,
    backdate: Duration,
    lifetime: Duration,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // RFC 5280 limits common names to 64 characters; the identity is in the SAN.
    params.distinguished_name.push(
        DnType::CommonName,
        common_name.chars().take(64).collect::<String>(),
    );
    params.not_before = now.before(backdate).to_date();
    params.not_after = (now + lifetime).to_date();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params
}

fn read(path: &Path) -> Result<String, AuthorityError> {
    read_bounded(path).map_err(|source| AuthorityError::Read {
        path: path.to_owned(),
        source,
    })
}

fn write(path: &Path, contents: &[u8], mode: u32) -> Result<(), AuthorityError> {
    write_atomic(path, contents, mode).map_err(|source| AuthorityError::Write {
        path: path.to_owned(),
        source,
    })
}

fn sign_error(subject: &str, source: rcgen::Error) -> AuthorityError {
    AuthorityError::Sign {
        subject: subject.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
