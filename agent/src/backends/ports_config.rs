//! Further ports that the agent dials on its own node: those of ConfigMap `culvert-ports`, mounted
//! as a folder. They come to what the flags allow, and reach no other host.
//!
//! A user who may write the ConfigMap opens ports. The proxies may not: `deploy/cloud/rbac.yaml`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_api::named_ports::{CULVERT_PORTS, InvalidPorts, NamedPorts, Owner};
use culvert_daemon::{Problem, chain};
use tokio::sync::watch;

use crate::backends::allow_list::DialRules;

/// How often the folder is read. Kubelet itself takes up to 90 s to replace its files.
const INTERVAL: Duration = Duration::from_secs(2);
/// Files beyond these are not read. The ConfigMap has six keys.
const MAX_FILES: usize = 64;
/// The ports of a key are shorter.
const MAX_BYTES: u64 = 16 << 10;

/// The folder, `--ports-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortsDir(PathBuf);

/// Why it is not followed.
#[derive(Debug, thiserror::Error)]
enum PortsError {
    #[error(
        "read {}: mount ConfigMap {CULVERT_PORTS} there, with `optional: true`, or take \
         --ports-config away", path.display()
    )]
    Folder { path: PathBuf, source: io::Error },
    #[error("read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} has more than {MAX_BYTES} bytes: write the ports alone", .0.display())]
    TooLarge(PathBuf),
    #[error("{}", folder.display())]
    Invalid {
        folder: PathBuf,
        source: InvalidPorts,
    },
}

/// Keeps the agent's rules equal to the flags and the folder.
pub(crate) struct Ports {
    folder: PortsDir,
    flags: DialRules,
    rules: watch::Sender<DialRules>,
    last_good: Option<NamedPorts>,
    /// Reported once.
    problem: Problem,
}

impl PortsDir {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Its files, by their names, as the ConfigMap has them.
    fn data(&self) -> Result<BTreeMap<String, String>, PortsError> {
        let mut data = BTreeMap::new();
        let entries = fs::read_dir(&self.0).map_err(|source| self.error(source))?;
        for entry in entries.take(MAX_FILES) {
            let entry = entry.map_err(|source| self.error(source))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Kubelet keeps each version in a folder `..TIME`, and names the newest `..data`.
            if !name.starts_with("..")
                && let Some(text) = text(&entry.path())?
            {
                data.insert(name, text);
            }
        }
        Ok(data)
    }

    fn error(&self, source: io::Error) -> PortsError {
        PortsError::Folder {
            path: self.0.clone(),
            source,
        }
    }
}

impl Ports {
    pub(crate) fn new(folder: PortsDir, flags: DialRules, rules: watch::Sender<DialRules>) -> Self {
        Self {
            folder,
            flags,
            rules,
            last_good: None,
            problem: Problem::default(),
        }
    }

    /// Reads the folder again and again.
    pub(crate) async fn follow(mut self) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(INTERVAL).await;
            self.read();
        }
    }

    /// Reads the folder. If it is invalid, the last good ports stay; without any, its valid entries
    /// are used.
    pub(crate) fn read(&mut self) {
        let problem = match self.folder.data() {
            Ok(data) => self.apply(&data),
            Err(error) => Some(error),
        };
        let problem = problem.map(|problem| chain(&problem));
        if let Some(reason) = self.problem.record(problem) {
            tracing::error!(
                reason,
                "--ports-config not used, keeping the last good ports"
            );
        }
    }

    fn apply(&mut self, data: &BTreeMap<String, String>) -> Option<PortsError> {
        let (named, problem) = NamedPorts::parse(Owner::Culvert, data);
        let is_used = problem.is_none() || self.last_good.is_none();
        if is_used && self.last_good.as_ref() != Some(&named) {
            let rules = self.flags.with(&named);
            let list = &rules.list;
            tracing::info!(
                ports = ?list.ports,
                localhost_ports = ?list.localhost_ports,
                denied = ?list.denied,
                "ports that are dialled"
            );
            self.rules.send_replace(rules);
        }
        if is_used {
            self.last_good = Some(named);
        }
        problem.map(|source| PortsError::Invalid {
            folder: self.folder.0.clone(),
            source,
        })
    }
}

/// The text of a file; `None` if its key was removed just now.
fn text(path: &Path) -> Result<Option<String>, PortsError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PortsError::File {
            path: path.to_owned(),
            source,
        }),
        Ok(length) if length as u64 > MAX_BYTES => Err(PortsError::TooLarge(path.to_owned())),
        Ok(_) => Ok(Some(text)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use culvert_api::AllowList;

    use super::*;

    /// A folder as kubelet makes it, and the rules that follow it.
    struct Mount {
        root: tempfile::TempDir,
        version: u32,
        ports: Ports,
    }

    impl Mount {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let flags = DialRules {
                list: AllowList {
                    ports: [10250].into(),
                    denied: [22].into(),
                    ..AllowList::default()
                },
                ..DialRules::default()
            };
            let folder = PortsDir::new(root.path().to_owned());
            let ports = Ports::new(folder, flags.clone(), watch::Sender::new(flags));
            Self {
                root,
                version: 0,
                ports,
            }
        }

        /// Replaces the content as kubelet does, in one step.
        fn write(&mut self, data: &[(&str, &str)]) {
            self.version += 1;
            let version = format!("..{}", self.version);
            let root = self.root.path();
            fs::create_dir(root.join(&version)).unwrap();
            for (key, text) in data {
                fs::write(root.join(&version).join(key), text).unwrap();
            }
            symlink(&version, root.join("..new")).unwrap();
            fs::rename(root.join("..new"), root.join("..data")).unwrap();
            for (key, _) in data.iter().filter(|(key, _)| !root.join(key).is_symlink()) {
                symlink(format!("..data/{key}"), root.join(key)).unwrap();
            }
        }

        /// The ports that are dialled after the next reading.
        fn read(&mut self) -> Vec<u16> {
            self.ports.read();
            let rules = self.ports.rules.borrow();
            rules.list.ports.iter().copied().collect()
        }
    }

    #[test]
    fn its_ports_come_to_those_of_the_flags_and_follow_each_change() {
        let mut mount = Mount::new();
        assert_eq!(mount.read(), [10250], "an empty folder: no ConfigMap");
        mount.write(&[("ports", "9051, 9100")]);
        assert_eq!(mount.read(), [9051, 9100, 10250]);
        mount.write(&[("ports", "9100")]);
        assert_eq!(mount.read(), [9100, 10250]);
        mount.write(&[]);
        assert_eq!(mount.read(), [10250], "its key was removed");
    }

    #[test]
    fn what_is_denied_it_does_not_open() {
        let mut mount = Mount::new();
        mount.write(&[("ports", "22, 23"), ("localhost-ports", "22, 8081")]);
        assert_eq!(mount.read(), [23, 10250]);
        let localhost_ports = mount.ports.rules.borrow().list.localhost_ports.clone();
        assert_eq!(localhost_ports, [8081].into());
    }

    #[test]
    fn a_mistake_is_named_and_the_last_good_ports_stay() {
        let mut mount = Mount::new();
        mount.write(&[("ports", "9051")]);
        assert_eq!(mount.read(), [9051, 10250]);
        mount.write(&[("ports", "9052, x")]);
        assert_eq!(mount.read(), [9051, 10250]);
        let problem = |mount: &mut Mount| match mount.ports.folder.data() {
            Ok(data) => chain(&mount.ports.apply(&data).expect("a mistake")),
            Err(error) => chain(&error),
        };
        let told = problem(&mut mount);
        assert!(told.contains("ports: \"x\" is not a port"), "{told}");
        fs::write(mount.root.path().join("port"), "1").unwrap();
        mount.write(&[("ports", "9052")]);
        let told = problem(&mut mount);
        assert!(told.contains("\"port\" is not a key"), "{told}");
        fs::write(mount.root.path().join("port"), "1".repeat(17 << 10)).unwrap();
        let told = problem(&mut mount);
        assert!(told.contains("write the ports alone"), "{told}");
        mount.ports.folder = PortsDir::new(mount.root.path().join("missing"));
        let told = problem(&mut mount);
        assert!(told.contains("mount ConfigMap culvert-ports"), "{told}");
        assert_eq!(mount.read(), [9051, 10250]);
    }

    #[test]
    fn without_good_ports_what_is_right_of_the_first_ones_is_used() {
        let mut mount = Mount::new();
        mount.write(&[("ports", "9051, x")]);
        assert_eq!(mount.read(), [9051, 10250]);
    }
}
