//! One redirector at a time: two would undo each other's work, and one would restore what
//! `uninstall` removes. Both the state directory and the BPF file system are locked, since another
//! redirector may share only one of them.

use std::fs::{DirBuilder, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Locks on directories, held as long as the process lives.
#[derive(Debug)]
pub(crate) struct InstanceLock(Vec<File>);

/// A directory that cannot be locked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstanceLockError {
    #[error("open the state directory {path}; another one: --state-dir")]
    Open { path: PathBuf, source: io::Error },
    #[error(
        "a redirector is running with {path}: stop it first (systemctl stop culvert-redirector)"
    )]
    Running { path: PathBuf },
}

impl InstanceLock {
    /// Takes the lock for the daemon. Creates the state directory if it is missing; writes nothing,
    /// so a full disk does no harm.
    pub(crate) fn acquire(state_dir: &Path, bpffs: &Path) -> Result<Self, InstanceLockError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)
            .map_err(|source| InstanceLockError::Open {
                path: state_dir.to_owned(),
                source,
            })?;
        Self::acquire_existing(state_dir, bpffs)
    }

    /// Takes the lock for a removal, which skips missing directories. systemd mounts the BPF file
    /// system for root only, so no other user can lock it.
    pub(crate) fn acquire_existing(
        state_dir: &Path,
        bpffs: &Path,
    ) -> Result<Self, InstanceLockError> {
        let mut locks = Vec::new();
        if state_dir.exists() {
            locks.push(lock(state_dir)?);
        }
        match lock(bpffs) {
            Ok(locked) => locks.push(locked),
            // No bpffs here, so no redirector can have hooks.
            Err(InstanceLockError::Open { .. }) => {}
            Err(running @ InstanceLockError::Running { .. }) => return Err(running),
        }
        Ok(Self(locks))
    }

    /// Also locks a BPF file system that was mounted after the start; keeps earlier locks.
    pub(crate) fn extend(&mut self, bpffs: &Path) -> Result<(), InstanceLockError> {
        let wanted = std::fs::metadata(bpffs).ok().map(inode);
        if !self
            .0
            .iter()
            .any(|held| held.metadata().ok().map(inode) == wanted)
        {
            self.0.push(lock(bpffs)?);
        }
        Ok(())
    }
}

fn lock(directory: &Path) -> Result<File, InstanceLockError> {
    let path = directory.to_owned();
    let file = match File::open(directory) {
        Ok(file) => file,
        Err(source) => return Err(InstanceLockError::Open { path, source }),
    };
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(InstanceLockError::Running { path }),
        Err(TryLockError::Error(source)) => Err(InstanceLockError::Open { path, source }),
    }
}

/// What distinguishes a file from all others.
fn inode(metadata: Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_had_by_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let (path, bpffs) = (directory.path().join("made"), directory.path().join("none"));
        let first = InstanceLock::acquire(&path, &bpffs).unwrap();
        assert!(matches!(
            InstanceLock::acquire(&path, &bpffs),
            Err(InstanceLockError::Running { .. })
        ));
        drop(first);
        InstanceLock::acquire(&path, &bpffs).unwrap();
    }

    #[test]
    fn a_bpf_file_system_that_comes_later_is_had_alone_too() {
        let [first, second, bpffs] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let mut running =
            InstanceLock::acquire(first.path(), &bpffs.path().join("not mounted")).unwrap();
        for _again in 0..2 {
            running.extend(bpffs.path()).unwrap();
        }
        assert!(matches!(
            InstanceLock::acquire(second.path(), bpffs.path()),
            Err(InstanceLockError::Running { .. })
        ));
    }

    #[test]
    fn another_state_directory_does_not_hide_a_redirector() {
        let [first, second, bpffs] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let _running = InstanceLock::acquire(first.path(), bpffs.path()).unwrap();
        let error = InstanceLock::acquire_existing(second.path(), bpffs.path()).unwrap_err();
        assert!(
            matches!(&error, InstanceLockError::Running { path } if path == bpffs.path()),
            "{error}"
        );
    }
}
