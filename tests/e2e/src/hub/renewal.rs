//! New certificates: of the node for the API server, and of the API server by another authority.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::self_signed::{AUTHORITY, SelfSigned};
use culvert_lab::workspace;
use serde_json::Value;

use super::NODE;
use super::twin::Serving;
use crate::cluster::MASTER;
use crate::world::World;

/// Files that a kubeconfig names.
pub(super) struct Files {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    /// The files of kubelet's kubeconfig as it is before the hub.
    pub(super) fn of(world: &World, kubeconfig: &Path) -> Result<Self> {
        let path = kubeconfig.display().to_string();
        let view = ["config", "view", "--raw", "--kubeconfig", &path];
        let config = world.cluster.json(&view)?;
        let cluster = &config["clusters"][0]["cluster"];
        let user = &config["users"][0]["user"];
        let path = |value: &Value| {
            value
                .as_str()
                .map(PathBuf::from)
                .context("it names no file")
        };
        Ok(Self {
            authority: path(&cluster["certificate-authority"])?,
            certificate: path(&user["client-certificate"])?,
            key: path(&user["client-key"])?,
        })
    }

    /// Renews the node's certificate: another key, the same names, the cluster's authority. Returns
    /// how the audit log calls it.
    pub(super) fn renew(&self, world: &World) -> Result<String> {
        let key = world.file("hub-renewed.key");
        let certificate = world.file("hub-renewed.crt");
        let authority_key = self.authority.with_extension("key");
        sign(&Request {
            subject: &format!("/O=system:nodes/CN=system:node:{NODE}"),
            names: &format!(
                "DNS:{NODE},IP:{}",
                world.cluster.variable_of(NODE, "ADDRESS")?
            ),
            authority: &self.authority,
            authority_key: &authority_key,
            certificate: &certificate,
            key: &key,
        })?;
        replace(&certificate, &self.certificate)?;
        replace(&key, &self.key)?;
        credential_id(&self.certificate)
    }

    /// Lets all clients trust another authority too, and makes a certificate of it for the API
    /// server.
    pub(super) fn add_authority(&self, world: &World) -> Result<Serving> {
        let other = SelfSigned::make(world.folder(), "hub-authority", "/CN=another", AUTHORITY)?;
        let mut bundle = std::fs::read(&self.authority).context("read the authority")?;
        bundle.extend(std::fs::read(&other.certificate)?);
        let serving = Serving {
            certificate: world.file("hub-serving.crt"),
            key: world.file("hub-serving.key"),
        };
        let address = world.cluster.variable_of(MASTER, "ADDRESS")?;
        sign(&Request {
            subject: "/CN=kube-apiserver",
            names: &format!("IP:{address},IP:127.0.0.1,DNS:localhost"),
            authority: &other.certificate,
            authority_key: &other.key,
            certificate: &serving.certificate,
            key: &serving.key,
        })?;
        let new = world.file("hub-bundle.crt");
        std::fs::write(&new, bundle).context("write the authorities")?;
        replace(&new, &self.authority)?;
        Ok(serving)
    }
}

/// Fails unless a request with this credential is in an audit log.
pub(super) fn is_used(log: &str, credential: &str) -> Result<()> {
    ensure!(
        log.contains(credential),
        "no request came with {credential}"
    );
    Ok(())
}

/// What is to be signed.
struct Request<'a> {
    subject: &'a str,
    names: &'a str,
    authority: &'a Path,
    authority_key: &'a Path,
    certificate: &'a Path,
    key: &'a Path,
}

fn sign(request: &Request<'_>) -> Result<()> {
    let asked = request.certificate.with_extension("csr");
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]);
    openssl.args(["-nodes", "-subj", request.subject, "-keyout"]);
    openssl.arg(request.key).arg("-out").arg(&asked);
    workspace::output(&mut openssl)?;
    sign_asked(request, &asked)
}

fn sign_asked(request: &Request<'_>, asked: &Path) -> Result<()> {
    let extensions = request.certificate.with_extension("ext");
    let text = format!(
        "subjectAltName={}\nextendedKeyUsage=serverAuth,clientAuth\n",
        request.names
    );
    std::fs::write(&extensions, text).context("write the extensions")?;
    let mut openssl = Command::new("openssl");
    openssl
        .args(["x509", "-req", "-days", "30", "-in"])
        .arg(asked);
    openssl.arg("-CA").arg(request.authority);
    openssl.arg("-CAkey").arg(request.authority_key);
    openssl.args(["-CAcreateserial", "-CAserial"]);
    openssl.arg(request.certificate.with_extension("srl"));
    openssl.arg("-extfile").arg(&extensions);
    workspace::output(openssl.arg("-out").arg(request.certificate)).map(drop)
}

/// At once, as kubelet does it.
fn replace(new: &Path, old: &Path) -> Result<()> {
    let beside = old.with_extension("new");
    std::fs::copy(new, &beside).with_context(|| format!("write {}", beside.display()))?;
    std::fs::rename(&beside, old).with_context(|| format!("replace {}", old.display()))
}

/// Such as `X509SHA256=1234`: in an audit log it is the user's `credential-id` (1.32 and later).
fn credential_id(certificate: &Path) -> Result<String> {
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"]);
    let said = workspace::output(openssl.arg(certificate))?;
    let (_, bytes) = said.split_once('=').context("no fingerprint")?;
    let hex = bytes.trim().replace(':', "").to_lowercase();
    Ok(format!("X509SHA256={hex}"))
}
