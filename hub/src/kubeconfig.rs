//! The parts of a kubeconfig that lead to an API server: its address, its authority, and how the user
//! proves who it is.

use std::fmt;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use http::Uri;
use serde::Deserialize;

/// Longer than any kubeconfig of a node: a larger file is not one.
const MAX_BYTES: usize = 1 << 20;

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeconfigError {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is larger than a kubeconfig may be", path.display())]
    TooLarge { path: PathBuf },
    /// The text of the error would show lines of the file, with tokens.
    #[error("{} is not a kubeconfig: see its line {line}", path.display())]
    Parse { path: PathBuf, line: u64 },
    #[error("{} names no {what}", path.display())]
    Missing { path: PathBuf, what: &'static str },
    #[error("the {what} in {} is not base64", path.display())]
    Base64 {
        path: PathBuf,
        what: &'static str,
        source: data_encoding::DecodeError,
    },
    #[error("{server:?} in {} is not an https address", path.display())]
    Server { path: PathBuf, server: String },
}

/// PEM text: in a file, or in the kubeconfig itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PemSource {
    File(PathBuf),
    Inline(Vec<u8>),
}

impl PemSource {
    /// The PEM text as it is now.
    pub(crate) fn read(&self) -> std::io::Result<Vec<u8>> {
        match self {
            Self::File(path) => std::fs::read(path),
            Self::Inline(pem) => Ok(pem.clone()),
        }
    }
}

/// How a node proves to its API server who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeCredential {
    Certificate {
        certificate: PemSource,
        key: PemSource,
    },
    /// The token of a service account, say. Read again when the file changes.
    TokenFile(PathBuf),
    Token(Token),
    Exec(ExecPlugin),
}

/// A token in the kubeconfig itself.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// A program that makes tokens: a credential plugin of client-go.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecPlugin {
    pub(crate) api_version: String,
    pub(crate) command: PathBuf,
    #[serde(default)]
    pub(crate) args: Vec<String>,
    /// Added to the environment.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(crate) env: Vec<ExecVariable>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ExecVariable {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// kubectl and kubelet write `env: null`.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// How a node reaches its API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kubeconfig {
    pub(crate) server: Uri,
    pub(crate) authority: PemSource,
    pub(crate) credential: NodeCredential,
}

impl Kubeconfig {
    /// Reads the current context of a kubeconfig.
    pub(crate) fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let bytes = std::fs::read(path).map_err(|source| KubeconfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &bytes)
    }

    /// `path` is for messages, and for file names that are relative to it.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, KubeconfigError> {
        if bytes.len() > MAX_BYTES {
            let path = path.to_owned();
            return Err(KubeconfigError::TooLarge { path });
        }
        let file: File =
            serde_saphyr::from_slice(bytes).map_err(|error| KubeconfigError::Parse {
                path: path.to_owned(),
                line: error.location().map_or(0, |place| place.line()),
            })?;
        let Some((cluster, user)) = file.current() else {
            return Err(missing(path, "current context"));
        };
        let Some(server) = https_server(&cluster.server) else {
            return Err(KubeconfigError::Server {
                path: path.to_owned(),
                server: cluster.server.clone(),
            });
        };
        Ok(Self {
            server,
            authority: pem_source(
                path,
                cluster.certificate_authority.as_deref(),
                cluster.certificate_authority_data.as_deref(),
                "certificate authority",
            )?,
            credential: credential(path, user)?,
        })
    }
}

fn https_server(text: &str) -> Option<Uri> {
    let uri = text.parse::<Uri>().ok()?;
    if uri.scheme_str() != Some("https") {
        return None;
    }
    uri.host()?;
    Some(uri)
}

fn missing(path: &Path, what: &'static str) -> KubeconfigError {
    KubeconfigError::Missing {
        path: path.to_owned(),
        what,
    }
}

fn credential(path: &Path, user: &User) -> Result<NodeCredential, KubeconfigError> {
    if user.client_certificate.is_none() && user.client_certificate_data.is_none() {
        return without_certificate(path, user);
    }
    Ok(NodeCredential::Certificate {
        certificate: pem_source(
            path,
            user.client_certificate.as_deref(),
            user.client_certificate_data.as_deref(),
            "client certificate",
        )?,
        key: pem_source(
            path,
            user.client_key.as_deref(),
            user.client_key_data.as_deref(),
            "client key",
        )?,
    })
}

fn without_certificate(path: &Path, user: &User) -> Result<NodeCredential, KubeconfigError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // As client-go has it: a file wins over a token.
    if let Some(file) = &user.token_file {
        return Ok(NodeCredential::TokenFile(folder.join(file)));
    }
    if let Some(token) = &user.token
        && !token.is_empty()
    {
        return Ok(NodeCredential::Token(Token(token.clone())));
    }
    if let Some(mut plugin) = user.exec.clone() {
        // A name alone is searched for in PATH.
        if plugin.command.components().count() > 1 {
            plugin.command = folder.join(plugin.command);
        }
        return Ok(NodeCredential::Exec(plugin));
    }
    let what = "client certificate, token, token file or exec plugin";
    Err(missing(path, what))
}

fn pem_source(
    path: &Path,
    file: Option<&Path>,
    data: Option<&str>,
    what: &'static str,
) -> Result<PemSource, KubeconfigError> {
    // As client-go has it: data wins over a file.
    if let Some(data) = data {
        let pem = BASE64.decode(data.trim().as_bytes());
        return pem
            .map(PemSource::Inline)
            .map_err(|source| KubeconfigError::Base64 {
                path: path.to_owned(),
                what,
                source,
            });
    }
    let Some(file) = file else {
        return Err(missing(path, what));
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    Ok(PemSource::File(folder.join(file)))
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
}

impl File {
    fn current(&self) -> Option<(&Cluster, &User)> {
        let context = self
            .contexts
            .iter()
            .find(|one| one.name == self.current_context)?;
        let cluster = self
            .clusters
            .iter()
            .find(|one| one.name == context.context.cluster)?;
        let user = self
            .users
            .iter()
            .find(|one| one.name == context.context.user)?;
        Some((&cluster.cluster, &user.user))
    }
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    exec: Option<ExecPlugin>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kubeadm writes it.
    const KUBEADM: &str = "
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Y2E=
    server: https://10.0.0.1:6443
  name: kubernetes
contexts:
- context:
    cluster: kubernetes
    user: system:node:edge-1
  name: system:node:edge-1@kubernetes
current-context: system:node:edge-1@kubernetes
kind: Config
preferences: {}
users:
- name: system:node:edge-1
  user:
    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem
    client-key: pki/kubelet.key
";

    #[test]
    fn the_kubeconfig_of_kubeadm_is_understood() {
        let path = Path::new("/etc/kubernetes/kubelet.conf");
        let read = Kubeconfig::parse(path, KUBEADM.as_bytes()).unwrap();
        let expected = Kubeconfig {
            server: "https://10.0.0.1:6443".parse().unwrap(),
            authority: PemSource::Inline(b"ca".to_vec()),
            credential: NodeCredential::Certificate {
                certificate: PemSource::File(
                    "/var/lib/kubelet/pki/kubelet-client-current.pem".into(),
                ),
                key: PemSource::File("/etc/kubernetes/pki/kubelet.key".into()),
            },
        };
        assert_eq!(read, expected);
    }

    fn credential_of(user: &str) -> Result<NodeCredential, KubeconfigError> {
        let start = KUBEADM.find("    client-certificate:").unwrap();
        let text = format!("{}    {user}", &KUBEADM[..start]);
        let path = Path::new("/etc/kubernetes/kubelet.conf");
        Ok(Kubeconfig::parse(path, text.as_bytes())?.credential)
    }

    #[test]
    fn tokens_and_plugins_are_understood_as_client_go_does() {
        let token = credential_of("token: secret").unwrap();
        assert_eq!(token, NodeCredential::Token(Token("secret".to_owned())));
        assert!(!format!("{token:?}").contains("secret"));
        let file = credential_of("{token: secret, tokenFile: t}").unwrap();
        assert_eq!(file, NodeCredential::TokenFile("/etc/kubernetes/t".into()));
        let plugin = "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, args: [a, b], env: null}";
        let NodeCredential::Exec(plugin) = credential_of(plugin).unwrap() else {
            panic!("it is a plugin");
        };
        assert_eq!((plugin.command, plugin.args.len()), ("aws".into(), 2));
        let error = credential_of("username: admin").unwrap_err();
        assert!(matches!(error, KubeconfigError::Missing { .. }), "{error}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let without = KUBEADM.replace("client-key", "other-key");
        let error = Kubeconfig::parse(Path::new("k.conf"), without.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "k.conf names no client key");
    }

    #[test]
    fn plain_http_is_refused() {
        let plain = KUBEADM.replace("https:", "http:");
        let error = Kubeconfig::parse(Path::new("k.conf"), plain.as_bytes()).unwrap_err();
        assert!(matches!(error, KubeconfigError::Server { .. }), "{error}");
    }

    #[test]
    fn what_is_wrong_with_a_kubeconfig_is_told_without_its_secrets() {
        for broken in [
            "users:\n- name: u\n  user:\n    token: S3cret\n   client-key: [\n",
            "users:\n- name: u\n  user: S3cret\n",
            "users:\n- name: u\n  user:\n    token: [S3cret]\n",
            "current-context: [S3cret",
        ] {
            let error = Kubeconfig::parse(Path::new("/a"), broken.as_bytes()).unwrap_err();
            let text = culvert_daemon::chain(&error);
            assert!(text.contains("line ") && !text.contains("S3cret"), "{text}");
        }
    }
}
