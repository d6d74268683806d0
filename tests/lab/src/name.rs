//! Names of labs. The name is the prefix of every namespace, cgroup and folder of a lab, so that
//! labs do not collide and the remains of a killed run are found.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::cgroup;

/// The folder of the labs' files and locks. Only root may write there, and paths of sockets stay
/// short.
const RUN: &str = "/run";

/// The name of a test's lab, before its number.
const TEST: &str = "culvert-test-";

/// A lab's name. Only one lab of each name can be up on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabName(String);

impl LabName {
    /// The lab of `cargo xtask demo`.
    pub fn demo() -> Self {
        Self("culvert-demo".to_owned())
    }

    /// The lab of `cargo xtask bench`.
    pub fn bench() -> Self {
        Self("culvert-bench".to_owned())
    }

    /// Locks the first test lab name that is free.
    pub(crate) fn lock_for_test() -> Result<(Self, NameLock)> {
        let names = (1..u16::MAX).map(|number| Self(format!("{TEST}{number}")));
        for name in names {
            if let Some(lock) = name.lock()? {
                return Ok((name, lock));
            }
        }
        bail!("all names for labs of tests are taken")
    }

    /// Names of test labs that were taken at some time.
    pub(crate) fn taken_by_tests() -> Result<Vec<Self>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(RUN).with_context(|| format!("list {RUN}"))? {
            let file = entry?.file_name();
            if let Some(file) = file.to_str()
                && let Some(name) = file.strip_suffix(".lock")
                && name.starts_with(TEST)
            {
                names.push(Self(name.to_owned()));
            }
        }
        Ok(names)
    }

    /// The prefix of everything that the lab creates.
    pub fn prefix(&self) -> &str {
        &self.0
    }

    /// The folder of the lab's files: sockets, state, logs.
    pub fn folder(&self) -> PathBuf {
        Path::new(RUN).join(&self.0)
    }

    pub(crate) fn netns(&self, host: &str) -> String {
        format!("{}-{host}", self.0)
    }

    pub(crate) fn cgroup(&self) -> Result<PathBuf> {
        Ok(cgroup::mount_point()?.join(&self.0))
    }

    /// Locks the name; `None` if another lab has it.
    pub(crate) fn lock(&self) -> Result<Option<NameLock>> {
        let path = self.folder().with_extension("lock");
        loop {
            let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
            let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => lock,
                Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
                Err((_, errno)) => {
                    return Err(errno).with_context(|| format!("lock {}", path.display()));
                }
            };
            // The previous holder may have removed the file since it was opened.
            if is_at(&lock, &path).with_context(|| format!("look at {}", path.display()))? {
                return Ok(Some(NameLock { lock, path }));
            }
        }
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(found.ino() == file.metadata()?.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The lock on a name. The kernel releases it when this process ends in any way.
pub(crate) struct NameLock {
    #[expect(dead_code, reason = "held, never read")]
    lock: Flock<File>,
    path: PathBuf,
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // Remove it while it is locked: without the file, no other run finds a lab to remove.
        std::fs::remove_file(&self.path).ok();
    }
}
