//! Finds the real root of the cgroup2 hierarchy, on unified and hybrid hosts, and distinguishes it
//! from a container's root.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::pins::cgroup_id;

/// Inode of the root directory of the cgroup2 hierarchy. The root of a cgroup namespace has another
/// inode.
pub(super) const ROOT_INODE: u64 = 1;

/// The cgroups of kubelet's pods, below the root; the name depends on kubelet's cgroup driver.
const PODS: [&str; 2] = ["kubepods", "kubepods.slice"];

/// Why no cgroup was found to attach to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CgroupError {
    #[error("read /proc/self/mountinfo")]
    MountInfo(#[source] io::Error),
    #[error(
        "no cgroup2 file system is mounted; mount one (mount -t cgroup2 none DIR) and give \
         --cgroup DIR"
    )]
    NotMounted,
    #[error(
        "{0:?} are roots of containers, not of the host, and would steer only this container: \
         give the host's cgroup2 root by --cgroup"
    )]
    NotTheRoot(Vec<PathBuf>),
    #[error(
        "--cgroup: {path} must be a directory of a cgroup2 file system{}",
        hint(root.as_deref())
    )]
    NotACgroup {
        path: PathBuf,
        root: Option<PathBuf>,
    },
    #[error("open the cgroup {path}")]
    Open { path: PathBuf, source: io::Error },
}

/// `given`, or the real root.
pub(crate) fn find(given: Option<&Path>) -> Result<PathBuf, CgroupError> {
    if let Some(given) = given {
        let is_cgroup2 = statfs(given).map(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC);
        return match is_cgroup2 {
            Ok(true) => Ok(given.to_owned()),
            Ok(false) => Err(CgroupError::NotACgroup {
                path: given.to_owned(),
                root: find(None).ok(),
            }),
            Err(error) => Err(CgroupError::Open {
                path: given.to_owned(),
                source: error.into(),
            }),
        };
    }
    let text = std::fs::read_to_string("/proc/self/mountinfo").map_err(CgroupError::MountInfo)?;
    let mounts = cgroup2_mounts(&text);
    if mounts.is_empty() {
        return Err(CgroupError::NotMounted);
    }
    mounts
        .iter()
        .find(|mount| is_real_root(mount))
        .cloned()
        .ok_or(CgroupError::NotTheRoot(mounts))
}

/// Names the cgroup2 root: on a hybrid host it is easily overlooked beside the cgroup v1
/// hierarchies.
fn hint(root: Option<&Path>) -> String {
    root.map(|root| {
        format!(
            "; this host's is {}, which is also the default",
            root.display()
        )
    })
    .unwrap_or_default()
}

/// Whether this process is in `cgroup` or below it. False if that cannot be determined, as in a
/// cgroup namespace.
pub(super) fn has_us(cgroup: &Path) -> bool {
    let Ok(own) = std::fs::read_to_string("/proc/self/cgroup") else {
        return false;
    };
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return false;
    };
    let Ok(wanted) = cgroup_id(cgroup) else {
        return false;
    };
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for mount in cgroup2_mounts(&mountinfo) {
        for level in mount.join(own).ancestors() {
            if !level.starts_with(&mount) {
                break;
            }
            if matches!(cgroup_id(level), Ok(id) if id == wanted) {
                return true;
            }
        }
    }
    false
}

/// Whether hooks on `cgroup` do not see the connections of this host's pods.
pub(crate) fn leaves_pods_out(cgroup: &Path) -> bool {
    let Ok(id) = cgroup_id(cgroup) else {
        return false;
    };
    let Ok(root) = find(None) else {
        return false;
    };
    if id == ROOT_INODE {
        return false;
    }
    for name in PODS {
        if let Ok(pods) = cgroup_id(&root.join(name))
            && pods != id
        {
            return true;
        }
    }
    false
}

/// The directory of the cgroup with this id; `None` if it was removed or is not visible from here.
pub(super) fn path_of(id: u64) -> Option<PathBuf> {
    let mut left = cgroup2_mounts(&std::fs::read_to_string("/proc/self/mountinfo").ok()?);
    while let Some(directory) = left.pop() {
        if cgroup_id(&directory).ok() == Some(id) {
            return Some(directory);
        }
        let Ok(entries) = std::fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(entry.path());
            }
        }
    }
    None
}

fn is_real_root(mount: &Path) -> bool {
    // Only the root has no file `cgroup.type`.
    std::fs::metadata(mount).is_ok_and(|metadata| metadata.ino() == ROOT_INODE)
        && !mount.join("cgroup.type").exists()
}

/// Mount points of cgroup2 file systems, in the order of proc_pid_mountinfo(5).
fn cgroup2_mounts(mountinfo: &str) -> Vec<PathBuf> {
    mountinfo.lines().filter_map(cgroup2_mount).collect()
}

/// The mount point of a line, if it is of a cgroup2 file system.
fn cgroup2_mount(line: &str) -> Option<PathBuf> {
    let (fields, rest) = line.split_once(" - ")?;
    if rest.split(' ').next() != Some("cgroup2") {
        return None;
    }
    fields.split(' ').nth(4).map(unescape)
}

/// Decodes the kernel's escapes, such as `\040` for a space.
fn unescape(field: &str) -> PathBuf {
    field
        .replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unified_and_hybrid_mounts_are_found() {
        let unified =
            "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(cgroup2_mounts(unified), [PathBuf::from("/sys/fs/cgroup")]);
        let hybrid = "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      42 30 0:38 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n\
                      99 30 0:38 / /run/my\\040cgroup rw - cgroup2 none rw\n";
        assert_eq!(
            cgroup2_mounts(hybrid),
            [
                PathBuf::from("/sys/fs/cgroup/unified"),
                PathBuf::from("/run/my cgroup")
            ]
        );
    }

    #[test]
    fn a_directory_that_is_no_cgroup_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(
            find(Some(directory.path())),
            Err(CgroupError::NotACgroup { .. })
        ));
        assert!(matches!(
            find(Some(&directory.path().join("none"))),
            Err(CgroupError::Open { .. })
        ));
    }
}
