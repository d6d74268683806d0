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
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !directory.exists() {
        std::fs::create_dir_all(directory)?;
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    }
    let name = path
        .file_name()
        .ok_or(io::ErrorKind::InvalidFilename)?
        .to_string_lossy();
    let new = directory.join(format!(".{name}.new"));
    if let Err(error) = replace(path, &new, contents, mode) {
        // If this fails too, the next write replaces the file.
        std::fs::remove_file(&new).ok();
        return Err(error);
    }
    File::open(directory)?.sync_all()
}

fn replace(path: &Path, new: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    write(new, contents, mode)?;
    std::fs::rename(new, path)
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
