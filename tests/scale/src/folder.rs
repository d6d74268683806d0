//! A folder for sockets, state and logs, removed at the end.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PREFIX: &str = "culvert-scale-";

/// The folder of this run.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes the folder, and removes those of runs that were killed.
    pub(crate) fn make() -> Result<Self> {
        let base = std::env::temp_dir();
        for entry in std::fs::read_dir(&base)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(rest) = name.strip_prefix(PREFIX)
                && let Some(owner) = rest.split('-').next()
                && !Path::new("/proc").join(owner).exists()
            {
                // Another process may be removing it too.
                std::fs::remove_dir_all(entry.path()).ok();
            }
        }
        let unique = nix::unistd::gettid();
        let path = base.join(format!("{PREFIX}{}-{unique}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The next run removes what this cannot.
        std::fs::remove_dir_all(&self.0).ok();
    }
}
