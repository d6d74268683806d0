//! Where things are pinned: `<bpffs>/culvert/v1/{maps,links}/`.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use culvert_redirector_common::names::{MAPS, PIN_ROOT, PROGRAMS};
use nix::sys::statfs::{FsType, statfs};

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: FsType = FsType(0xcafe_4a11);

/// The pins of this version of the layouts.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    bpffs: PathBuf,
}

/// A BPF file system that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PinError {
    #[error("{bpffs} is not a BPF file system; mount one: mount -t bpf bpf {bpffs}")]
    NotBpffs { bpffs: PathBuf },
    #[error("make {path}")]
    Make { path: PathBuf, source: io::Error },
    #[error("remove {path}")]
    Remove { path: PathBuf, source: io::Error },
}

impl Pins {
    pub(crate) fn new(bpffs: &Path) -> Self {
        Self { bpffs: bpffs.to_owned() }
    }

    /// The pin of a map.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.root().join("maps").join(name)
    }

    /// The pin of a program's link.
    pub(super) fn link(&self, name: &str) -> PathBuf {
        self.root().join("links").join(name)
    }

    /// The BPF file system, which others use too.
    pub(crate) fn bpffs(&self) -> &Path {
        &self.bpffs
    }

    /// Where everything is.
    pub(crate) fn root(&self) -> PathBuf {
        self.bpffs.join(PIN_ROOT)
    }

    /// Whether any of our links is pinned, that is whether connects may be steered.
    pub(crate) fn any_link(&self) -> bool {
        PROGRAMS.iter().any(|name| self.link(name).exists())
    }

    /// Whether any of our maps is pinned.
    pub(crate) fn any_map(&self) -> bool {
        MAPS.iter().any(|name| self.map(name).exists())
    }

    /// Whether all of our maps are pinned.
    pub(crate) fn has_all_maps(&self) -> bool {
        MAPS.iter().all(|name| self.map(name).exists())
    }

    /// Makes the directories.
    pub(super) fn prepare(&self) -> Result<(), PinError> {
        let is_bpffs = statfs(&self.bpffs).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC);
        if !is_bpffs {
            return Err(PinError::NotBpffs { bpffs: self.bpffs.clone() });
        }
        // The proxy, another user, passes through to the one map it reads.
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o755);
        for directory in ["maps", "links"] {
            let path = self.root().join(directory);
            builder.create(&path).map_err(|source| PinError::Make { path, source })?;
        }
        Ok(())
    }

    /// Removes all pins, the connect hooks' first so that nothing is steered into what is half gone, then the directories
    /// that are empty. Returns what there was.
    pub(crate) fn remove(&self) -> Result<Vec<PathBuf>, PinError> {
        let mut removed = self.remove_links()?;
        removed.extend(remove_all(MAPS.iter().map(|name| self.map(name)))?);
        self.remove_directories()?;
        Ok(removed)
    }

    /// Removes what steers, and leaves the maps. Returns what there was.
    pub(crate) fn remove_links(&self) -> Result<Vec<PathBuf>, PinError> {
        remove_all(PROGRAMS.iter().rev().map(|name| self.link(name)).chain(self.left_overs()))
    }

    /// Links that were being replaced when the redirector died.
    fn left_overs(&self) -> impl Iterator<Item = PathBuf> {
        PROGRAMS.iter().map(|name| self.replacement(name))
    }

    /// The pin of a link that is about to replace another.
    pub(super) fn replacement(&self, name: &str) -> PathBuf {
        self.root().join("links").join(format!("{name}_new"))
    }

    fn remove_directories(&self) -> Result<(), PinError> {
        let root = self.root();
        let parent = root.parent().map(Path::to_owned);
        for path in [root.join("maps"), root.join("links"), root].into_iter().chain(parent) {
            match std::fs::remove_dir(&path) {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {}
                Err(source) => return Err(PinError::Remove { path, source }),
            }
        }
        Ok(())
    }
}

fn remove_all(pins: impl Iterator<Item = PathBuf>) -> Result<Vec<PathBuf>, PinError> {
    let mut removed = Vec::new();
    for path in pins {
        match std::fs::remove_file(&path) {
            Ok(()) => removed.push(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(PinError::Remove { path, source }),
        }
    }
    Ok(removed)
}

/// The id by which the kernel knows a cgroup: the inode of its directory.
pub(super) fn cgroup_id(directory: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(directory)?.ino())
}
