//! The authority that all proxies of a cluster share: Secret `culvert-ca`, created by the first
//! proxy. Each proxy keeps a copy in its state directory. It starts from the copy when the API
//! server is unreachable, and it reads its certificates from the copy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_daemon::{Drain, Problem, write_atomic};
use culvert_proxy_core::state::{StateDir, read_bounded};
use culvert_proxy_trust::TrustSource;
use culvert_proxy_trust::authority::{Authority, AuthorityError, NewAuthority, Pem};
use futures_util::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::time::{Instant, sleep};

use super::Cluster;
use super::request::{RequestError, ask};

/// The Secret, of type `kubernetes.io/tls`.
const SECRET: &str = "culvert-ca";
const CERTIFICATES: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The file with key and certificates. It is one file, so that a crash cannot leave one without the
/// other.
const COPY: &str = "cluster-authority.pem";
/// The interval of reading the Secret. A rotation takes effect within this time. A request is
/// cheap.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The time for which a first start, which has no copy, waits for the API server before it fails.
const FIRST_START: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(1);

/// The reason why the cluster's authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SharedAuthorityError {
    #[error("Secret {namespace}/{SECRET}")]
    Request {
        namespace: String,
        source: RequestError,
    },
    #[error(
        "Secret {namespace}/{SECRET} has no {key}: it must be of type kubernetes.io/tls; delete \
         it to have one made"
    )]
    Missing {
        namespace: String,
        key: &'static str,
    },
    #[error("Secret {namespace}/{SECRET}, {key} is not text")]
    NoText {
        namespace: String,
        key: &'static str,
    },
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("write {}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// The copy of the Secret in the state directory.
#[derive(Clone, Debug)]
pub struct SharedAuthority {
    cluster: Cluster,
    copy: PathBuf,
    /// The authority from the time before this proxy was part of a cluster. Agents that joined then
    /// stay valid.
    former: [PathBuf; 2],
}

/// The authority as texts: certificates, then key.
struct Texts {
    certificates: String,
    key: String,
}

impl SharedAuthority {
    /// Reads the Secret, or creates it. Without the API server the last copy is used.
    ///
    /// # Errors
    ///
    /// There is neither a Secret nor a copy.
    pub fn open(
        cluster: Cluster,
        state: &StateDir,
    ) -> BoxFuture<'_, Result<Self, SharedAuthorityError>> {
        Box::pin(Self::open_in(cluster, state))
    }

    async fn open_in(cluster: Cluster, state: &StateDir) -> Result<Self, SharedAuthorityError> {
        let former = [state.join("ca.crt"), state.join("ca.key")];
        let shared = Self {
            cluster,
            copy: state.join(COPY),
            former,
        };
        let deadline = Instant::now() + FIRST_START;
        loop {
            let Err(error) = shared.look().await else {
                return Ok(shared);
            };
            let lasting = matches!(
                &error,
                SharedAuthorityError::Authority(_) | SharedAuthorityError::Write { .. }
            );
            if shared.copy.exists() {
                let reason = culvert_daemon::chain(&error);
                tracing::warn!(reason, "starting with the cluster's authority as last seen");
                return Ok(shared);
            }
            if lasting || Instant::now() > deadline {
                return Err(error);
            }
            sleep(RETRY).await;
        }
    }

    /// The local copy, which has certificates and key in one file.
    pub fn source(&self) -> TrustSource {
        TrustSource::Authority {
            cert: self.copy.clone(),
            key: self.copy.clone(),
        }
    }

    /// Follows the Secret until the drain begins, and creates it again if it is deleted.
    pub(crate) async fn follow(self, drain: Drain) -> anyhow::Result<()> {
        let mut problem = Problem::default();
        loop {
            tokio::select! {
                () = sleep(CHECK_INTERVAL) => {}
                () = drain.begun() => return Ok(()),
            }
            let now_wrong = self
                .look()
                .await
                .err()
                .map(|error| culvert_daemon::chain(&error));
            if let Some(reason) = problem.record(now_wrong) {
                tracing::error!(
                    reason,
                    "the cluster's authority cannot be followed, keeping the one in use"
                );
            }
        }
    }

    async fn look(&self) -> Result<(), SharedAuthorityError> {
        let secret = self.secret().await?;
        let Texts { certificates, key } = self.texts(secret)?;
        Authority::from_pem(
            Pem {
                origin: &self.origin(CERTIFICATES),
                text: &certificates,
            },
            Pem {
                origin: &self.origin(KEY),
                text: &key,
            },
        )?;
        self.save(&format!("{}\n{}", key.trim_end(), certificates))
    }

    /// The cluster's Secret, which is made if there is none.
    async fn secret(&self) -> Result<Secret, SharedAuthorityError> {
        let secrets: Api<Secret> =
            Api::namespaced(self.cluster.client.clone(), &self.cluster.namespace);
        let found = ask(secrets.get_opt(SECRET)).await;
        if let Some(secret) = found.map_err(|source| self.failed(source))? {
            return Ok(secret);
        }
        match ask(secrets.create(&PostParams::default(), &self.new_secret()?)).await {
            Ok(made) => {
                tracing::info!(
                    secret = SECRET,
                    namespace = self.cluster.namespace,
                    "the cluster's authority made"
                );
                Ok(made)
            }
            // Another proxy was faster.
            Err(error) if error.is_conflict() => ask(secrets.get(SECRET))
                .await
                .map_err(|source| self.failed(source)),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// What errors call a part of the Secret.
    fn origin(&self, part: &str) -> PathBuf {
        PathBuf::from(format!(
            "Secret {}/{SECRET}, {part}",
            self.cluster.namespace
        ))
    }

    fn save(&self, text: &str) -> Result<(), SharedAuthorityError> {
        if read_bounded(&self.copy).is_ok_and(|before| before == text) {
            return Ok(());
        }
        let written = write_atomic(&self.copy, text.as_bytes(), 0o600);
        written.map_err(|source| SharedAuthorityError::Write {
            path: self.copy.clone(),
            source,
        })?;
        tracing::info!(
            secret = SECRET,
            namespace = self.cluster.namespace,
            "the cluster's authority taken"
        );
        Ok(())
    }

    /// The content for a new Secret: the authority in use, the authority from the time before the
    /// cluster, or a new one.
    fn new_secret(&self) -> Result<Secret, SharedAuthorityError> {
        let texts = match self.known_texts() {
            Some(texts) => texts,
            None => {
                let NewAuthority { certificate, key } = Authority::generate()?;
                Texts {
                    certificates: certificate,
                    key,
                }
            }
        };
        let mut data = BTreeMap::new();
        for (name, text) in [(CERTIFICATES, texts.certificates), (KEY, texts.key)] {
            data.insert(name.to_owned(), ByteString(text.into_bytes()));
        }
        Ok(Secret {
            metadata: ObjectMeta {
                name: Some(SECRET.to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(data),
            ..Secret::default()
        })
    }

    /// The authority of the copy on disk, or else the one from before there was a cluster.
    fn known_texts(&self) -> Option<Texts> {
        let [certificate, key] = &self.former;
        for [certificate, key] in [[&self.copy, &self.copy], [certificate, key]] {
            if let Some(texts) = texts_of(certificate, key) {
                return Some(texts);
            }
        }
        None
    }

    fn texts(&self, secret: Secret) -> Result<Texts, SharedAuthorityError> {
        let mut data = secret.data.unwrap_or_default();
        Ok(Texts {
            certificates: self.text(CERTIFICATES, &mut data)?,
            key: self.text(KEY, &mut data)?,
        })
    }

    fn text(
        &self,
        key: &'static str,
        data: &mut BTreeMap<String, ByteString>,
    ) -> Result<String, SharedAuthorityError> {
        let namespace = self.cluster.namespace.clone();
        let Some(ByteString(bytes)) = data.remove(key) else {
            return Err(SharedAuthorityError::Missing { namespace, key });
        };
        String::from_utf8(bytes).map_err(|_| SharedAuthorityError::NoText { namespace, key })
    }

    fn failed(&self, source: RequestError) -> SharedAuthorityError {
        SharedAuthorityError::Request {
            namespace: self.cluster.namespace.clone(),
            source,
        }
    }
}

/// The texts of an authority in these files, which may be one and the same.
fn texts_of(certificate: &Path, key: &Path) -> Option<Texts> {
    let authority = Authority::from_files(certificate, key).ok()?;
    let key = read_bounded(key).ok()?;
    Some(Texts {
        certificates: authority.pem().to_owned(),
        key: key_only(&key)?,
    })
}

/// The private key in a PEM text, which can also contain certificates.
fn key_only(text: &str) -> Option<String> {
    let start = text.find("-----BEGIN ")?;
    if !text[start..].contains("PRIVATE KEY-----") {
        return None;
    }
    let end = text[start..].find("-----END ")?;
    let line = text[start + end..].lines().next()?;
    Some(format!("{}{line}\n", &text[start..start + end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_taken_out_of_a_text_with_certificates() {
        let key = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n";
        let both = format!("{key}-----BEGIN CERTIFICATE-----\nxyz\n-----END CERTIFICATE-----\n");
        assert_eq!(key_only(&both).as_deref(), Some(key));
        assert_eq!(
            key_only("-----BEGIN CERTIFICATE-----\nxyz\n-----END CERTIFICATE-----\n"),
            None
        );
        assert_eq!(key_only(""), None);
    }
}
