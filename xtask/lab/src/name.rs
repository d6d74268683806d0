//! Names of labs, and of what they make.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cgroup;

/// Which lab: each name can be up once on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabName {
    /// Of `cargo xtask demo`.
    Demo,
    /// Of the whole-chain tests.
    Test,
    /// Of `cargo xtask bench`.
    Bench,
}

impl LabName {
    /// The prefix of everything the lab makes.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Demo => "culvert-demo",
            Self::Test => "culvert-test",
            Self::Bench => "culvert-bench",
        }
    }

    /// Files of the lab: sockets, state, logs. In `/run`, which only root may write and which is
    /// short enough for sockets.
    pub fn folder(self) -> PathBuf {
        Path::new("/run").join(self.prefix())
    }

    pub(crate) fn netns(self, place: &str) -> String {
        format!("{}-{place}", self.prefix())
    }

    pub(crate) fn cgroup(self) -> Result<PathBuf> {
        Ok(cgroup::mount_point()?.join(self.prefix()))
    }
}
