//! The state directory of a joined agent. `identity.pem` holds key and certificate in one file, so
//! that a crash can never leave one of them without the other; it is written last and makes a join
//! complete.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use culvert_api::HostPort;
use culvert_daemon::write_atomic;
use serde::{Deserialize, Serialize};

use crate::identity::IdentityText;

const IDENTITY: &str = "identity.pem";
const AUTHORITIES: &str = "ca.pem";
const JOINED: &str = "joined.json";
/// The key of a join or renewal that is not complete yet.
const NEXT_KEY: &str = "next-key.pem";

const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;
const PRIVATE_DIRECTORY: u32 = 0o700;
const OPEN_DIRECTORY: u32 = 0o755;

/// A state directory.
#[derive(Clone, Debug)]
pub(crate) struct StateDir(PathBuf);

/// What a join settled besides certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Joined {
    /// The name in the proxies' certificates.
    pub(crate) server_name: String,
    pub(crate) proxies: Vec<HostPort>,
    /// UID of the pod whose service-account token was used, in a cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) pod: String,
}

/// A certificate that a proxy gave, and what belongs to it.
#[derive(Clone)]
pub(crate) struct Renewed {
    pub(crate) text: IdentityText,
    pub(crate) joined: Joined,
}

/// Why state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error(
        "this agent has not joined: {} is missing; run the `culvert-agent join` command that \
         `culvert token create` prints",
        .0.display()
    )]
    NotJoined(PathBuf),
    #[error("read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("write {}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "make the state directory {}: run this as root, or give a --state-dir that may be written to",
        .path.display()
    )]
    Make { path: PathBuf, source: io::Error },
    #[error("read {}: it was changed by hand; join again", .path.display())]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "{}: the key cannot be used; remove the file, and join again if a join was not complete",
        .path.display()
    )]
    NextKey { path: PathBuf, source: rcgen::Error },
    #[error("make a key")]
    MakeKey(#[source] rcgen::Error),
}

impl StateDir {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory if it is missing, for its owner only. One that is there stays as it is:
    /// the secrets in it have modes of their own, and other programs may use it too.
    pub(crate) fn prepare(&self) -> Result<(), StateError> {
        self.make().map_err(|source| StateError::Make {
            path: self.0.clone(),
            source,
        })
    }

    fn make(&self) -> io::Result<()> {
        // Its owner, who may be another user than this one, has to get there.
        if let Some(above) = self.0.parent()
            && !above.as_os_str().is_empty()
        {
            make_directory(above, OPEN_DIRECTORY)?;
        }
        make_directory(&self.0, PRIVATE_DIRECTORY)
    }

    /// The key to join or renew with. It is on disk before it is used: a request that is repeated
    /// after a lost answer uses the same. Where no new one can be stored, as on a full disk, it is
    /// the key of the present certificate: a node that cannot be reached cannot be repaired.
    pub(crate) fn next_key(&self) -> Result<rcgen::KeyPair, StateError> {
        let path = self.0.join(NEXT_KEY);
        match fs::read_to_string(&path) {
            Ok(text) => rcgen::KeyPair::from_pem(&text)
                .map_err(|source| StateError::NextKey { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = rcgen::KeyPair::generate().map_err(StateError::MakeKey)?;
                match self.write(NEXT_KEY, &key.serialize_pem(), SECRET) {
                    Ok(()) => Ok(key),
                    Err(error) => self.present_key().ok_or(error),
                }
            }
            Err(source) => Err(StateError::Read { path, source }),
        }
    }

    /// The same for a request that may be repeated with another key: one in memory, where none can
    /// be stored.
    pub(crate) fn next_key_or_unsaved(&self) -> Result<rcgen::KeyPair, StateError> {
        match self.next_key() {
            Err(StateError::Write { .. } | StateError::Read { .. }) => {
                rcgen::KeyPair::generate().map_err(StateError::MakeKey)
            }
            key => key,
        }
    }

    fn present_key(&self) -> Option<rcgen::KeyPair> {
        let text = self.identity().ok()?;
        rcgen::KeyPair::from_pem(&text.key).ok()
    }

    /// Completes a join.
    pub(crate) fn store_join(
        &self,
        text: &IdentityText,
        proxies: &[HostPort],
    ) -> Result<(), StateError> {
        self.store(&Renewed {
            joined: Joined {
                server_name: text.server_name.clone(),
                proxies: proxies.to_vec(),
                pod: String::new(),
            },
            text: text.clone(),
        })
    }

    /// A renewed certificate; the proxies stay.
    pub(crate) fn renewed(&self, text: IdentityText) -> Result<Renewed, StateError> {
        let joined = Joined {
            server_name: text.server_name.clone(),
            ..self.joined()?
        };
        Ok(Renewed { text, joined })
    }

    /// Replaces what is stored.
    pub(crate) fn store(&self, renewed: &Renewed) -> Result<(), StateError> {
        let Renewed { text, joined } = renewed;
        let joined =
            serde_json::to_string_pretty(joined).expect("names and numbers have a JSON form");
        self.write(AUTHORITIES, &text.ca, PUBLIC)?;
        self.write(JOINED, &(joined + "\n"), PUBLIC)?;
        self.write(
            IDENTITY,
            &format!("{}\n{}", text.key.trim_end(), text.chain),
            SECRET,
        )?;
        let path = self.0.join(NEXT_KEY);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StateError::Write { path, source })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// What the last join or renewal stored.
    pub(crate) fn identity(&self) -> Result<IdentityText, StateError> {
        let identity = self.read(IDENTITY)?;
        let (key, chain) = split(&identity);
        let ca = self.read(AUTHORITIES)?;
        Ok(IdentityText {
            key,
            chain,
            ca,
            server_name: self.joined()?.server_name,
        })
    }

    pub(crate) fn joined(&self) -> Result<Joined, StateError> {
        let text = self.read(JOINED)?;
        serde_json::from_str(&text).map_err(|source| StateError::Parse {
            path: self.0.join(JOINED),
            source,
        })
    }

    /// When the certificate was stored.
    pub(crate) fn stored_at(&self) -> Option<SystemTime> {
        let metadata = fs::metadata(self.0.join(IDENTITY)).ok()?;
        metadata.modified().ok()
    }

    fn read(&self, name: &str) -> Result<String, StateError> {
        let path = self.0.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StateError::NotJoined(path))
            }
            Err(source) => Err(StateError::Read { path, source }),
        }
    }

    fn write(&self, name: &str, contents: &str, mode: u32) -> Result<(), StateError> {
        let path = self.0.join(name);
        write_atomic(&path, contents.as_bytes(), mode)
            .map_err(|source| StateError::Write { path, source })
    }
}

fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(mode).create(path)
}

/// Key and certificates of one PEM text.
fn split(text: &str) -> (String, String) {
    match text.find("-----BEGIN CERTIFICATE-----") {
        Some(at) => (text[..at].to_owned(), text[at..].to_owned()),
        None => (text.to_owned(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::test_pki::Authority;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_join_reads_back_and_secrets_are_private() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::new(&root.path().join("culvert/agent"));
        state.prepare().unwrap();
        assert!(matches!(state.identity(), Err(StateError::NotJoined(_))));
        let text = IdentityText::for_tests(&Authority::new("culvert"), "edge-1");
        state
            .store_join(&text, &["proxy.example:7400".parse().unwrap()])
            .unwrap();
        assert_eq!(
            state.identity().unwrap().parse().unwrap().node.as_str(),
            "edge-1"
        );
        assert_eq!(
            state.joined().unwrap().proxies[0].to_string(),
            "proxy.example:7400"
        );
        assert_eq!(
            (mode(state.path()), mode(&state.path().join(IDENTITY))),
            (0o700, 0o600)
        );
    }

    #[test]
    fn a_directory_that_was_there_keeps_its_mode() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        StateDir::new(root.path()).prepare().unwrap();
        assert_eq!(mode(root.path()), 0o755, "as if --state-dir were /etc");
    }

    #[test]
    fn a_repeated_join_uses_the_same_key_until_one_succeeds() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::new(root.path());
        let key = state.next_key().unwrap().serialize_pem();
        assert_eq!(state.next_key().unwrap().serialize_pem(), key);
        assert_eq!(mode(&root.path().join(NEXT_KEY)), 0o600);
        state
            .store_join(
                &IdentityText::for_tests(&Authority::new("culvert"), "edge-1"),
                &[],
            )
            .unwrap();
        assert_ne!(state.next_key().unwrap().serialize_pem(), key);
    }

    #[test]
    fn a_renewal_keeps_the_proxies() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::new(root.path());
        let authority = Authority::new("culvert");
        state
            .store_join(
                &IdentityText::for_tests(&authority, "edge-1"),
                &["p:1".parse().unwrap()],
            )
            .unwrap();
        let renewed = IdentityText::for_tests(&authority, "edge-1");
        let key = state.next_key().unwrap().serialize_pem();
        state
            .store(&state.renewed(renewed.clone()).unwrap())
            .unwrap();
        assert_eq!(
            state.identity().unwrap().parse().unwrap().chain,
            renewed.parse().unwrap().chain
        );
        assert_eq!(state.joined().unwrap().proxies.len(), 1);
        assert_ne!(
            state.next_key().unwrap().serialize_pem(),
            key,
            "each renewal has a key of its own"
        );
    }
}
