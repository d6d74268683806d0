//! An operator's authority, and the certificates of agents that it signs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_api::ALPN_TUNNEL;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Arguments: where to put it.
#[derive(clap::Args)]
pub(crate) struct Args {
    folder: PathBuf,
}

/// Makes an authority.
pub(crate) fn make(args: &Args) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "culvert-scale");
    let certificate = params.self_signed(&key)?;
    for (name, text) in [
        ("ca.crt", certificate.pem()),
        ("ca.key", key.serialize_pem()),
    ] {
        let path = args.folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// An authority that was made before.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    roots: Arc<RootCertStore>,
    provider: Arc<rustls::crypto::CryptoProvider>,
}

impl Authority {
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let pem = read(&folder.join("ca.crt"))?;
        let key = read(&folder.join("ca.key"))?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes())?)?;
        Ok(Self {
            issuer: Issuer::from_ca_cert_pem(&pem, KeyPair::from_pem(&key)?)?,
            roots: Arc::new(roots),
            provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
        })
    }

    /// The TLS settings of a node's agent, with a certificate of its own. Sessions are not resumed,
    /// as in the real agent.
    pub(crate) fn settings_of(&self, node: &str) -> Result<ClientConfig> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![node.to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let mut settings = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.roots.clone())
            .with_client_auth_cert(vec![certificate.der().clone()], key)?;
        settings.alpn_protocols = vec![ALPN_TUNNEL.to_vec()];
        settings.resumption = Resumption::disabled();
        Ok(settings)
    }
}
