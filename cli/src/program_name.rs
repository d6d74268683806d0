//! The name by which this program was run.

use std::path::{Path, PathBuf};

/// As whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramName {
    Culvert,
    /// `kubectl culvert`.
    KubectlPlugin,
    /// What kubectl runs at a TAB after `kubectl culvert`, with the words that follow.
    KubectlCompletion,
}

impl ProgramName {
    pub(crate) fn of_process() -> Self {
        let path = std::env::args_os().next().map(PathBuf::from);
        Self::of(&path.unwrap_or_default())
    }

    fn of(path: &Path) -> Self {
        match path.file_stem().and_then(|name| name.to_str()) {
            Some("kubectl-culvert") => Self::KubectlPlugin,
            Some("kubectl_complete-culvert") => Self::KubectlCompletion,
            _ => Self::Culvert,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_runs_it_by_two_names() {
        for (path, name) in [
            ("culvert", ProgramName::Culvert),
            ("/usr/bin/kubectl-culvert", ProgramName::KubectlPlugin),
            ("kubectl-culvert.exe", ProgramName::KubectlPlugin),
            (
                "/usr/bin/kubectl_complete-culvert",
                ProgramName::KubectlCompletion,
            ),
            ("", ProgramName::Culvert),
        ] {
            assert_eq!(ProgramName::of(Path::new(path)), name, "{path}");
        }
    }
}
