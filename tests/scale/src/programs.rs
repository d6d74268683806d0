//! The programs that are measured, and the one that measures.

use std::path::PathBuf;

use anyhow::Result;
use culvert_lab::{progress, workspace};

/// How they are compiled.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// Without optimisation.
    Dev,
    Release,
}

/// Where they are.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// The programs that `cargo xtask test` has built.
    #[must_use]
    pub fn of_tests() -> Self {
        Self(workspace::target_dir().join("debug"))
    }

    pub(crate) fn build(profile: Profile) -> Result<Self> {
        let mut command = workspace::cargo();
        command.args(["build", "--bins", "--features", "culvert-scale/worker"]);
        command.args(["--package", "culvert-proxy", "--package", "culvert-scale"]);
        let profile = match profile {
            Profile::Dev => "debug",
            Profile::Release => {
                command.arg("--release");
                "release"
            }
        };
        progress::run(&format!("build the programs ({profile})"), &mut command)?;
        Ok(Self(workspace::target_dir().join(profile)))
    }

    pub(crate) fn proxy(&self) -> PathBuf {
        self.0.join("culvert-proxy")
    }

    pub(crate) fn worker(&self) -> PathBuf {
        self.0.join("culvert-scale")
    }
}
