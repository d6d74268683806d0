//! Authorities and the certificates that they sign, made with openssl as an operator would.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::self_signed::{AUTHORITY, SelfSigned};
use crate::workspace;

/// The purpose of a certificate.
#[derive(Clone, Copy)]
pub enum Use {
    /// The certificate of a client.
    Client,
    /// The certificate of a server.
    Server,
}

/// An authority with its own folder.
pub struct Authority(PathBuf);

/// The files of a certificate and its key.
pub struct Issued {
    /// PEM.
    pub certificate: PathBuf,
    /// PEM, without a password.
    pub key: PathBuf,
}

impl Authority {
    /// The authority in this folder.
    pub fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Creates its key and certificate.
    pub fn make(self) -> Result<Self> {
        std::fs::create_dir_all(&self.0).with_context(|| format!("create {}", self.0.display()))?;
        let name = self
            .0
            .file_name()
            .context("a folder has a name")?
            .to_string_lossy();
        SelfSigned::make(&self.0, "ca", &format!("/CN={name}"), AUTHORITY)?;
        Ok(self)
    }

    /// The file of its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.0.join("ca.crt")
    }

    /// Its certificate.
    pub fn pem(&self) -> Result<String> {
        let file = self.certificate();
        std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    }

    /// The file of its key.
    pub fn key(&self) -> PathBuf {
        self.0.join("ca.key")
    }

    /// The proxy's flags for this authority.
    pub fn proxy_flags(&self) -> [String; 4] {
        [
            "--ca-cert".into(),
            text(&self.certificate()),
            "--ca-key".into(),
            text(&self.key()),
        ]
    }

    /// Signs a certificate for a DNS name.
    pub fn issue(&self, name: &str, good_for: Use) -> Result<Issued> {
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
pub fn text(path: &Path) -> String {
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
