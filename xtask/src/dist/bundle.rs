//! One archive for a site without internet access: packages, images, chart, rendered manifests, and
//! their sums.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

use super::archive::tracked;
use super::checksums;
use super::package::gzip;
use crate::build::Build;
use crate::tar::Tar;

const CHART: &str = "deploy/chart/culvert";
const MANIFESTS: &str = "deploy/rendered";

/// Writes `culvert-VERSION-bundle.tar` into a folder and returns its path.
pub(super) fn write(
    packages: &[PathBuf],
    images: &[PathBuf],
    build: &Build,
    key: Option<&Path>,
    out: &Path,
) -> Result<PathBuf> {
    ensure!(!images.is_empty(), "there are no images");
    let name = format!("culvert-{}-bundle", build.package_version());
    let work = tempfile::tempdir().context("make a folder")?;
    let top = work.path().join(&name);
    let mut files = Vec::new();
    for (folder, sources) in [("packages", packages), ("images", images)] {
        for source in sources {
            let file = source.file_name().context("a file has a name")?;
            files.push(put(&top, folder, file.as_ref(), &std::fs::read(source)?)?);
        }
    }
    let chart = format!("culvert-{}.tgz", env!("CARGO_PKG_VERSION"));
    files.push(put(&top, "chart", chart.as_ref(), &self::chart()?)?);
    for path in tracked(&[MANIFESTS])? {
        let path = workspace::root().join(path);
        let file = path.file_name().context("a file has a name")?;
        files.push(put(
            &top,
            "manifests",
            file.as_ref(),
            &std::fs::read(&path)?,
        )?);
    }
    checksums::write(&files, &build.package_version(), key, &top)?;
    let path = out.join(format!("{name}.tar"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--numeric-owner"])
        .args(["--owner=0", "--group=0", "--mode=u=rwX,go=rX"])
        .args(["--format=gnu", &format!("--mtime=@{}", build.epoch)])
        .arg("--file")
        .arg(&path)
        .arg("--directory")
        .arg(work.path())
        .arg(&name);
    workspace::output(&mut tar)?;
    Ok(path)
}

/// What `helm package` makes, without the time.
fn chart() -> Result<Vec<u8>> {
    let mut tar = Tar::default();
    for path in tracked(&[CHART])? {
        let inside = path.trim_start_matches("deploy/chart/");
        let bytes = std::fs::read(workspace::root().join(&path)).context("read the chart")?;
        tar.file(inside, 0o644, bytes);
    }
    gzip(&tar.finish()?)
}

fn put(top: &Path, folder: &str, file: &Path, bytes: &[u8]) -> Result<PathBuf> {
    let folder = top.join(folder);
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let path = folder.join(file);
    std::fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(folder: &Path) -> PathBuf {
        let file = |name: &str| {
            let path = folder.join(name);
            std::fs::write(&path, name).expect("write");
            path
        };
        let package = file("culvert-agent.deb");
        let image = file("culvert-agent.tar");
        let build = Build::of_work_tree().expect("a work tree");
        write(&[package], &[image], &build, None, folder).expect("a bundle")
    }

    #[test]
    fn an_unpacked_bundle_has_all_files_of_its_sums() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = "tar --extract --strip-components=1 --file \"$0\" && \
                      sha256sum --check --strict SHA256SUMS && tar --list --file chart/*.tgz";
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", script]).arg(bundle(folder.path()));
        let said = workspace::output(shell.current_dir(folder.path())).expect("good sums");
        for line in [
            "packages/culvert-agent.deb: OK",
            "images/culvert-agent.tar: OK",
            "manifests/default.yaml: OK",
            "culvert/Chart.yaml",
        ] {
            assert!(said.lines().any(|said| said == line), "no {line:?}: {said}");
        }
    }

    #[test]
    fn two_bundles_of_the_same_files_are_equal() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let [first, second] =
            folders.map(|folder| std::fs::read(bundle(folder.path())).expect("read it"));
        assert!(first == second);
    }
}
