//! `cargo xtask manifests`: runs `kustomize build` on each folder of `deploy/overlays`. The output
//! is committed in `deploy/rendered`, for those who want to read it first or have no kustomize. Also
//! makes the object of the Prometheus Operator that has the alerts of `deploy/monitoring`, and the
//! templates of the Helm chart that say the same as a file elsewhere in `deploy`.

pub mod chart;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::go_program::GoProgram;
use culvert_lab::{monitoring, progress, workspace};

use crate::setup;

/// An overlay only for the cluster of `cargo xtask e2e`, which renders it itself.
const NOT_FOR_READERS: &str = "e2e";

/// What comes before the alerts in the object.
const RULE_HEAD: &str = "\
# Made of rules.yaml by `cargo xtask manifests`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: culvert
  namespace: culvert-system
  labels:
    app.kubernetes.io/part-of: culvert
spec:
";

/// Renders all overlays into `deploy/rendered`, and makes the files of [`monitoring::folder`] and
/// [`chart`].
///
/// # Errors
/// kustomize is missing and cannot be installed, or it refuses an overlay. `rules.yaml` has no
/// groups. A file that others are made of cannot be read.
pub fn run() -> Result<()> {
    if GoProgram::Kustomize.find().is_none() {
        setup::ensure_for_tests()?;
    }
    let rendered = render()?;
    for (name, text) in &rendered {
        let path = committed().join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    let path = monitoring::folder().join(PROMETHEUS_RULE);
    std::fs::write(&path, prometheus_rule()?)
        .with_context(|| format!("write {}", path.display()))?;
    for (path, text) in chart::made()? {
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

/// The file of [`prometheus_rule`] in [`monitoring::folder`].
pub const PROMETHEUS_RULE: &str = "prometheusrule.yaml";

/// The alerts of `rules.yaml` as an object of the Prometheus Operator.
///
/// # Errors
/// `rules.yaml` cannot be read, or has no groups.
pub fn prometheus_rule() -> Result<String> {
    let mut rule = RULE_HEAD.to_owned();
    for line in alerts()?.lines() {
        rule += &format!("  {line}\n");
    }
    Ok(rule)
}

/// The groups of `rules.yaml`, without the comment above them.
fn alerts() -> Result<String> {
    let rules = read("monitoring/rules.yaml")?;
    let groups = rules
        .find("groups:\n")
        .context("rules.yaml has no groups")?;
    Ok(rules[groups..].to_owned())
}

/// A file of `deploy`.
fn read(file: &str) -> Result<String> {
    let path = workspace::root().join("deploy").join(file);
    std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The manifests of each overlay, by the name of their file in [`committed`].
///
/// # Errors
/// kustomize is missing, or it refuses an overlay.
pub fn render() -> Result<BTreeMap<String, String>> {
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
        rendered.insert(format!("{name}.yaml"), kustomize_build(&overlay)?);
    }
    Ok(rendered)
}

/// What `kustomize build` prints for a folder.
///
/// # Errors
/// kustomize is missing, or it refuses the folder.
pub fn kustomize_build(folder: &Path) -> Result<String> {
    let kustomize = GoProgram::Kustomize.find();
    let kustomize = kustomize.context("kustomize is missing: run `cargo xtask setup`")?;
    workspace::output(Command::new(kustomize).arg("build").arg(folder))
}
