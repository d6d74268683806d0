//! Files that survive a crash in the middle of writing them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Replaces `path` by `contents` with the permission bits `mode` (such as `0o600`): after a crash
/// the file is the old one or the new one, never a part. Missing parent directories are created
/// with mode 0700. A file must have only one writer: a crash may leave `.NAME.new` beside it, which
/// the next write replaces.
///
/// # Errors
/// Any error of the file system. The new file is then removed.
pub fn write_atomic(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    if !directory.exists() {
        std::fs::create_dir_all(directory)?;
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    }
    let name = path
        .file_name()
        .ok_or(io::ErrorKind::InvalidFilename)?
        .to_string_lossy();
    let new = directory.join(format!(".{name}.new"));
    let written = write(&new, contents, mode).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        // The first error is returned. If this fails, the next write replaces the file.
        std::fs::remove_file(&new).ok();
    }
    written?;
    File::open(directory)?.sync_all()
}

fn write(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(contents)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made/secret");
        write_atomic(&path, b"old and longer", 0o600).unwrap();
        std::fs::write(path.with_file_name(".secret.new"), "left by a crash").unwrap();
        write_atomic(&path, b"new", 0o600).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "no temporary file stays"
        );
    }
}
