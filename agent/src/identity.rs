//! Who this agent is: its certificate and key, and whom it takes for a proxy.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use culvert_api::{InvalidNodeName, NodeName};
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A checked set of certificates and key: all belong together.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The node that the certificate names.
    pub(crate) node: NodeName,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    /// Authorities of the proxies' certificates.
    pub(crate) roots: Arc<RootCertStore>,
    /// The name in the proxies' certificates.
    pub(crate) server_name: ServerName<'static>,
    pub(crate) validity: Validity,
}

/// The texts that an [`Identity`] is made of.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct IdentityText {
    pub(crate) key: String,
    pub(crate) chain: String,
    pub(crate) ca: String,
    pub(crate) server_name: String,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

/// What is wrong with a set of certificates.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("private key: no usable PEM")]
    Key(#[source] pem::Error),
    #[error("certificate: no usable PEM")]
    Certificate(#[source] pem::Error),
    #[error("CA certificates: no usable PEM")]
    Authorities(#[source] pem::Error),
    #[error("a CA certificate cannot be trusted")]
    Authority(#[source] rustls::Error),
    #[error("{0} is empty")]
    Empty(&'static str),
    #[error("the private key and the certificate do not belong together")]
    Mismatch(#[source] rustls::Error),
    #[error("the certificate does not parse")]
    Parse(#[source] x509_parser::error::X509Error),
    #[error(
        "the certificate must name exactly one node, as its only DNS name; it has {0} DNS names"
    )]
    Names(usize),
    #[error("the certificate names no node")]
    Node(#[from] InvalidNodeName),
    #[error("{name:?} cannot be the name of a server")]
    ServerName {
        name: String,
        source: InvalidDnsNameError,
    },
}

impl IdentityText {
    /// # Errors
    /// A part that does not parse, or parts that do not belong together.
    pub(crate) fn parse(&self) -> Result<Identity, IdentityError> {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(IdentityError::Key)?;
        let chain = certificates(&self.chain).map_err(IdentityError::Certificate)?;
        let leaf = chain
            .first()
            .ok_or(IdentityError::Empty("the certificate"))?;
        let (node, validity) = read_leaf(leaf)?;
        CertifiedKey::from_der(chain.clone(), key.clone_key(), &crate::crypto::provider())
            .map_err(IdentityError::Mismatch)?;
        let server_name = ServerName::try_from(self.server_name.clone()).map_err(|source| {
            IdentityError::ServerName {
                name: self.server_name.clone(),
                source,
            }
        })?;
        Ok(Identity {
            node,
            chain,
            key,
            roots: Arc::new(roots(&self.ca)?),
            server_name,
            validity,
        })
    }
}

fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(text.as_bytes()).collect()
}

/// The authorities in a PEM text.
pub(crate) fn roots(text: &str) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(text).map_err(IdentityError::Authorities)? {
        roots.add(authority).map_err(IdentityError::Authority)?;
    }
    if roots.is_empty() {
        Err(IdentityError::Empty("the file of CA certificates"))
    } else {
        Ok(roots)
    }
}

fn read_leaf(leaf: &CertificateDer<'_>) -> Result<(NodeName, Validity), IdentityError> {
    let (_, leaf) =
        X509Certificate::from_der(leaf).map_err(|error| IdentityError::Parse(error.into()))?;
    let validity = Validity {
        not_before: system_time(leaf.validity().not_before.timestamp()),
        not_after: system_time(leaf.validity().not_after.timestamp()),
    };
    let names = leaf
        .subject_alternative_name()
        .map_err(IdentityError::Parse)?;
    let names = names
        .map(|names| names.value.general_names.as_slice())
        .unwrap_or_default();
    let dns_names = names.iter().filter_map(dns_name).collect::<Vec<_>>();
    match dns_names.as_slice() {
        [name] => Ok((name.parse()?, validity)),
        other => Err(IdentityError::Names(other.len())),
    }
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "all other kinds of names are alike here"
)]
fn dns_name<'a>(name: &GeneralName<'a>) -> Option<&'a str> {
    match name {
        GeneralName::DNSName(name) => Some(name),
        _ => None,
    }
}

fn system_time(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
impl IdentityText {
    /// What an agent of `authority` has after its join.
    pub(crate) fn for_tests(authority: &crate::test_pki::Authority, node: &str) -> Self {
        let issued = authority.issue(node);
        Self {
            key: issued.key.serialize_pem(),
            chain: issued.leaf.pem(),
            ca: authority.pem(),
            server_name: culvert_api::PROXY_SERVER_NAME.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pki::Authority;

    #[test]
    fn a_certificate_says_which_node_it_is_and_how_long() {
        let identity = IdentityText::for_tests(&Authority::new("culvert"), "edge-1")
            .parse()
            .unwrap();
        assert_eq!(identity.node.as_str(), "edge-1");
        let now = SystemTime::now();
        assert!(identity.validity.not_before < now && now < identity.validity.not_after);
    }

    #[test]
    fn a_foreign_key_is_noticed() {
        let authority = Authority::new("culvert");
        let mut text = IdentityText::for_tests(&authority, "edge-1");
        text.key = authority.issue("edge-1").key.serialize_pem();
        assert!(matches!(text.parse(), Err(IdentityError::Mismatch(_))));
    }

    #[test]
    fn every_part_must_be_there_and_parse() {
        let good = IdentityText::for_tests(&Authority::new("culvert"), "edge-1");
        let broken = |breaking: fn(&mut IdentityText)| {
            let mut text = good.clone();
            breaking(&mut text);
            text.parse().unwrap_err()
        };
        assert!(matches!(
            broken(|text| text.key.clear()),
            IdentityError::Key(_)
        ));
        assert!(matches!(
            broken(|text| text.chain.clear()),
            IdentityError::Empty(_)
        ));
        assert!(matches!(
            broken(|text| text.ca.clear()),
            IdentityError::Empty(_)
        ));
        assert!(matches!(
            broken(|text| text.ca.truncate(60)),
            IdentityError::Authorities(_)
        ));
        assert!(matches!(
            broken(|text| text.server_name = "a b".to_owned()),
            IdentityError::ServerName { .. }
        ));
    }
}
