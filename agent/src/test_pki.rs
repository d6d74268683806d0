//! Authorities and certificates for tests, made in memory.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use time::{Duration, OffsetDateTime};

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A certificate with its key.
pub(crate) struct Issued {
    pub(crate) key: KeyPair,
    pub(crate) leaf: rcgen::Certificate,
    pub(crate) chain_with_ca: Vec<CertificateDer<'static>>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    /// Signs the certificate request `csr`, with `name` as the name.
    pub(crate) fn sign(&self, csr: Vec<u8>, name: &str) -> String {
        let mut request = rcgen::CertificateSigningRequestParams::from_der(&csr.into()).unwrap();
        request.params.subject_alt_names = vec![rcgen::SanType::DnsName(name.try_into().unwrap())];
        request.params.not_before = OffsetDateTime::now_utc() - Duration::hours(1);
        request.params.not_after = OffsetDateTime::now_utc() + Duration::hours(1);
        request.signed_by(&self.issuer).unwrap().pem()
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.der().clone()
    }

    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// A certificate for `name`, valid from an hour ago for an hour.
    pub(crate) fn issue(&self, name: &str) -> Issued {
        self.issue_for(KeyPair::generate().unwrap(), name)
    }

    pub(crate) fn issue_for(&self, key: KeyPair, name: &str) -> Issued {
        self.issue_until(OffsetDateTime::now_utc() + Duration::hours(1), key, name)
    }

    /// A certificate that ended a minute ago.
    pub(crate) fn issue_expired(&self, name: &str) -> Issued {
        let key = KeyPair::generate().unwrap();
        self.issue_until(OffsetDateTime::now_utc() - Duration::minutes(1), key, name)
    }

    fn issue_until(&self, end: OffsetDateTime, key: KeyPair, name: &str) -> Issued {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = OffsetDateTime::now_utc() - Duration::hours(1);
        params.not_after = end;
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        let chain_with_ca = vec![leaf.der().clone(), self.certificate()];
        Issued {
            key,
            leaf,
            chain_with_ca,
        }
    }
}

impl Issued {
    pub(crate) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.serialize_der().into())
    }
}
