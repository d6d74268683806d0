//! Processes with a part of a processor, as on a small edge machine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use culvert_lab::LabName;

/// Where the processor's controller of cgroup v1 is, and files of it.
const V1: &str = "/sys/fs/cgroup/cpu";
const PERIOD_US: u32 = 100_000;

/// A cgroup that limits processor time. Dropping it removes it; its processes must have ended.
pub(super) struct Weak {
    cgroup: PathBuf,
}

impl Weak {
    /// Moves processes into a new one, which they share.
    ///
    /// # Errors
    /// The machine has the controller neither in cgroup v1 nor in the only hierarchy of v2.
    pub(super) fn make(
        lab: &LabName,
        pids: impl IntoIterator<Item = u32>,
        percent: u8,
    ) -> Result<Self> {
        let quota = PERIOD_US / 100 * u32::from(percent);
        let (parent, file, limit) = if Path::new(V1).is_dir() {
            (V1, "cpu.cfs_quota_us", quota.to_string())
        } else {
            ("/sys/fs/cgroup", "cpu.max", format!("{quota} {PERIOD_US}"))
        };
        let cgroup = Path::new(parent).join(format!("{}-weak", lab.prefix()));
        std::fs::create_dir_all(&cgroup).with_context(|| format!("create {}", cgroup.display()))?;
        let weak = Self { cgroup };
        weak.write(file, &limit)?;
        for pid in pids {
            weak.write("cgroup.procs", &pid.to_string())?;
        }
        Ok(weak)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.cgroup.join(file);
        std::fs::write(&path, text).with_context(|| format!("write {text} to {}", path.display()))
    }
}

impl Drop for Weak {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.cgroup) {
            eprintln!("removing {}: {error}", self.cgroup.display());
        }
    }
}
