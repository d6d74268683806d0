//! The paths of pinned maps and links: `<bpffs>/culvert/v1/{maps,links}/`.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use culvert_redirector_common::names::{BINDING, MAPS, PIN_ROOT, PROGRAMS};
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
    #[error("make {path}{confinement}")]
    Make {
        path: PathBuf,
        confinement: Confinement,
        source: io::Error,
    },
    #[error("remove {path}")]
    Remove { path: PathBuf, source: io::Error },
}

/// The AppArmor or SELinux label of this process, if it may forbid what root's capabilities allow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Confinement(Option<String>);

impl Confinement {
    fn of_this_process() -> Self {
        Self::by(&std::fs::read_to_string("/proc/self/attr/current").unwrap_or_default())
    }

    /// Parses the text of `/proc/self/attr/current`, such as `cri-containerd.apparmor.d (enforce)`.
    fn by(label: &str) -> Self {
        let label = label.trim_end_matches(['\0', '\n']);
        let is_free = label.is_empty()
            || ["unconfined", "spc_t", "kernel"]
                .iter()
                .any(|free| label.contains(free));
        if is_free {
            Self(None)
        } else {
            Self(Some(label.to_owned()))
        }
    }
}

impl std::fmt::Display for Confinement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(label) => {
                write!(
                    f,
                    " under the AppArmor profile or SELinux label {label:?} (run it unconfined: \
                     docs/cni.md)"
                )
            }
            None => Ok(()),
        }
    }
}

impl Pins {
    pub(crate) fn new(bpffs: &Path) -> Self {
        Self {
            bpffs: bpffs.to_owned(),
        }
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

    /// The directory of this version's pins.
    pub(crate) fn root(&self) -> PathBuf {
        self.bpffs.join(PIN_ROOT)
    }

    /// Whether a link of any version is pinned. If so, connects may be steered.
    pub(crate) fn any_link(&self) -> bool {
        PROGRAMS.iter().any(|name| self.link(name).exists()) || !self.other_links().is_empty()
    }

    /// Links of other versions of the layouts, which an upgrade or a rollback leaves behind. The
    /// proxy cannot read the destinations of connections that they steer.
    pub(crate) fn other_links(&self) -> Vec<PathBuf> {
        self.other_pins("links")
    }

    /// Removes all pins of other versions, links first. Returns the removed paths.
    pub(crate) fn remove_others(&self) -> Result<Vec<PathBuf>, PinError> {
        let removed = remove_all(
            self.other_pins("links")
                .into_iter()
                .chain(self.other_pins("maps")),
        )?;
        for root in self.other_versions() {
            remove_directories([root.join("maps"), root.join("links"), root])?;
        }
        Ok(removed)
    }

    fn other_pins(&self, kind: &str) -> Vec<PathBuf> {
        self.other_versions()
            .iter()
            .flat_map(|root| entries(&root.join(kind)))
            .collect()
    }

    /// The directories of other versions, such as `culvert/v2`.
    fn other_versions(&self) -> Vec<PathBuf> {
        let own = self.root();
        let all = own.parent().map(entries).unwrap_or_default();
        all.into_iter()
            .filter(|path| is_version(path) && *path != own)
            .collect()
    }

    /// Whether any of our maps is pinned.
    pub(crate) fn any_map(&self) -> bool {
        MAPS.iter().any(|name| self.map(name).exists())
    }

    /// Whether all of our maps are pinned.
    pub(crate) fn has_all_maps(&self) -> bool {
        MAPS.iter().all(|name| self.map(name).exists())
    }

    /// Creates the directories.
    pub(super) fn prepare(&self) -> Result<(), PinError> {
        let is_bpffs = statfs(&self.bpffs).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC);
        if !is_bpffs {
            return Err(PinError::NotBpffs {
                bpffs: self.bpffs.clone(),
            });
        }
        // The proxy runs as another user and must reach the one map that it reads.
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o755);
        for directory in ["maps", "links"] {
            let path = self.root().join(directory);
            builder.create(&path).map_err(|source| PinError::Make {
                path,
                confinement: Confinement::of_this_process(),
                source,
            })?;
        }
        Ok(())
    }

    /// Removes all pins, and then the empty directories. The connect hooks go first, so that they
    /// steer nothing while the rest is removed. Returns the removed paths.
    pub(crate) fn remove(&self) -> Result<Vec<PathBuf>, PinError> {
        let mut removed = self.remove_links()?;
        removed.extend(remove_all(MAPS.iter().map(|name| self.map(name)))?);
        removed.extend(self.remove_others()?);
        let root = self.root();
        let parent = root.parent().map(Path::to_owned);
        remove_directories(
            [root.join("maps"), root.join("links"), root]
                .into_iter()
                .chain(parent),
        )?;
        Ok(removed)
    }

    /// Removes the links, so that nothing is steered, and keeps the maps. Returns the removed
    /// paths.
    pub(crate) fn remove_links(&self) -> Result<Vec<PathBuf>, PinError> {
        let own = PROGRAMS
            .iter()
            .rev()
            .map(|name| self.link(name))
            .chain(self.left_overs());
        remove_all(own.chain(self.other_links()))
    }

    /// Removes the links of the programs that keep ports. Returns the removed paths.
    pub(super) fn remove_binding(&self) -> Result<Vec<PathBuf>, PinError> {
        let mut pins = Vec::new();
        for name in BINDING {
            pins.push(self.link(name));
            pins.push(self.replacement(name));
        }
        remove_all(pins.into_iter())
    }

    /// Links that were being replaced when a redirector died.
    fn left_overs(&self) -> impl Iterator<Item = PathBuf> {
        PROGRAMS.iter().map(|name| self.replacement(name))
    }

    /// The pin of a link that will replace another.
    pub(super) fn replacement(&self, name: &str) -> PathBuf {
        self.root().join("links").join(format!("{name}_new"))
    }
}

/// Removes directories that are empty.
fn remove_directories(paths: impl IntoIterator<Item = PathBuf>) -> Result<(), PinError> {
    for path in paths {
        match std::fs::remove_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(source) if path.exists() => return Err(PinError::Remove { path, source }),
            // On a read-only file system the kernel reports EROFS also for a path that does not
            // exist.
            Err(_none) => {}
        }
    }
    Ok(())
}

fn remove_all(pins: impl Iterator<Item = PathBuf>) -> Result<Vec<PathBuf>, PinError> {
    let mut removed = Vec::new();
    for path in pins {
        match std::fs::remove_file(&path) {
            Ok(()) => removed.push(path),
            Err(source) if path.exists() => return Err(PinError::Remove { path, source }),
            Err(_none) => {}
        }
    }
    Ok(removed)
}

/// The paths in a directory; empty if it does not exist.
fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

/// The kernel's id of a cgroup, which is the inode of its directory.
pub(crate) fn cgroup_id(directory: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(directory)?.ino())
}

/// Whether a directory is named as those of versions are, such as `v2`.
fn is_version(path: &Path) -> bool {
    let Some(name) = path.file_name() else {
        return false;
    };
    match name.to_string_lossy().strip_prefix('v') {
        Some(number) => number.parse::<u32>().is_ok(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_confines_a_process_is_named_with_the_fix() {
        for free in [
            "",
            "unconfined\n",
            "kernel",
            "system_u:system_r:spc_t:s0",
            "unconfined_u:unconfined_r:unconfined_t:s0",
        ] {
            assert_eq!(Confinement::by(free).to_string(), "", "{free}");
        }
        let source = io::Error::from_raw_os_error(13);
        let confinement = Confinement::by("cri-containerd.apparmor.d (enforce)\n");
        let said = PinError::Make {
            path: "/sys/fs/bpf/culvert".into(),
            confinement,
            source,
        }
        .to_string();
        let words = "SELinux label \"cri-containerd.apparmor.d (enforce)\" (run it unconfined";
        assert!(
            said.starts_with("make /sys/fs/bpf/culvert under") && said.contains(words),
            "{said}"
        );
    }

    #[test]
    fn pins_of_all_versions_are_removed_and_nothing_else() {
        let bpffs = tempfile::tempdir().unwrap();
        let pins = Pins::new(bpffs.path());
        assert!(!pins.any_link());
        let file = |path: &str| {
            let path = bpffs.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let own = file("culvert/v1/links/cv_connect4");
        let other = file("culvert/v2/links/cv_other");
        let map = file("culvert/v2/maps/cv_config");
        let strangers = [file("culvert/notes"), file("other/v2/links/link")];
        assert_eq!(pins.other_links(), std::slice::from_ref(&other));
        assert_eq!(pins.remove_others().unwrap(), [other, map]);
        assert!(own.exists() && pins.any_link() && !bpffs.path().join("culvert/v2").exists());
        assert_eq!(pins.remove().unwrap(), [own]);
        assert!(strangers.iter().all(|path| path.exists()) && !pins.any_link());
    }
}
