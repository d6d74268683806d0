//! The proxy's state directory: JSON files with a version, strictly parsed, replaced atomically,
//! and locked by one process. One file is only appended to: the ledger (`trust/ledger/file.rs`).

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_daemon::{Handed, HandedKind, Listeners, write_atomic};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the layout of every state file. A newer one is refused.
pub const FORMAT: u32 = 1;
/// Only the proxy's user may read state and keys.
pub const PRIVATE: u32 = 0o600;
/// The file that is locked.
const LOCK: &str = "lock";
/// Twice the size of the state for 100,000 nodes. A larger file was not written by the proxy.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The state directory, locked for this process. Clones share the lock.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
    lock: Arc<RwLock<Lock>>,
}

/// The lock of the directory. It is held as long as any process has the file open: the proxy that
/// runs passes it to its successor.
#[derive(Debug)]
struct Lock {
    file: Option<File>,
    is_frozen: bool,
}

/// While this exists, nothing is written to the directory.
pub struct Frozen(Option<StateDir>);

/// The failures of the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be made.
    #[error(
        "make the state directory {}: give the proxy a --state-dir that it may write to",
        path.display()
    )]
    Make {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process uses it.
    #[error(
        "another culvert-proxy uses the state directory {}: stop it, or give this one its own \
         --state-dir",
        path.display()
    )]
    Busy {
        /// The file or folder.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("write {}: until that works nothing of it can be changed", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another proxy takes it over, so nothing is written.
    #[error(
        "{} cannot be changed while one proxy takes the place of another on this host: try again \
         in a few seconds",
        path.display()
    )]
    Frozen {
        /// The file or folder.
        path: PathBuf,
    },
    /// The file is not what this program writes.
    #[error(
        "{}, line {line}, column {column}: {source}: restore the file from a backup, or move it \
         away to begin without {what}",
        path.display()
    )]
    Broken {
        /// The file or folder.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The column.
        column: usize,
        /// What it has.
        what: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
    /// A newer program has written the file.
    #[error(
        "{} has format {found}, this culvert-proxy reads {FORMAT}: run the version that wrote it",
        path.display()
    )]
    Newer {
        /// The file or folder.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file has what cannot be.
    #[error(
        "{}: {problem}: restore the file from a backup, or move it away to begin without {what}",
        path.display()
    )]
    Invalid {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// What it has.
        what: &'static str,
    },
}

/// A state file: its name in the directory, and for people what is lost without it.
#[derive(Clone, Copy, Debug)]
pub struct StateFile {
    /// The name in the directory.
    pub name: &'static str,
    /// What it has.
    pub what: &'static str,
}

#[derive(Deserialize)]
struct Format {
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Versioned<T> {
    version: u32,
    state: T,
}

impl StateDir {
    /// Creates the directory with mode 0700 if it is missing, and locks it, unless the lock is
    /// inherited from another process.
    pub fn open_or_inherit(path: &Path, inherited: &Listeners) -> Result<Self, StateError> {
        let file = lock_file(path)?;
        let file = match inherited.locked(&path.join(LOCK)) {
            Some(locked) => locked,
            None => lock(file, path)?,
        };
        Ok(Self {
            path: path.to_owned(),
            lock: Arc::new(RwLock::new(Lock {
                file: Some(file),
                is_frozen: false,
            })),
        })
    }

    /// Waits for the present change, and lets no other begin. A change is an error meanwhile.
    pub fn freeze(&self) -> Frozen {
        self.change_lock(|lock| lock.is_frozen = true);
        Frozen(Some(self.clone()))
    }

    /// A copy of the lock for another process.
    pub fn lock_copy(&self) -> io::Result<Option<(Handed, OwnedFd)>> {
        let lock = self.lock.read();
        let Some(file) = &lock.file else {
            return Ok(None);
        };
        let handed = Handed {
            kind: HandedKind::Lock.name().to_owned(),
            at: self.path.join(LOCK).display().to_string(),
        };
        Ok(Some((handed, file.try_clone()?.into())))
    }

    fn change_lock(&self, change: impl FnOnce(&mut Lock)) {
        change(&mut self.lock.write());
    }

    /// The permission to write a file.
    pub fn unfrozen(&self, path: &Path) -> Result<impl Drop + use<'_>, StateError> {
        let lock = self.lock.read();
        if lock.is_frozen {
            return Err(StateError::Frozen {
                path: path.to_owned(),
            });
        }
        Ok(lock)
    }

    /// Path of a file in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The file's content; `None` if there is no file yet. A file that does not parse is an error
    /// and stays as it is.
    pub fn read<T: DeserializeOwned>(&self, file: StateFile) -> Result<Option<T>, StateError> {
        let path = self.join(file.name);
        let text = match read_bounded(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateError::Read { path, source }),
        };
        parse(&text, &path, file).map(Some)
    }

    /// Replaces the file atomically. It is on disk when this returns.
    pub fn write<T: Serialize>(&self, file: StateFile, content: &T) -> Result<(), StateError> {
        let path = self.join(file.name);
        let text = text(content).map_err(|source| StateError::Write { path, source })?;
        self.write_text(file.name, &text)
    }

    /// Replaces the file with this text atomically. It is on disk when this returns.
    pub(crate) fn write_text(&self, name: &str, text: &[u8]) -> Result<(), StateError> {
        let path = self.join(name);
        let _unfrozen = self.unfrozen(&path)?;
        let written = write_atomic(&path, text, PRIVATE);
        written.map_err(|source| StateError::Write { path, source })
    }

    /// An error about content that parses but is not plausible.
    pub(crate) fn invalid(&self, file: StateFile, problem: impl Into<String>) -> StateError {
        StateError::Invalid {
            path: self.join(file.name),
            problem: problem.into(),
            what: file.what,
        }
    }
}

impl Frozen {
    /// Another process has the directory.
    pub fn for_ever(mut self) {
        if let Some(state) = self.0.take() {
            state.change_lock(|lock| lock.file = None);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            state.change_lock(|lock| lock.is_frozen = false);
        }
    }
}

/// Creates the directory and its lock file if they are missing.
fn lock_file(path: &Path) -> Result<File, StateError> {
    open_lock(path).map_err(|source| StateError::Make {
        path: path.to_owned(),
        source,
    })
}

fn open_lock(path: &Path) -> io::Result<File> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)?;
    let path = path.join(LOCK);
    let opened = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    match opened {
        // A proxy serves on what it stored before the disk became read-only.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        opened => opened,
    }
}

fn lock(file: File, path: &Path) -> Result<File, StateError> {
    let path = path.to_owned();
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StateError::Busy { path }),
        Err(TryLockError::Error(source)) => Err(StateError::Make { path, source }),
    }
}

/// The content in the text of the file at `path`.
pub fn parse<T: DeserializeOwned>(
    text: &str,
    path: &Path,
    file: StateFile,
) -> Result<T, StateError> {
    let Format { version } =
        serde_json::from_str(text).map_err(|source| broken(source, path, file))?;
    if version != FORMAT {
        return Err(StateError::Newer {
            path: path.to_owned(),
            found: version,
        });
    }
    match serde_json::from_str::<Versioned<T>>(text) {
        Ok(content) => Ok(content.state),
        Err(source) => Err(broken(source, path, file)),
    }
}

fn broken(source: serde_json::Error, path: &Path, file: StateFile) -> StateError {
    StateError::Broken {
        path: path.to_owned(),
        line: source.line(),
        column: source.column(),
        what: file.what,
        source,
    }
}

/// The text of a file with this content. It is compact: pretty-printed, ten thousand nodes would
/// take several times as much.
pub fn text<T: Serialize>(content: &T) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(&Versioned {
        version: FORMAT,
        state: content,
    })?;
    text.push(b'\n');
    Ok(text)
}

/// The text of a file that someone else may have written.
pub fn read_bounded(path: &Path) -> io::Result<String> {
    let size = std::fs::metadata(path)?.len();
    if size > MAX_FILE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{size} bytes, at most {MAX_FILE_BYTES} are read"),
        ));
    }
    std::fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: StateFile = StateFile {
        name: "things.json",
        what: "the things",
    };

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    struct Things {
        names: Vec<String>,
    }

    #[test]
    fn a_state_file_is_read_back_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        assert!(state.read::<Things>(FILE).unwrap().is_none());
        let things = Things {
            names: vec!["one".into()],
        };
        state.write(FILE, &things).unwrap();
        assert_eq!(state.read::<Things>(FILE).unwrap().unwrap(), things);
        let mode = std::fs::metadata(state.join(FILE.name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, PRIVATE);
    }

    #[test]
    fn a_broken_file_is_an_error_with_its_position_and_the_fix_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        for (text, expected) in [
            (
                "{\"version\": 1,\n \"state\": {\"names\": [1]}}",
                "line 2, column",
            ),
            ("{\"version\": 2}", "format 2"),
            ("", "line 1"),
        ] {
            std::fs::write(state.join(FILE.name), text).unwrap();
            let error = state.read::<Things>(FILE).unwrap_err().to_string();
            assert!(
                error.contains("things.json") && error.contains(expected),
                "{error}"
            );
            assert_eq!(
                std::fs::read_to_string(state.join(FILE.name)).unwrap(),
                text
            );
        }
    }

    #[test]
    fn two_proxies_cannot_share_a_state_directory() {
        let directory = tempfile::tempdir().unwrap();
        let first = StateDir::open(directory.path()).unwrap();
        assert!(matches!(
            StateDir::open(directory.path()),
            Err(StateError::Busy { .. })
        ));
        drop(first);
        StateDir::open(directory.path()).unwrap();
    }

    #[test]
    fn a_directory_is_passed_on_without_a_moment_in_which_a_third_could_have_it() {
        let directory = tempfile::tempdir().unwrap();
        let things = Things { names: Vec::new() };
        let old = StateDir::open(directory.path()).unwrap();
        let frozen = old.freeze();
        assert!(matches!(
            old.write(FILE, &things),
            Err(StateError::Frozen { .. })
        ));
        let (lock, descriptor) = old.lock_copy().unwrap().unwrap();
        let passed = Listeners::default();
        passed.inherit(vec![lock], vec![descriptor]);
        let new = StateDir::open_or_inherit(directory.path(), &passed).unwrap();
        frozen.for_ever();
        assert!(old.write(FILE, &things).is_err() && old.lock_copy().unwrap().is_none());
        new.write(FILE, &things).unwrap();
        let third = || StateDir::open(directory.path());
        assert!(matches!(third(), Err(StateError::Busy { .. })));
        drop(new);
        third().unwrap();
    }

    #[test]
    fn a_proxy_whose_successor_died_writes_again() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        let frozen = state.freeze();
        drop(state.lock_copy().unwrap());
        drop(frozen);
        let things = Things { names: Vec::new() };
        state.write(FILE, &things).unwrap();
        assert!(matches!(
            StateDir::open(directory.path()),
            Err(StateError::Busy { .. })
        ));
    }
}
