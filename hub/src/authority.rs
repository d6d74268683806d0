//! The hub's own certificate authority. Its certificates are good on any date: a node whose clock
//! starts in 1970, or that was off for years, must still reach its hub.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;

use culvert_daemon::write_atomic;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::crypto::provider;
use crate::state_dir::StateDir;

/// The name in every serving certificate, besides the addresses of the port.
const SERVER_NAME: &str = "culvert-hub";
/// The addresses of the kubelet port.
pub(crate) const KUBELET_PORT: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];
/// Where pod ports may be: addresses of this node only, to which no other host has a route by itself.
/// A neighbour can make itself one.
const POD_NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(169, 254, 0, 0), 16);
const POD_NETWORK_6: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfd00, 0xc7, 0x74, 0, 0, 0, 0, 0), 48);

/// Why the authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthorityError {
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("make a certificate")]
    Make(#[from] rcgen::Error),
    #[error("read the certificate of the local authority")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("use a new certificate")]
    Use(#[from] rustls::Error),
}

/// The authority: what it has signed is kubelet's, or the hub's own.
pub(crate) struct LocalAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

/// A certificate and its key as PEM.
pub(crate) struct IssuedPem {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl LocalAuthority {
    /// Reads the authority of this state directory; makes it if there is none.
    pub(crate) fn open(state: &StateDir) -> Result<Self, AuthorityError> {
        let certificate = state.local("ca.crt");
        let key = state.local("ca.key");
        if !key.exists() {
            let (made_certificate, made_key) = make()?;
            // The key is last: with it the authority is complete.
            for (path, pem, mode) in [
                (&certificate, made_certificate, 0o644),
                (&key, made_key, 0o600),
            ] {
                write_atomic(path, pem.as_bytes(), mode).map_err(|source| {
                    AuthorityError::Write {
                        path: path.clone(),
                        source,
                    }
                })?;
            }
        }
        let certificate = read(certificate)?;
        let key = read(key)?;
        Ok(Self {
            issuer: Issuer::from_ca_cert_pem(&certificate, KeyPair::from_pem(&key)?)?,
            certificate: CertificateDer::from_pem_slice(certificate.as_bytes())?,
            pem: certificate,
        })
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate as programs are given it.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// A new key and certificate for a port with these addresses. They are never written to a disk.
    pub(crate) fn serving(
        &self,
        addresses: &[IpAddr],
    ) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = leaf(SERVER_NAME, ExtendedKeyUsagePurpose::ServerAuth);
        params.subject_alt_names = vec![SanType::DnsName(SERVER_NAME.try_into()?)];
        let addresses = addresses.iter().copied().map(SanType::IpAddress);
        params.subject_alt_names.extend(addresses);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain = vec![certificate.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
    }

    /// A certificate with which kubelet is the node.
    pub(crate) fn issue_for_kubelet(&self) -> Result<IssuedPem, AuthorityError> {
        let key = KeyPair::generate()?;
        let params = leaf("kubelet", ExtendedKeyUsagePurpose::ClientAuth);
        Ok(IssuedPem {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// Valid whatever a clock says.
fn always_valid(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(1970, 1, 1);
    params.not_after = date_time_ymd(2099, 12, 31);
    params
}

fn leaf(name: &str, usage: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = always_valid(name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params
}

/// A new authority, as PEM of its certificate and key. A thief of the key can be this hub to
/// programs of this node, and to no others.
fn make() -> Result<(String, String), AuthorityError> {
    let key = KeyPair::generate()?;
    let mut params = always_valid("culvert-hub local authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![
            GeneralSubtree::DnsName(SERVER_NAME.to_owned()),
            subnet(Ipv4Addr::LOCALHOST.into(), 32),
            subnet(Ipv6Addr::LOCALHOST.into(), 128),
            subnet(POD_NETWORK.0.into(), POD_NETWORK.1),
            subnet(POD_NETWORK_6.0.into(), POD_NETWORK_6.1),
        ],
        excluded_subtrees: Vec::new(),
    });
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn subnet(network: IpAddr, bits: u8) -> GeneralSubtree {
    GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(network, bits))
}

/// Whether the authority may make a certificate for a pod port with this address.
pub(crate) fn is_pod_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let shift = 32 - u32::from(POD_NETWORK.1);
            address.to_bits() >> shift == POD_NETWORK.0.to_bits() >> shift
        }
        IpAddr::V6(address) => {
            let shift = 128 - u32::from(POD_NETWORK_6.1);
            address.to_bits() >> shift == POD_NETWORK_6.0.to_bits() >> shift
        }
    }
}

fn read(path: PathBuf) -> Result<String, AuthorityError> {
    std::fs::read_to_string(&path).map_err(|source| AuthorityError::Read { path, source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    fn open(directory: &tempfile::TempDir) -> LocalAuthority {
        LocalAuthority::open(&StateDir::new(directory.path().join("hub"))).unwrap()
    }

    #[test]
    fn the_authority_is_made_once_and_its_key_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let first = open(&directory).certificate;
        assert_eq!(open(&directory).certificate, first);
        let key = StateDir::new(directory.path().join("hub")).local("ca.key");
        let mode = std::fs::metadata(key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_authority_cannot_speak_for_another_host() {
        let authority = open(&tempfile::tempdir().unwrap());
        let address = "10.0.0.1";
        let serving = authority.serving(&[address.parse().unwrap()]).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.certificate().clone()).unwrap();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider())
            .build()
            .unwrap();
        let name = ServerName::try_from(address).unwrap();
        verifier
            .verify_server_cert(&serving.cert[0], &[], &name, &[], UnixTime::now())
            .unwrap_err();
    }

    #[test]
    fn a_serving_certificate_is_good_on_any_date_for_this_node_only() {
        let authority = open(&tempfile::tempdir().unwrap());
        let pods: IpAddr = "169.254.74.40".parse().unwrap();
        let pods_6: IpAddr = "fd00:c7:74::40".parse().unwrap();
        assert!(is_pod_address(pods) && is_pod_address(pods_6));
        assert!(!is_pod_address("10.0.0.1".parse().unwrap()));
        let addresses = [KUBELET_PORT[0], KUBELET_PORT[1], pods, pods_6];
        let serving = authority.serving(&addresses).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.certificate().clone()).unwrap();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider())
            .build()
            .unwrap();
        let check = |name: &'static str, seconds| {
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
            let name = ServerName::try_from(name).unwrap();
            verifier.verify_server_cert(&serving.cert[0], &[], &name, &[], now)
        };
        const YEAR: u64 = 365 * 24 * 3600;
        for seconds in [1, 56 * YEAR, 128 * YEAR] {
            check("127.0.0.1", seconds).unwrap();
            check("culvert-hub", seconds).unwrap();
            check("169.254.74.40", seconds).unwrap();
            check("fd00:c7:74::40", seconds).unwrap();
        }
        check("10.0.0.1", YEAR).unwrap_err();
    }
}
