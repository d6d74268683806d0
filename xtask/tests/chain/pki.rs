//! Certificates that an operator made elsewhere, with openssl.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::workspace;

/// The purpose of a certificate.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    Client,
    Server,
}

/// An authority with its own folder.
pub(crate) struct Authority(PathBuf);

/// The files of a certificate and its key.
pub(crate) struct Issued {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    /// The authority in this folder.
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Creates its key and certificate.
    pub(crate) fn make(self) -> Result<Self> {
        std::fs::create_dir_all(&self.0).with_context(|| format!("create {}", self.0.display()))?;
        let name = self
            .0
            .file_name()
            .context("a folder has a name")?
            .to_string_lossy();
        let args = format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -keyout \
             ca.key -out ca.crt -subj /CN={name} \
             -addext basicConstraints=critical,CA:TRUE -addext \
             keyUsage=critical,keyCertSign,cRLSign"
        );
        openssl(&self.0, &args)?;
        Ok(self)
    }

    /// The file of its certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.0.join("ca.crt")
    }

    /// The file of its key.
    pub(crate) fn key(&self) -> PathBuf {
        self.0.join("ca.key")
    }

    /// The proxy's flags for this authority.
    pub(crate) fn proxy_flags(&self) -> [String; 4] {
        [
            "--ca-cert".into(),
            text(&self.certificate()),
            "--ca-key".into(),
            text(&self.key()),
        ]
    }

    /// Signs a certificate for a DNS name.
    pub(crate) fn issue(&self, name: &str, good_for: Use) -> Result<Issued> {
        let usage = match good_for {
            Use::Client => "clientAuth",
            Use::Server => "serverAuth",
        };
        let extensions = format!(
            "subjectAltName=DNS:{name}\nextendedKeyUsage={usage}\nbasicConstraints=CA:FALSE\n"
        );
        std::fs::write(self.0.join("extensions"), extensions)?;
        let request = format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out \
             {name}.csr -subj /CN={name}"
        );
        openssl(&self.0, &request)?;
        let sign = format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out \
             {name}.crt -extfile extensions"
        );
        openssl(&self.0, &sign)?;
        Ok(Issued {
            certificate: self.0.join(format!("{name}.crt")),
            key: self.0.join(format!("{name}.key")),
        })
    }
}

/// A path as a string argument.
pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}

fn openssl(folder: &Path, args: &str) -> Result<()> {
    workspace::output(
        Command::new("openssl")
            .args(args.split_whitespace())
            .current_dir(folder),
    )?;
    Ok(())
}
