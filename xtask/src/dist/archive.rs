//! The archive for distributions without Debian's packages: programs and units at the top, as
//! `docs/install.md` installs them, and everything that the documents name.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::workspace;

use super::package::{KUBECTL_NAMES, Parts, gzip};
use crate::build::Build;
use crate::processor::Processor;
use crate::tar::Tar;

/// Parts of the work tree that are of use without the source.
const SHIPPED: [&str; 9] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "deploy",
    "docs",
    "notes",
];

/// Writes `culvert-VERSION-linux-PROCESSOR.tar.gz` into a folder and returns its path.
pub(super) fn write(
    parts: &[Parts],
    processor: Processor,
    build: &Build,
    out: &Path,
) -> Result<PathBuf> {
    let version = build.package_version();
    let processor = processor.name();
    let name = format!("culvert-{version}-linux-{processor}");
    let mut tar = Tar::default();
    for parts in parts {
        add(&mut tar, &name, parts);
    }
    for path in tracked(&SHIPPED)? {
        let bytes = std::fs::read(workspace::root().join(&path)).context("read a document")?;
        tar.file(&format!("{name}/{path}"), 0o644, bytes);
    }
    let path = out.join(format!("{name}.tar.gz"));
    std::fs::write(&path, gzip(&tar.finish()?)?)
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

fn add(tar: &mut Tar, top: &str, parts: &Parts) {
    let package = parts.package;
    tar.file(
        &format!("{top}/{}", package.name),
        0o755,
        parts.program.clone(),
    );
    let licences = format!("{top}/licences/{}.txt", package.name);
    tar.file(&licences, 0o644, parts.licences.clone().into_bytes());
    if let Some(service) = &parts.service {
        let unit = format!("{top}/{}.service", package.name);
        tar.file(&unit, 0o644, service.unit.clone().into_bytes());
        let settings = format!("{top}/settings/{}.env", package.short());
        tar.file(&settings, 0o644, service.settings.clone().into_bytes());
    }
    for (name, bytes) in &parts.generated {
        let is_page = name.ends_with(".1");
        let folder = if is_page { "man" } else { "completions" };
        tar.file(&format!("{top}/{folder}/{name}"), 0o644, bytes.clone());
    }
    if parts.service.is_none() {
        for link in KUBECTL_NAMES {
            tar.link(&format!("{top}/{link}"), package.name);
        }
    }
}

/// What git has of paths: not files that happen to lie there.
pub(super) fn tracked(paths: &[&str]) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--"]).args(paths);
    let listed = workspace::output(git.current_dir(workspace::root()))?;
    Ok(listed.lines().map(str::to_owned).collect())
}
