//! One redirector at a time: two would undo each other's work, and one would restore what `uninstall` removes.

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A lock on the state directory, for as long as the process lives.
#[derive(Debug)]
pub(crate) struct Alone(#[expect(dead_code, reason = "open, it holds the lock")] File);

/// A state directory that cannot be had alone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AloneError {
    #[error("open the state directory {path}; another one: --state-dir")]
    Open { path: PathBuf, source: io::Error },
    #[error(
        "a redirector is running with the state directory {path}: stop it first (systemctl stop culvert-redirector)"
    )]
    Running { path: PathBuf },
}

impl Alone {
    /// Makes the directory if it is missing. Nothing is written: a full disk is no obstacle.
    pub(crate) fn take(state_dir: &Path) -> Result<Self, AloneError> {
        let path = state_dir.to_owned();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(state_dir);
        let directory = match made.and_then(|()| File::open(state_dir)) {
            Ok(directory) => directory,
            Err(source) => return Err(AloneError::Open { path, source }),
        };
        match directory.try_lock() {
            Ok(()) => Ok(Self(directory)),
            Err(TryLockError::WouldBlock) => Err(AloneError::Running { path }),
            Err(TryLockError::Error(source)) => Err(AloneError::Open { path, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_had_by_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made");
        let first = Alone::take(&path).unwrap();
        assert!(matches!(Alone::take(&path), Err(AloneError::Running { .. })));
        drop(first);
        Alone::take(&path).unwrap();
    }
}
