//! Certificates of clients that come by `--connect-listen`, and the authority that signs them. It is
//! another one than that of the agents: its key makes clients, and nothing more.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The name of the authority, and of its files.
const AUTHORITY: &str = "clients";
/// It is not renewed, and it signs every client.
const AUTHORITY_LIFETIME: Duration = Duration::from_hours(10 * 365 * 24);
/// What no certificate outlives: years of four digits are enough for it.
const LONGEST_LIFETIME: Duration = Duration::from_hours(100 * 365 * 24);
/// Clocks of clients and proxies differ.
const SKEW: Duration = Duration::from_hours(24);

/// The files of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientFiles {
    /// What `--connect-client-ca` takes.
    pub(crate) authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// Makes a certificate for a client, and the authority if the folder has none.
///
/// # Errors
/// The lifetime is too long, the client has files already, or a file cannot be read or written.
pub(crate) fn create(folder: &Path, name: &str, lifetime: Duration) -> Result<ClientFiles> {
    ensure!(
        name != AUTHORITY,
        "{AUTHORITY} is the name of the authority: take another one"
    );
    ensure!(
        lifetime <= LONGEST_LIFETIME,
        "a lifetime of more than 100 years: take a shorter one"
    );
    let files = ClientFiles {
        authority: folder.join(format!("{AUTHORITY}.crt")),
        certificate: folder.join(format!("{name}.crt")),
        key: folder.join(format!("{name}.key")),
    };
    for file in [&files.certificate, &files.key] {
        if file.exists() {
            bail!(
                "{} exists: take another name, or remove it first",
                file.display()
            );
        }
    }
    let issuer = authority(folder, &files.authority)?;
    let key = KeyPair::generate().context("make a key")?;
    let mut params = params(name, lifetime);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let certificate = params
        .signed_by(&key, &issuer)
        .context("sign the certificate")?;
    write(&files.key, &key.serialize_pem(), 0o600)?;
    write(&files.certificate, &certificate.pem(), 0o644)?;
    Ok(files)
}

/// The one in the folder, or a new one.
fn authority(folder: &Path, certificate: &Path) -> Result<Issuer<'static, KeyPair>> {
    let key_file = folder.join(format!("{AUTHORITY}.key"));
    if certificate.exists() || key_file.exists() {
        let pem = read(certificate)?;
        let key = KeyPair::from_pem(&read(&key_file)?);
        let key = key.with_context(|| format!("read {}", key_file.display()))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key);
        return issuer.with_context(|| format!("read {}", certificate.display()));
    }
    let key = KeyPair::generate().context("make a key")?;
    let mut params = params(AUTHORITY, AUTHORITY_LIFETIME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let made = params.self_signed(&key).context("sign the authority")?;
    write(&key_file, &key.serialize_pem(), 0o600)?;
    write(certificate, &made.pem(), 0o644)?;
    Ok(Issuer::new(params, key))
}

fn params(name: &str, lifetime: Duration) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (now - SKEW).into();
    params.not_after = (now + lifetime).into();
    params
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

/// A file that is there is left alone.
fn write(file: &Path, text: &str, mode: u32) -> Result<()> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(file);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const YEAR: Duration = Duration::from_hours(365 * 24);

    #[test]
    fn clients_of_one_folder_have_one_authority_and_private_keys() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let first = create(folder.path(), "prometheus", YEAR)?;
        let authority = read(&first.authority)?;
        let second = create(folder.path(), "grafana", YEAR)?;
        assert_eq!(read(&second.authority)?, authority);
        for key in [&first.key, &second.key, &folder.path().join("clients.key")] {
            let mode = key.metadata()?.permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", key.display());
        }
        Ok(())
    }

    #[test]
    fn a_lifetime_without_end_is_refused() -> Result<()> {
        let folder = tempfile::tempdir()?;
        for lifetime in [Duration::MAX, LONGEST_LIFETIME + SKEW] {
            create(folder.path(), "prometheus", lifetime).expect_err("it is too long");
        }
        create(folder.path(), "prometheus", LONGEST_LIFETIME)?;
        Ok(())
    }

    #[test]
    fn nothing_that_is_there_is_replaced() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let files = create(folder.path(), "prometheus", YEAR)?;
        let certificate = read(&files.certificate)?;
        create(folder.path(), "prometheus", YEAR).expect_err("it is there");
        create(folder.path(), "clients", YEAR).expect_err("the authority's name");
        assert_eq!(read(&files.certificate)?, certificate);
        Ok(())
    }
}
