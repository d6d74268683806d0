//! The last directory on disk, installed after a reboot before anything waits for the proxy.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::{Drain, chain};
use tokio::sync::watch;

use super::{Directory, Feed};

/// Ten thousand nodes take about 5 MB; a longer file is not a saved directory.
const MAX_BYTES: u64 = 64 << 20;
/// Pause after a directory could not be saved, as on a full disk.
const SAVE_AGAIN: Duration = Duration::from_secs(5);

/// The file in the state directory.
#[derive(Clone, Debug)]
pub(crate) struct SavedDirectory {
    path: PathBuf,
}

/// A saved directory that cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SavedDirectoryError {
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

impl SavedDirectory {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("directory.json"),
        }
    }

    /// The saved directory; `None` before the first was saved.
    pub(crate) fn load(&self) -> Result<Option<Directory>, SavedDirectoryError> {
        let bytes = match std::fs::metadata(&self.path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.not_read(error)),
        };
        if bytes > MAX_BYTES {
            return Err(SavedDirectoryError::TooLong {
                path: self.path.clone(),
                bytes,
            });
        }
        let text = std::fs::read(&self.path).map_err(|error| self.not_read(error))?;
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| SavedDirectoryError::Parse {
                path: self.path.clone(),
                source,
            })
    }

    /// The saved directory. A broken one is logged and ignored: the proxy sends another.
    pub(crate) fn load_or_report(&self) -> Option<Directory> {
        match self.load() {
            Ok(directory) => directory,
            Err(error) => {
                tracing::error!(reason = chain(&error), "saved directory ignored");
                None
            }
        }
    }

    /// Saves each directory that the proxy sends, unless only the nodes' tunnels have changed.
    /// Ends when the drain begins.
    pub(crate) async fn follow(self, mut feed: watch::Receiver<Feed>, drain: Drain) -> Result<()> {
        let mut on_disk: Option<Arc<Directory>> = None;
        loop {
            let received = feed.borrow_and_update().clone();
            let mut failed = false;
            if let Some(new) = unsaved(received, on_disk.as_deref()) {
                // Waits for the disk.
                match tokio::task::block_in_place(|| self.save(&new)) {
                    Ok(()) => on_disk = Some(new),
                    Err(error) => {
                        tracing::error!(reason = chain(&error), "directory not saved");
                        failed = true;
                    }
                }
            }
            tokio::select! {
                // First: the directory's task may end first.
                biased;
                () = drain.begun() => return Ok(()),
                changed = feed.changed() => changed.context("the directory's task has ended")?,
                () = tokio::time::sleep(SAVE_AGAIN), if failed => {}
            }
        }
    }

    /// Replaces the saved directory.
    pub(crate) fn save(&self, directory: &Directory) -> Result<(), SavedDirectoryError> {
        let text = serde_json::to_vec(directory).map_err(|error| self.not_written(error.into()))?;
        culvert_daemon::write_atomic(&self.path, &text, 0o600)
            .map_err(|error| self.not_written(error))
    }

    fn not_read(&self, source: io::Error) -> SavedDirectoryError {
        SavedDirectoryError::Read {
            path: self.path.clone(),
            source,
        }
    }

    fn not_written(&self, source: io::Error) -> SavedDirectoryError {
        SavedDirectoryError::Write {
            path: self.path.clone(),
            source,
        }
    }

    /// Removes it, for `uninstall`.
    pub(crate) fn remove(&self) -> Result<(), SavedDirectoryError> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SavedDirectoryError::Write {
                    path: self.path.clone(),
                    source: error,
                })
            }
            _ => Ok(()),
        }
    }
}

/// What the proxy has sent, if it steers otherwise than what is on disk.
fn unsaved(received: Feed, on_disk: Option<&Directory>) -> Option<Arc<Directory>> {
    if !received.is_live() {
        return None;
    }
    let new = received.directory?;
    match on_disk {
        Some(old) if old.steers_like(&new) => None,
        _ => Some(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::examples;

    #[test]
    fn what_was_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let saved = SavedDirectory::new(dir.path());
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
        let error = SavedDirectory::new(dir.path()).load().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("directory.json is not a saved directory"),
            "{error}"
        );
    }
}
