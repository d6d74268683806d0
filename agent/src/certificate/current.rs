//! The agent's current certificate: read from its files, read again when they change, and passed on
//! to each new connection.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use culvert_api::HostPort;
use culvert_daemon::Problem;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::certificate::cluster::account_token::TokenFile;
use crate::certificate::cluster::config::{ClusterDir, ClusterError, ClusterSettings};
use crate::certificate::store::{Renewed, StateDir, StateError};
use crate::identity::{Identity, IdentityError, IdentityText};

/// Where the certificate is from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A join; renewed by this agent. A `server_name` here overrides the one of the join.
    Joined {
        state: StateDir,
        server_name: Option<String>,
    },
    /// An enrolment in a Kubernetes cluster; renewed by this agent.
    Cluster(ClusterSource),
    /// Files of another program, which renews them.
    Ready(ReadyFiles),
}

/// Where an agent in a Kubernetes cluster has its certificate and settings from.
#[derive(Clone, Debug)]
pub(crate) struct ClusterSource {
    pub(crate) state: StateDir,
    /// What the proxies publish; it may change at any time.
    pub(crate) folder: ClusterDir,
    pub(crate) token: TokenFile,
    /// `--server-name`, in place of what the proxies publish.
    pub(crate) server_name: Option<String>,
    /// `--proxy`, likewise; empty if not given.
    pub(crate) proxies: Vec<HostPort>,
}

/// Certificates that are not from a join.
#[derive(Clone, Debug)]
pub(crate) struct ReadyFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ca: PathBuf,
    pub(crate) server_name: String,
}

/// Why there is no usable certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificatesError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{origin}")]
    Unusable {
        origin: String,
        source: IdentityError,
    },
}

/// The current certificate.
#[derive(Debug)]
pub(crate) struct Certificates {
    source: Source,
    seen: Mutex<FilesRead>,
    current: watch::Sender<Arc<Identity>>,
    unsaved: Mutex<Option<Unsaved>>,
}

/// A certificate that is in use and could not be stored, as on a full disk.
struct Unsaved {
    renewed: Renewed,
    /// When it was given.
    since: SystemTime,
    /// When the stored certificate was written. If it changes, the node has joined again.
    stored_at: Option<SystemTime>,
}

impl std::fmt::Debug for Unsaved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unsaved")
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

/// What the files held when they were last read.
struct FilesRead {
    text: IdentityText,
    problem: Problem,
}

impl std::fmt::Debug for FilesRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilesRead")
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

impl Source {
    fn read(&self) -> Result<IdentityText, CertificatesError> {
        match self {
            Self::Joined { state, .. } => Ok(self.with_settings(state.identity()?)),
            Self::Cluster(cluster) => Ok(self.with_settings(cluster.state.identity()?)),
            Self::Ready(files) => Ok(IdentityText {
                key: read(&files.key)?,
                chain: read(&files.cert)?,
                ca: read(&files.ca)?,
                server_name: files.server_name.clone(),
            }),
        }
    }

    /// With what flags and the cluster say in place of what was stored.
    fn with_settings(&self, text: IdentityText) -> IdentityText {
        match self {
            Self::Joined { server_name, .. } => IdentityText {
                server_name: server_name.clone().unwrap_or(text.server_name),
                ..text
            },
            Self::Cluster(cluster) => match cluster.settings() {
                Ok(settings) => IdentityText {
                    ca: settings.ca,
                    server_name: settings.server_name,
                    ..text
                },
                // Without the folder what was stored goes on.
                Err(_) => text,
            },
            Self::Ready(_) => text,
        }
    }

    fn parse(&self, text: &IdentityText) -> Result<Arc<Identity>, CertificatesError> {
        match text.parse() {
            Ok(identity) => Ok(Arc::new(identity)),
            Err(source) => Err(CertificatesError::Unusable {
                origin: self.origin().display().to_string(),
                source,
            }),
        }
    }

    /// The directory or file with the certificate.
    fn origin(&self) -> &Path {
        match self {
            Self::Joined { state, .. } | Self::Cluster(ClusterSource { state, .. }) => state.path(),
            Self::Ready(files) => &files.cert,
        }
    }
}

impl ClusterSource {
    /// What the proxies report, unless flags say otherwise.
    pub(crate) fn settings(&self) -> Result<ClusterSettings, ClusterError> {
        let told = self.folder.read()?;
        let server_name = self.server_name.clone().unwrap_or(told.server_name);
        let proxies = if self.proxies.is_empty() {
            told.proxies
        } else {
            self.proxies.clone()
        };
        Ok(ClusterSettings {
            server_name,
            proxies,
            ..told
        })
    }
}

fn read(path: &Path) -> Result<String, CertificatesError> {
    fs::read_to_string(path).map_err(|source| CertificatesError::Read {
        path: path.to_owned(),
        source,
    })
}

impl Certificates {
    /// # Errors
    /// Files that are missing or do not fit together.
    pub(crate) fn load(source: Source) -> Result<Self, CertificatesError> {
        let text = source.read()?;
        Self::of(source, text, None)
    }

    /// A certificate that a proxy gave and that cannot be stored. Nothing usable is.
    ///
    /// # Errors
    /// It does not fit together.
    pub(crate) fn unsaved_of(
        cluster: ClusterSource,
        renewed: Renewed,
    ) -> Result<Self, CertificatesError> {
        let stored_at = cluster.state.stored_at();
        let source = Source::Cluster(cluster);
        let text = source.with_settings(renewed.text.clone());
        let unsaved = Unsaved {
            renewed,
            since: SystemTime::now(),
            stored_at,
        };
        Self::of(source, text, Some(unsaved))
    }

    fn of(
        source: Source,
        text: IdentityText,
        unsaved: Option<Unsaved>,
    ) -> Result<Self, CertificatesError> {
        let identity = source.parse(&text)?;
        Ok(Self {
            source,
            seen: Mutex::new(FilesRead {
                text,
                problem: Problem::default(),
            }),
            current: watch::Sender::new(identity),
            unsaved: Mutex::new(unsaved),
        })
    }

    /// Uses a certificate that a proxy gave. It is stored, or else kept in memory and stored when
    /// the disk takes it, at a later [`Self::refresh`]. Returns why it is not stored.
    ///
    /// # Errors
    /// It does not fit together.
    pub(crate) fn use_renewed(
        &self,
        renewed: Renewed,
    ) -> Result<Option<StateError>, CertificatesError> {
        let Some(state) = self.renewable() else {
            return Ok(None);
        };
        let text = self.source.with_settings(renewed.text.clone());
        let identity = self.source.parse(&text)?;
        let stored = state.store(&renewed);
        *self.unsaved.lock() = match &stored {
            Ok(()) => None,
            Err(_) => Some(Unsaved {
                renewed,
                since: SystemTime::now(),
                stored_at: state.stored_at(),
            }),
        };
        match stored {
            Ok(()) => {
                self.refresh();
                Ok(None)
            }
            Err(error) => {
                self.current.send_replace(identity);
                Ok(Some(error))
            }
        }
    }

    /// Whether the certificate in use is not stored.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.unsaved.lock().is_some()
    }

    /// When the certificate was stored, or given if it is not stored.
    pub(crate) fn stored_at(&self) -> Option<SystemTime> {
        if let Some(unsaved) = &*self.unsaved.lock() {
            return Some(unsaved.since);
        }
        self.renewable()?.stored_at()
    }

    /// The pod whose token brought the certificate, in a cluster.
    pub(crate) fn pod(&self) -> Option<String> {
        if let Some(unsaved) = &*self.unsaved.lock() {
            return Some(unsaved.renewed.joined.pod.clone());
        }
        let joined = self.renewable()?.joined().ok()?;
        Some(joined.pod)
    }

    /// Stores what could not be stored. Returns whether there still is something.
    fn store_unsaved(&self) -> bool {
        let mut unsaved = self.unsaved.lock();
        let Some(held) = &*unsaved else {
            return false;
        };
        let Some(state) = self.renewable() else {
            return false;
        };
        if state.stored_at() == held.stored_at {
            if state.store(&held.renewed).is_err() {
                return true;
            }
            tracing::info!("the certificate in use is stored now");
        }
        *unsaved = None;
        false
    }

    /// The state directory, if the certificate is ours to renew.
    pub(crate) fn renewable(&self) -> Option<&StateDir> {
        match &self.source {
            Source::Joined { state, .. } | Source::Cluster(ClusterSource { state, .. }) => {
                Some(state)
            }
            Source::Ready(_) => None,
        }
    }

    /// The cluster, if that is where the certificate is from.
    pub(crate) fn cluster(&self) -> Option<&ClusterSource> {
        match &self.source {
            Source::Cluster(cluster) => Some(cluster),
            Source::Joined { .. } | Source::Ready(_) => None,
        }
    }

    /// The certificate as of the last [`Self::refresh`].
    pub(crate) fn current(&self) -> Arc<Identity> {
        self.current.borrow().clone()
    }

    /// Announces changes.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Identity>> {
        self.current.subscribe()
    }

    /// Reads the files again. Files that are half replaced or broken leave the last good
    /// certificate in use; that is logged once.
    pub(crate) fn refresh(&self) -> Arc<Identity> {
        // Until then the files have an older one, or parts of this one.
        if self.store_unsaved() {
            return self.current();
        }
        let mut seen = self.seen.lock();
        match self.read_again(&mut seen) {
            Ok(()) => seen.problem = Problem::default(),
            Err(error) => {
                if let Some(reason) = seen.problem.record(Some(culvert_daemon::chain(&error))) {
                    tracing::warn!(
                        reason,
                        "certificate files cannot be used; the last good ones stay in use"
                    );
                }
            }
        }
        drop(seen);
        self.current()
    }

    /// Reads the files, and uses what they hold if it differs from what was `seen`.
    fn read_again(&self, seen: &mut FilesRead) -> Result<(), CertificatesError> {
        let text = self.source.read()?;
        if text == seen.text {
            return Ok(());
        }
        let identity = self.source.parse(&text)?;
        tracing::info!(node = %identity.node, "certificate changed");
        seen.text = text;
        self.current.send_replace(identity);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_pki::Authority;

    fn write(files: &ReadyFiles, text: &IdentityText) {
        fs::write(&files.cert, &text.chain).unwrap();
        fs::write(&files.key, &text.key).unwrap();
        fs::write(&files.ca, &text.ca).unwrap();
    }

    #[test]
    fn replaced_files_are_taken_once_they_fit_together() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let server_name = "proxy.example".to_owned();
        let files = ReadyFiles {
            cert: path("cert"),
            key: path("key"),
            ca: path("ca"),
            server_name,
        };
        let authority = Authority::new("operator");
        let old = IdentityText::for_tests(&authority, "edge-1");
        let new = IdentityText::for_tests(&authority, "edge-1");
        write(&files, &old);
        let certificates = Certificates::load(Source::Ready(files.clone())).unwrap();
        let first = certificates.current().chain.clone();

        fs::write(&files.cert, &new.chain).unwrap();
        assert_eq!(
            certificates.refresh().chain,
            first,
            "the new certificate waits for its key"
        );
        write(&files, &new);
        assert_ne!(certificates.refresh().chain, first);
        fs::remove_file(&files.key).unwrap();
        assert_ne!(
            certificates.refresh().chain,
            first,
            "missing files change nothing"
        );
    }

    #[test]
    fn a_missing_join_says_what_to_run() {
        let root = tempfile::tempdir().unwrap();
        let source = Source::Joined {
            state: StateDir::new(root.path()),
            server_name: None,
        };
        let error = Certificates::load(source).unwrap_err().to_string();
        assert!(error.contains("culvert-agent join"), "{error}");
    }
}
