//! Packages for Red Hat's, SUSE's and other distributions with rpm, by `rpmbuild`. They have the files
//! and scripts of the Debian packages. rpm has no purge: what the programs made stays.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::workspace;

use super::deb::{Compression, put, script};
use super::package::{Kind, Parts};
use crate::build::Build;

/// rpm's name of each script, the script, and what its argument means in Debian's words. rpm gives
/// the number of versions that are installed afterwards.
const SCRIPTS: [(&str, &str, &str); 3] = [
    (
        "post",
        "postinst",
        "case $1 in 1) set -- configure ;; *) set -- configure old ;; esac",
    ),
    (
        "preun",
        "prerm",
        "case $1 in 0) set -- remove ;; *) set -- upgrade ;; esac",
    ),
    ("postun", "postrm", "set -- remove"),
];

/// What is not to be done with the files, and what would depend on the machine.
const SETTINGS: [&str; 8] = [
    "__os_install_post %{nil}",
    "debug_package %{nil}",
    "_build_id_links none",
    "_buildhost culvert",
    "source_date_epoch_from_changelog 0",
    "use_source_date_epoch_as_buildtime 1",
    "clamp_mtime_to_source_date_epoch 1",
    "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
];

/// Folders that are removed with the last package that has files there. The other folders are in every
/// distribution.
const FOLDERS: [&str; 5] = [
    "/etc/culvert",
    "/usr/share/fish",
    "/usr/share/fish/vendor_completions.d",
    "/usr/share/zsh",
    "/usr/share/zsh/site-functions",
];

/// Writes the package into a folder and returns its path.
///
/// # Errors
/// A file cannot be written, or `rpmbuild` is missing or fails.
pub fn write(
    parts: &Parts,
    build: &Build,
    compression: Compression,
    out: &Path,
) -> Result<PathBuf> {
    let work = tempfile::tempdir().context("make a folder")?;
    let tree = work.path().join("tree");
    let top = work.path().join("top");
    let mut paths = Vec::new();
    for (path, file) in parts.files()? {
        let path = moved(&path, parts.package.name);
        put(&tree, &path, &file)?;
        paths.push(path);
    }
    let spec = work.path().join("package.spec");
    std::fs::write(&spec, text(parts, build, &paths)?).context("write a spec")?;
    let processor = parts.processor.rpm();
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet", "--target"]);
    rpmbuild.arg(format!("{processor}-linux"));
    rpmbuild.arg("--buildroot").arg(&tree);
    for setting in SETTINGS {
        rpmbuild.args(["--define", setting]);
    }
    for (name, path) in [("_topdir", &top), ("_rpmdir", &top)] {
        rpmbuild.args(["--define", &format!("{name} {}", path.display())]);
    }
    rpmbuild.args([
        "--define",
        match compression {
            Compression::Xz => "_binary_payload w6.xzdio",
            Compression::None => "_binary_payload w.ufdio",
        },
    ]);
    rpmbuild.arg(&spec).env("SOURCE_DATE_EPOCH", &build.epoch);
    workspace::output(&mut rpmbuild).context("this needs the package rpm")?;
    let name = format!(
        "{}-{}-1.{processor}.rpm",
        parts.package.name,
        build.package_version()
    );
    let path = out.join(&name);
    std::fs::copy(top.join(&name), &path).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// Where distributions with rpm have a file of Debian's.
fn moved(path: &str, name: &str) -> String {
    path.replace("zsh/vendor-completions", "zsh/site-functions")
        .replace(
            &format!("doc/{name}/copyright"),
            &format!("licenses/{name}/LICENSES"),
        )
}

fn text(parts: &Parts, build: &Build, paths: &[String]) -> Result<String> {
    let package = parts.package;
    let bits = if parts.processor.is_64_bit() {
        "(64bit)"
    } else {
        ""
    };
    let mut spec = format!(
        "Name: {}\nVersion: {}\nRelease: 1\nSummary: {}\nLicense: Apache-2.0\nAutoReqProv: no\n\
         Requires: libc.so.6(GLIBC_2.17){bits}\n{}Recommends: {}\n\n%description\nPrograms in the cloud reach TCP services of edge nodes \
         that have no inbound\naddress. The edge node dials out; the kernel of the cloud node \
         steers.\n",
        package.name,
        build.package_version(),
        package.summary,
        needs_of_scripts(package.kind),
        package.recommends_of_rpm,
    );
    for (name, file, argument) in scripts(package.kind) {
        // A percent sign would begin a macro.
        let script = script(file, package)?.replace('%', "%%");
        write!(spec, "\n%{name}\n{argument}\n{script}")?;
    }
    spec += "\n%files\n%defattr(-,root,root)\n";
    let licences = format!("/usr/share/licenses/{}", package.name);
    for folder in FOLDERS.into_iter().chain([licences.as_str()]) {
        if has_files_in(folder, paths) {
            writeln!(spec, "%dir {folder}")?;
        }
    }
    for path in paths {
        if *path == package.settings() {
            spec += "%config(noreplace) ";
        }
        writeln!(spec, "/{path}")?;
    }
    Ok(spec)
}

/// What is run before and after rpm changes files.
fn scripts(kind: Kind) -> &'static [(&'static str, &'static str, &'static str)] {
    match kind {
        Kind::Daemon => &SCRIPTS,
        Kind::Command => &[],
    }
}

fn needs_of_scripts(kind: Kind) -> &'static str {
    match kind {
        Kind::Daemon => "Requires(post): /usr/sbin/useradd\n",
        Kind::Command => "",
    }
}

fn has_files_in(folder: &str, paths: &[String]) -> bool {
    let folder = format!("{}/", folder.trim_start_matches('/'));
    paths.iter().any(|path| path.starts_with(&folder))
}
