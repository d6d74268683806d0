//! What the proxies of a Kubernetes cluster publish for their agents: ConfigMap `culvert-agent`,
//! mounted as a folder. Kubelet replaces its files when it changes, so they are read each time they
//! are needed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use culvert_api::agent_config::{CA, MAX_PROXIES, PROXIES, SERVER_NAME};
use culvert_api::{HostPort, InvalidHostPort};

/// A ConfigMap holds 1 MiB; a larger file is not the proxies'.
const MAX_BYTES: u64 = 256 << 10;

/// The folder, `--cluster-config`.
#[derive(Clone, Debug)]
pub(crate) struct ClusterDir(PathBuf);

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterSettings {
    /// The authorities of the proxies' certificates, PEM.
    pub(crate) ca: String,
    /// The name in the proxies' certificates.
    pub(crate) server_name: String,
    pub(crate) proxies: Vec<HostPort>,
}

/// Why it cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error(
        "{} is not there: the proxies write it into ConfigMap culvert-agent; see their log, and \
         that this folder is the mounted ConfigMap", .0.display()
    )]
    Missing(PathBuf),
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has more than {MAX_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    #[error("{}", path.display())]
    Proxy {
        path: PathBuf,
        source: InvalidHostPort,
    },
    #[error(
        "{} names no proxy: see the proxies' log, and give them --advertise or --agent-service",
        .0.display()
    )]
    NoProxy(PathBuf),
}

impl ClusterDir {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// What it says now.
    pub(crate) fn read(&self) -> Result<ClusterSettings, ClusterError> {
        let ca = read_bounded(&self.0.join(CA))?;
        let server_name = read_bounded(&self.0.join(SERVER_NAME))?.trim().to_owned();
        let path = self.0.join(PROXIES);
        let text = read_bounded(&path)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut proxies = BTreeSet::<HostPort>::new();
        for line in lines.take(MAX_PROXIES) {
            match line.parse() {
                Ok(proxy) => drop(proxies.insert(proxy)),
                Err(source) => return Err(ClusterError::Proxy { path, source }),
            }
        }
        if proxies.is_empty() {
            return Err(ClusterError::NoProxy(path));
        }
        Ok(ClusterSettings {
            ca,
            server_name,
            proxies: proxies.into_iter().collect(),
        })
    }
}

/// The text of a small file that another program writes.
pub(crate) fn read_bounded(path: &Path) -> Result<String, ClusterError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    match read {
        Ok(length) if length as u64 > MAX_BYTES => Err(ClusterError::TooLarge(path.to_owned())),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(ClusterError::Missing(path.to_owned()))
        }
        Err(source) => Err(ClusterError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
impl ClusterDir {
    /// Writes what the proxies would.
    pub(crate) fn write(&self, settings: &ClusterSettings) {
        let proxies: String = settings
            .proxies
            .iter()
            .map(|proxy| format!("{proxy}\n"))
            .collect();
        for (name, text) in [
            (CA, &settings.ca),
            (SERVER_NAME, &settings.server_name),
            (PROXIES, &proxies),
        ] {
            std::fs::write(self.0.join(name), text).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_reads_as_the_proxies_wrote_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = ClusterDir::new(root.path());
        let settings = ClusterSettings {
            ca: "CA".to_owned(),
            server_name: "culvert-proxy".to_owned(),
            proxies: ["10.0.0.1:7400", "proxy.example:443"]
                .map(|text| text.parse().unwrap())
                .into(),
        };
        folder.write(&settings);
        assert_eq!(folder.read().unwrap(), settings);
        std::fs::write(
            root.path().join(PROXIES),
            "\n proxy.example:443\n\n10.0.0.1:7400\nproxy.example:443",
        )
        .unwrap();
        assert_eq!(folder.read().unwrap(), settings, "each once");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named_with_who_writes_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = ClusterDir::new(root.path());
        let problem = || folder.read().unwrap_err().to_string();
        assert!(
            problem().contains("ca.crt") && problem().contains("ConfigMap culvert-agent"),
            "{}",
            problem()
        );
        std::fs::write(root.path().join(CA), "CA").unwrap();
        std::fs::write(root.path().join(SERVER_NAME), "x").unwrap();
        std::fs::write(root.path().join(PROXIES), "\n").unwrap();
        assert!(problem().contains("--advertise"), "{}", problem());
        std::fs::write(root.path().join(PROXIES), "no port\n").unwrap();
        assert!(matches!(folder.read(), Err(ClusterError::Proxy { .. })));
        std::fs::write(root.path().join(CA), "x".repeat(300 << 10)).unwrap();
        assert!(matches!(folder.read(), Err(ClusterError::TooLarge(_))));
    }
}
