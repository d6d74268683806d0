//! `cargo xtask manifests`: runs `kustomize build` on each folder of `deploy/overlays`. The output
//! is committed in `deploy/rendered`, for those who want to read it first or have no kustomize.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::{progress, workspace};

use crate::setup::{self, kustomize};

/// An overlay only for the cluster of `cargo xtask e2e`, which renders it itself.
const NOT_FOR_READERS: &str = "e2e";

/// Renders all overlays into `deploy/rendered`.
///
/// # Errors
/// kustomize is missing and cannot be installed, or it refuses an overlay.
pub fn run() -> Result<()> {
    if kustomize().is_none() {
        setup::run()?;
    }
    let rendered = render()?;
    for (name, text) in &rendered {
        let path = committed().join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    progress::say(&format!(
        "rendered {} overlays into {}",
        rendered.len(),
        committed().display()
    ));
    Ok(())
}

/// The folder of the rendered manifests.
pub fn committed() -> PathBuf {
    workspace::root().join("deploy/rendered")
}

/// The manifests of each overlay, by the name of their file in [`committed`].
///
/// # Errors
/// kustomize is missing, or it refuses an overlay.
pub fn render() -> Result<BTreeMap<String, String>> {
    let kustomize = kustomize().context("kustomize is missing: run `cargo xtask setup`")?;
    let overlays = workspace::root().join("deploy/overlays");
    let mut rendered = BTreeMap::new();
    for entry in
        std::fs::read_dir(&overlays).with_context(|| format!("read {}", overlays.display()))?
    {
        let overlay = entry?.path();
        let name = overlay
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name == NOT_FOR_READERS {
            continue;
        }
        rendered.insert(
            format!("{name}.yaml"),
            workspace::output(Command::new(&kustomize).arg("build").arg(&overlay))?,
        );
    }
    Ok(rendered)
}
