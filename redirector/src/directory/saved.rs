//! The last directory on disk, installed after a reboot before anything waits for the proxy.

use std::io;
use std::path::{Path, PathBuf};

use super::Directory;
#[cfg(any(test, fuzzing))]
use crate::plan::{Freshness, plan};

/// Ten thousand nodes are some 5 MB; a longer file is not ours.
const MAX_BYTES: u64 = 64 << 20;

/// The file in the state directory.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    path: PathBuf,
}

/// A saved directory that cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SavedError {
    #[error("read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is {bytes} bytes long, which no saved directory is; remove it")]
    TooLong { path: PathBuf, bytes: u64 },
    #[error("{path} is not a saved directory; remove it")]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("write {path}")]
    Write { path: PathBuf, source: io::Error },
}

impl Saved {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("directory.json"),
        }
    }

    /// The saved directory; none before the first was saved.
    pub(crate) fn load(&self) -> Result<Option<Directory>, SavedError> {
        let read = |source| SavedError::Read {
            path: self.path.clone(),
            source,
        };
        let bytes = match std::fs::metadata(&self.path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(read(error)),
        };
        if bytes > MAX_BYTES {
            return Err(SavedError::TooLong {
                path: self.path.clone(),
                bytes,
            });
        }
        let text = std::fs::read(&self.path).map_err(read)?;
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| SavedError::Parse {
                path: self.path.clone(),
                source,
            })
    }

    /// Replaces the saved directory.
    pub(crate) fn save(&self, directory: &Directory) -> Result<(), SavedError> {
        let write = |source| SavedError::Write {
            path: self.path.clone(),
            source,
        };
        let text = serde_json::to_vec(directory).map_err(|error| write(error.into()))?;
        culvert_daemon::write_atomic(&self.path, &text, 0o600).map_err(write)
    }

    /// Removes it, for `uninstall`.
    pub(crate) fn remove(&self) -> Result<(), SavedError> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SavedError::Write {
                path: self.path.clone(),
                source: error,
            }),
            _ => Ok(()),
        }
    }
}

/// What a file says, written again; what follows from it is worked out on the way. For fuzzing.
#[cfg(any(test, fuzzing))]
pub(crate) fn rewritten(text: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let directory: Directory = serde_json::from_slice(text)?;
    for freshness in [Freshness::Live, Freshness::Stale] {
        drop(plan(&directory, freshness));
    }
    drop(directory.owners());
    serde_json::to_vec(&directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::examples;

    #[test]
    fn what_was_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let saved = Saved::new(dir.path());
        assert_eq!(saved.load().unwrap(), None);
        saved.save(&examples::directory()).unwrap();
        assert_eq!(saved.load().unwrap(), Some(examples::directory()));
        saved.remove().unwrap();
        saved.remove().unwrap();
        assert_eq!(saved.load().unwrap(), None);
    }

    #[test]
    fn a_broken_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("directory.json"), "{\"revision\":").unwrap();
        let error = Saved::new(dir.path()).load().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("directory.json is not a saved directory"),
            "{error}"
        );
    }
}
