//! The packages of the programs of the tests.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use culvert_lab::workspace;
use tempfile::TempPath;
use xtask::build::Build;
use xtask::dist::deb::{self, Compression};
use xtask::dist::package::{PACKAGES, Parts};
use xtask::dist::rpm;
use xtask::processor::Processor;

/// The folder of the packages that all tests install: without compression, they take much of the
/// disk.
pub(crate) static MADE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("remove the packages of another run");
    }
    std::fs::create_dir_all(&folder).expect("a folder");
    make(&folder);
    folder
});

/// Makes them in a folder.
pub(crate) fn make(folder: &Path) {
    let build = Build::of_work_tree().expect("a work tree");
    let here = Processor::here().expect("a known processor");
    for package in &PACKAGES {
        let program = stripped(package.name);
        let licences = "licences".to_owned();
        let parts = Parts::collect(package, here, program.as_ref(), licences).expect("all parts");
        deb::write(&parts, &build, Compression::None, folder).expect("a package");
        rpm::write(&parts, &build, Compression::None, folder).expect("a package");
    }
}

/// A program of the tests without its symbols, as in packages for users.
fn stripped(name: &str) -> TempPath {
    let stripped = tempfile::NamedTempFile::new()
        .expect("a file")
        .into_temp_path();
    workspace::strip_binary(name, &stripped).unwrap_or_else(|error| panic!("{error:#}"));
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&stripped, executable).expect("make it executable");
    stripped
}
