//! Self-signed certificates, made with openssl as an operator would.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::workspace;

/// The extension that makes a certificate an authority.
pub const AUTHORITY: &str = "keyUsage=critical,keyCertSign,cRLSign";

/// The PEM files of a certificate and its key.
pub struct SelfSigned {
    /// The certificate, signed with its own key.
    pub certificate: PathBuf,
    /// The key, without a password.
    pub key: PathBuf,
}

impl SelfSigned {
    /// Makes `<name>.crt` and `<name>.key` in a folder. `subject` and `extension` are the values of
    /// openssl's `-subj` and `-addext`.
    pub fn make(folder: &Path, name: &str, subject: &str, extension: &str) -> Result<Self> {
        let made = Self {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        };
        let mut openssl = Command::new("openssl");
        openssl.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]);
        openssl.args(["-days", "3650", "-subj", subject, "-addext", extension]);
        workspace::output(
            openssl
                .arg("-keyout")
                .arg(&made.key)
                .arg("-out")
                .arg(&made.certificate),
        )?;
        Ok(made)
    }
}
