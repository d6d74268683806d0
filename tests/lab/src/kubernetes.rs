//! The programs of a release of Kubernetes, with the etcd that belongs to it: as `cargo xtask kube`
//! compiles them into `target/tools/kube/VERSION`, or in a folder that the environment names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};

use crate::workspace;

/// The environment variable of envtest that names a folder of programs.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// The release that tests run on, unless told otherwise.
pub const DEFAULT_VERSION: &str = "1.36.3";

/// The first minor version that was tried.
const OLDEST_MINOR: u32 = 33;

/// What `target/tools/kube/VERSION` has.
pub const PROGRAMS: [&str; 7] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
    ETCD,
];

/// The one that is not of Kubernetes itself.
pub const ETCD: &str = "etcd";

/// Where the programs come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Programs {
    /// `cargo xtask kube` compiles them.
    Compiled(Release),
    /// Another program has put them there.
    Folder(PathBuf),
}

impl Programs {
    /// The programs of the release that was asked for, of the folder that [`ASSETS`] names, or of
    /// the default release.
    pub fn chosen(wanted: Option<&Release>) -> Self {
        if let Some(release) = wanted {
            return Self::Compiled(release.clone());
        }
        match std::env::var_os(ASSETS) {
            Some(folder) if !folder.is_empty() => Self::Folder(folder.into()),
            _ => Self::Compiled(Release::default()),
        }
    }

    /// Their folder.
    pub fn folder(&self) -> PathBuf {
        match self {
            Self::Compiled(release) => release.folder(),
            Self::Folder(folder) => folder.clone(),
        }
    }
}

/// A release, such as 1.36.3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    minor: u32,
    patch: u32,
}

impl Release {
    /// The folder of its programs.
    pub fn folder(&self) -> PathBuf {
        workspace::tools_dir().join("kube").join(self.to_string())
    }

    /// Whether all its programs are there.
    pub fn is_there(&self) -> bool {
        let folder = self.folder();
        PROGRAMS.iter().all(|name| folder.join(name).is_file())
    }

    /// Such as 36 of 1.36.3.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// The version of the modules that Kubernetes publishes beside its own, such as `v0.36.3`.
    pub fn staging_version(&self) -> String {
        format!("v0.{}.{}", self.minor, self.patch)
    }
}

impl Default for Release {
    fn default() -> Self {
        let release = DEFAULT_VERSION.parse();
        release.expect("a unit test parses the default")
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.patch)
    }
}

impl FromStr for Release {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut numbers = Vec::new();
        for number in text.trim_start_matches('v').split('.') {
            let number: u32 = number
                .parse()
                .with_context(|| format!("{text:?} is no release such as {DEFAULT_VERSION}"))?;
            numbers.push(number);
        }
        let [1, minor, patch] = numbers[..] else {
            bail!("{text:?} is no release such as {DEFAULT_VERSION}");
        };
        ensure!(
            minor >= OLDEST_MINOR,
            "Kubernetes {text} cannot be compiled from Go modules: 1.{OLDEST_MINOR} is the first \
             that was tried; for an older one let {ASSETS} name a folder with its programs"
        );
        Ok(Self { minor, patch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_three_numbers_and_can_be_compiled() {
        assert_eq!(Release::default().to_string(), DEFAULT_VERSION);
        let release: Release = "v1.37.2".parse().unwrap();
        assert_eq!(release.to_string(), "1.37.2");
        assert_eq!(release.staging_version(), "v0.37.2");
        assert!(release.folder().ends_with("kube/1.37.2"));
        for other in [
            "", "1.36", "1.36.3.1", "2.36.3", "1.x.3", "1.20.2", "1.36.-3",
        ] {
            assert!(other.parse::<Release>().is_err(), "{other}");
        }
    }
}
