//! Debian packages, by `dpkg-deb`.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::workspace;

use super::package::{File, Kind, Package, Parts, text};
use crate::build::Build;

/// What is run before and after dpkg changes files: `deploy/packages`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// How much a package is compressed.
#[derive(Clone, Copy, Debug)]
pub enum Compression {
    /// As Debian's own packages.
    Xz,
    /// Not at all: much sooner done, for tests.
    None,
}

/// Writes the package into a folder and returns its path.
///
/// # Errors
/// A file cannot be written, or `dpkg-deb` is missing or fails.
pub fn write(
    parts: &Parts,
    build: &Build,
    compression: Compression,
    out: &Path,
) -> Result<PathBuf> {
    let tree = tempfile::tempdir().context("make a folder")?;
    fill(tree.path(), parts, build)?;
    let name = parts.package.name;
    let version = build.package_version();
    let path = out.join(format!("{name}_{version}_{}.deb", parts.processor.debian()));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.arg(match compression {
        Compression::Xz => "-Zxz",
        Compression::None => "-Znone",
    })
    .args(["--root-owner-group", "--build"])
    .args([tree.path(), &path])
    .env("SOURCE_DATE_EPOCH", &build.epoch);
    workspace::output(&mut dpkg)?;
    Ok(path)
}

/// Writes the tree that `dpkg-deb` makes a package of.
fn fill(tree: &Path, parts: &Parts, build: &Build) -> Result<()> {
    std::fs::set_permissions(tree, std::fs::Permissions::from_mode(0o755))?;
    for (path, file) in parts.files()? {
        put(tree, &path, &file)?;
    }
    for (path, file) in control_files(parts, build)? {
        put(&tree.join("DEBIAN"), path, &file)?;
    }
    Ok(())
}

fn control_files(parts: &Parts, build: &Build) -> Result<Vec<(&'static str, File)>> {
    let mut files = vec![("control", File::plain(control(parts, build)))];
    if parts.package.kind == Kind::Command {
        return Ok(files);
    }
    let settings = format!("/{}\n", parts.package.settings());
    files.push(("conffiles", File::plain(settings)));
    for name in SCRIPTS {
        files.push((name, File::program(script(name, parts.package)?)));
    }
    Ok(files)
}

/// One of the scripts, for a package.
pub(super) fn script(name: &str, package: &Package) -> Result<String> {
    let path = workspace::root().join("deploy/packages").join(name);
    Ok(text(&path)?.replace("@PACKAGE@", package.name))
}

fn control(parts: &Parts, build: &Build) -> String {
    let package = parts.package;
    let version = build.package_version();
    format!(
        "Package: {}\nVersion: {version}\nArchitecture: {}\n\
         Maintainer: The Culvert authors\nSection: net\nPriority: optional\n\
         Depends: libc6 (>= 2.17), passwd\nRecommends: {}\n\
         Description: {}\n Programs in the cloud reach TCP services of edge nodes that have no \
         inbound\n address. The edge node dials out; the kernel of the cloud node steers.\n",
        package.name,
        parts.processor.debian(),
        package.recommends,
        package.summary
    )
}

/// Writes a file into a tree, whatever the umask is.
pub(super) fn put(tree: &Path, path: &str, file: &File) -> Result<()> {
    let path = tree.join(path);
    let folder = path.parent().context("a file is in a folder")?;
    std::fs::create_dir_all(folder)?;
    match file {
        File::Regular { mode, bytes } => {
            std::fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode))?;
        }
        File::Link(to) => {
            symlink(to, &path).with_context(|| format!("link {}", path.display()))?;
        }
    }
    // dpkg-deb keeps the modes of folders, which the umask decides.
    for folder in path.ancestors().skip(1) {
        if folder == tree {
            break;
        }
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
