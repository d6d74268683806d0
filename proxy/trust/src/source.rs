//! Sources of certificates: the embedded authority, the operator's authority, or ready
//! certificates.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use culvert_proxy_core::clock::UnixTime;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;

use super::{TrustConfig, TrustError};
use crate::authority::{
    Authority, AuthorityError, ServerCertificate, read_certificates, read_private_key,
};
use crate::identity::Leaf;

/// The source of certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustSource {
    /// An authority in the state directory, created on the first start.
    Embedded,
    /// `--ca-cert` and `--ca-key`.
    Authority {
        /// The authority's certificate, optionally followed by others to trust; PEM.
        cert: PathBuf,
        /// Its key; PEM.
        key: PathBuf,
    },
    /// `--tls-cert`, `--tls-key` and `--agent-ca`: agents cannot enrol here.
    Ready {
        /// The proxy's certificate and its chain; PEM.
        cert: PathBuf,
        /// Its key; PEM.
        key: PathBuf,
        /// The authorities of agents' certificates; PEM.
        agent_ca: PathBuf,
    },
}

impl TrustSource {
    fn files(&self) -> Vec<&Path> {
        match self {
            Self::Embedded => Vec::new(),
            Self::Authority { cert, key } => vec![cert, key],
            Self::Ready {
                cert,
                key,
                agent_ca,
            } => vec![cert, key, agent_ca],
        }
    }
}

impl fmt::Display for TrustSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("the embedded authority"),
            Self::Authority { cert, .. } | Self::Ready { cert, .. } => {
                write!(f, "{}", cert.display())
            }
        }
    }
}

/// The material that was read or created.
#[derive(Debug)]
pub(super) struct Material {
    kind: Kind,
    /// Contents of the given files when they were read.
    contents: Vec<Vec<u8>>,
    /// The time within which the proxy's own certificate is kept. Outside it a new one is issued,
    /// also after the clock was set back.
    fresh: Option<Range<UnixTime>>,
}

#[derive(Debug)]
enum Kind {
    Authority(Box<Authority>),
    Ready(Vec<CertificateDer<'static>>),
}

impl Material {
    /// The material and the proxy's certificate.
    pub(super) fn load(
        config: &TrustConfig,
        now: UnixTime,
    ) -> Result<(Self, ServerCertificate), TrustError> {
        let contents = contents(&config.source)?;
        let authority = match &config.source {
            TrustSource::Embedded => Authority::embedded(&config.state)?,
            TrustSource::Authority { cert, key } => Authority::from_files(cert, key)?,
            TrustSource::Ready {
                cert,
                key,
                agent_ca,
            } => {
                let chain = read_certificates(cert)?;
                verify_name(&chain[0], cert, &config.server_name)?;
                let certificate = ServerCertificate {
                    chain,
                    key: read_private_key(key)?,
                };
                let kind = Kind::Ready(read_certificates(agent_ca)?);
                return Ok((
                    Self {
                        kind,
                        contents,
                        fresh: None,
                    },
                    certificate,
                ));
            }
        };
        let names: Vec<String> = std::iter::once(&config.server_name)
            .chain(&config.hosts)
            .cloned()
            .collect();
        let certificate = authority.server_certificate(&names, now)?;
        let fresh = Leaf::read(&certificate.chain[0])
            .ok()
            .map(|leaf| leaf.not_before..renewal_time(&leaf));
        Ok((
            Self {
                kind: Kind::Authority(Box::new(authority)),
                contents,
                fresh,
            },
            certificate,
        ))
    }

    /// Whether the files have changed or the proxy's certificate is near its end.
    pub(super) fn is_due(&self, config: &TrustConfig, now: UnixTime) -> Result<bool, TrustError> {
        Ok(self
            .fresh
            .as_ref()
            .is_some_and(|fresh| !fresh.contains(&now))
            || contents(&config.source)? != self.contents)
    }

    pub(super) fn authority(&self) -> Option<&Authority> {
        match &self.kind {
            Kind::Authority(authority) => Some(authority),
            Kind::Ready(_) => None,
        }
    }

    /// The signer of agents' certificates.
    pub(super) fn authorities(&self) -> &[CertificateDer<'static>] {
        match &self.kind {
            Kind::Authority(authority) => authority.certificates(),
            Kind::Ready(authorities) => authorities,
        }
    }
}

/// The moment when a third of the validity is left.
fn renewal_time(leaf: &Leaf) -> UnixTime {
    leaf.not_after
        .before(leaf.not_after.since(leaf.not_before) / 3)
}

fn contents(source: &TrustSource) -> Result<Vec<Vec<u8>>, TrustError> {
    let mut contents = Vec::new();
    for path in source.files() {
        let content = std::fs::read(path).map_err(|source| AuthorityError::Read {
            path: path.to_owned(),
            source,
        })?;
        contents.push(content);
    }
    Ok(contents)
}

fn verify_name(
    certificate: &CertificateDer<'_>,
    file: &Path,
    name: &str,
) -> Result<(), TrustError> {
    let parsed = ParsedCertificate::try_from(certificate).map_err(|source| TrustError::Tls {
        what: file.display().to_string(),
        source,
    })?;
    if let Ok(name) = ServerName::try_from(name)
        && verify_server_name(&parsed, &name).is_ok()
    {
        return Ok(());
    }
    Err(TrustError::ServerName {
        file: file.display().to_string(),
        name: name.to_owned(),
    })
}
