//! What each package has, and where it goes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

use crate::processor::{Processor, foreign};

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A unit runs it, with settings and state.
    Daemon,
    /// Users run it, also as a plugin of kubectl.
    Command,
}

/// A program as users install it.
#[derive(Debug)]
pub struct Package {
    /// The name of the package, the program and the unit.
    pub name: &'static str,
    /// How it is run.
    pub kind: Kind,
    /// One line.
    pub(super) summary: &'static str,
    /// Another package of the distribution that it is better with.
    pub(super) recommends: &'static str,
    /// The same with rpm.
    pub(super) recommends_of_rpm: &'static str,
    /// Whether edge nodes run it, which also have 32-bit processors.
    is_for_edge: bool,
    /// Files of `deploy/network`, and where they go.
    network: &'static [(&'static str, &'static str)],
}

/// All of them.
pub const PACKAGES: [Package; 5] = [
    Package {
        name: "culvert",
        kind: Kind::Command,
        summary: "what Culvert's proxies, nodes and connections do, for people; kubectl culvert",
        recommends: "openssh-client",
        recommends_of_rpm: "openssh-clients",
        is_for_edge: false,
        network: &[],
    },
    Package {
        name: "culvert-proxy",
        kind: Kind::Daemon,
        summary: "cloud end of Culvert: accepts tunnels and connects clients through them",
        recommends: "culvert, culvert-redirector",
        recommends_of_rpm: "culvert, culvert-redirector",
        is_for_edge: false,
        network: &[],
    },
    Package {
        name: "culvert-redirector",
        kind: Kind::Daemon,
        summary: "steers connections for edge nodes into the Culvert proxy of this host",
        recommends: "nftables",
        recommends_of_rpm: "nftables",
        is_for_edge: false,
        network: &[
            (
                "culvert.network",
                "usr/lib/systemd/network/05-culvert.network",
            ),
            ("culvert.conf", "usr/lib/NetworkManager/conf.d/culvert.conf"),
        ],
    },
    Package {
        name: "culvert-agent",
        kind: Kind::Daemon,
        summary: "edge end of Culvert: dials out and lets the cloud reach this node",
        recommends: "ca-certificates",
        recommends_of_rpm: "ca-certificates",
        is_for_edge: true,
        network: &[],
    },
    Package {
        name: "culvert-hub",
        kind: Kind::Daemon,
        summary: "API endpoint of an edge node that answers while the link is cut (in development)",
        recommends: "iproute2",
        recommends_of_rpm: "iproute",
        is_for_edge: true,
        network: &[],
    },
];

impl Package {
    /// The name without `culvert-`, as in the files of settings.
    pub(super) fn short(&self) -> &'static str {
        self.name.trim_start_matches("culvert-")
    }

    pub(super) fn is_for(&self, processor: Processor) -> bool {
        self.is_for_edge || processor.is_64_bit()
    }

    /// The file of settings, which upgrades leave as they find it.
    pub(super) fn settings(&self) -> String {
        format!("etc/culvert/{}.env", self.short())
    }
}

/// A file of a package.
#[derive(Debug)]
pub(super) enum File {
    /// Its mode and content.
    Regular { mode: u32, bytes: Vec<u8> },
    /// A symbolic link to a file of the same folder.
    Link(&'static str),
}

impl File {
    pub(super) fn plain(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Regular {
            mode: 0o644,
            bytes: bytes.into(),
        }
    }

    pub(super) fn program(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Regular {
            mode: 0o755,
            bytes: bytes.into(),
        }
    }
}

/// The names by which kubectl finds a plugin `culvert`, and what completes it.
pub(super) const KUBECTL_NAMES: [&str; 2] = ["kubectl-culvert", "kubectl_complete-culvert"];

/// A package and what goes into it.
#[derive(Debug)]
pub struct Parts {
    pub(super) package: &'static Package,
    /// The processor that the program is for.
    pub(super) processor: Processor,
    pub(super) program: Vec<u8>,
    /// `None`: it is no daemon.
    pub(super) service: Option<Service>,
    /// Files of `deploy/network`, by path.
    pub(super) network: BTreeMap<&'static str, String>,
    /// What the program generates: man pages and completions, by name.
    pub(super) generated: BTreeMap<String, Vec<u8>>,
    /// Licences of what is linked into the program.
    pub(super) licences: String,
}

/// What a daemon has beside its program.
#[derive(Debug)]
pub(super) struct Service {
    /// As in `deploy/systemd`: for `/usr/local/bin`.
    pub(super) unit: String,
    pub(super) settings: String,
    /// The file in `deploy/sysctl.d`, which reserves Culvert's ports.
    pub(super) sysctl: String,
    /// The file in `deploy/modules-load.d`, which loads bbr, if the program has tunnels.
    pub(super) modules: Option<String>,
}

impl Service {
    fn collect(package: &Package) -> Result<Self> {
        let deploy = workspace::root().join("deploy");
        let unit = deploy.join(format!("systemd/{}.service", package.name));
        let settings = deploy.join(format!("packages/{}.env", package.short()));
        Ok(Self {
            unit: text(&unit)?,
            settings: text(&settings)?,
            sysctl: text(&deploy.join("sysctl.d/culvert-ports.conf"))?,
            modules: match package.name {
                "culvert-proxy" | "culvert-agent" => {
                    Some(text(&deploy.join("modules-load.d/culvert.conf"))?)
                }
                _ => None,
            },
        })
    }

    /// The files of an installation by a package manager.
    fn files(&self, package: &Package) -> Result<Vec<(String, File)>> {
        let name = package.name;
        let mut files = vec![
            (
                format!("usr/lib/systemd/system/{name}.service"),
                File::plain(installed_unit(&self.unit, name)?),
            ),
            (package.settings(), File::plain(self.settings.as_str())),
            // Each package has a file of its own, and all files the same line.
            (
                format!("usr/lib/sysctl.d/10-{name}.conf"),
                File::plain(self.sysctl.as_str()),
            ),
        ];
        if let Some(modules) = &self.modules {
            let path = format!("usr/lib/modules-load.d/10-{name}.conf");
            files.push((path, File::plain(modules.as_str())));
        }
        Ok(files)
    }
}

impl Parts {
    /// Reads the files of a package, and lets the program generate the others.
    ///
    /// # Errors
    /// A file cannot be read, or the program does not run here, nor in an emulator.
    pub fn collect(
        package: &'static Package,
        processor: Processor,
        program: &Path,
        licences: String,
    ) -> Result<Self> {
        let deploy = workspace::root().join("deploy");
        let service = match package.kind {
            Kind::Daemon => Some(Service::collect(package)?),
            Kind::Command => None,
        };
        let mut network = BTreeMap::new();
        for (file, path) in package.network {
            network.insert(*path, text(&deploy.join("network").join(file))?);
        }
        Ok(Self {
            package,
            processor,
            program: std::fs::read(program)
                .with_context(|| format!("read {}", program.display()))?,
            service,
            network,
            generated: generated(package, processor, program)?,
            licences,
        })
    }

    /// The files of an installation by a package manager, by path without the first `/`.
    pub(super) fn files(&self) -> Result<BTreeMap<String, File>> {
        let name = self.package.name;
        let docs = format!("usr/share/doc/{name}");
        let mut files = BTreeMap::from([
            (
                format!("usr/bin/{name}"),
                File::program(self.program.as_slice()),
            ),
            (
                format!("{docs}/copyright"),
                File::plain(self.licences.as_str()),
            ),
        ]);
        match &self.service {
            Some(service) => files.extend(service.files(self.package)?),
            None => {
                for link in KUBECTL_NAMES {
                    files.insert(format!("usr/bin/{link}"), File::Link(name));
                }
            }
        }
        for (path, text) in &self.network {
            files.insert((*path).to_owned(), File::plain(text.as_str()));
        }
        for (file, bytes) in &self.generated {
            let (path, bytes) = match file.rsplit_once('.') {
                None => (
                    format!("usr/share/zsh/vendor-completions/{file}"),
                    bytes.clone(),
                ),
                Some((_, "bash")) => (
                    format!("usr/share/bash-completion/completions/{name}"),
                    bytes.clone(),
                ),
                Some((_, "fish")) => (
                    format!("usr/share/fish/vendor_completions.d/{file}"),
                    bytes.clone(),
                ),
                Some(_) => (format!("usr/share/man/man1/{file}.gz"), gzip(bytes)?),
            };
            files.insert(path, File::plain(bytes));
        }
        Ok(files)
    }
}

/// The unit with the places of a package manager instead of those of an administrator.
fn installed_unit(unit: &str, name: &str) -> Result<String> {
    let installed = unit.replace("/usr/local/bin/", "/usr/bin/").replace(
        "file:///usr/local/share/doc/culvert/README.md",
        &format!("man:{name}(1)"),
    );
    ensure!(
        !installed.contains("/usr/local"),
        "{name}.service has another path in /usr/local"
    );
    Ok(installed)
}

/// Completions of shells by the names of their files.
const LIVE_COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "culvert.bash"),
    ("zsh", "_culvert"),
    ("fish", "culvert.fish"),
];

fn generated(
    package: &Package,
    processor: Processor,
    program: &Path,
) -> Result<BTreeMap<String, Vec<u8>>> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let mut generate = foreign::command(processor, program)?;
    workspace::output(generate.arg("--generate").arg(folder.path()))?;
    let mut files = BTreeMap::new();
    for file in folder.path().read_dir()? {
        let path = file?.path();
        let name = path.file_name().context("a file has a name")?;
        files.insert(name.to_string_lossy().into_owned(), std::fs::read(&path)?);
    }
    // Its own completions have names of nodes too.
    if package.kind == Kind::Command {
        for (shell, file) in LIVE_COMPLETIONS {
            let mut script = foreign::command(processor, program)?;
            let script = workspace::output(script.args(["completion", shell]))?;
            files.insert(file.to_owned(), script.into_bytes());
        }
    }
    Ok(files)
}

/// Compressed without name and time.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let file = tempfile::NamedTempFile::new().context("make a file")?;
    std::fs::write(&file, bytes)?;
    let done = Command::new("gzip")
        .args(["--best", "--no-name", "--stdout"])
        .arg(file.path())
        .output()
        .context("run gzip")?;
    ensure!(done.status.success(), "gzip ended with {}", done.status);
    Ok(done.stdout)
}

pub(super) fn text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packages_unit_runs_the_packages_program() {
        for package in PACKAGES
            .iter()
            .filter(|package| package.kind == Kind::Daemon)
        {
            let path = format!("deploy/systemd/{}.service", package.name);
            let unit = text(&workspace::root().join(path)).expect("a unit");
            let unit = installed_unit(&unit, package.name).expect("no other paths");
            let start = format!("ExecStart=/usr/bin/{}", package.name);
            assert!(unit.contains(&start), "{unit}");
            assert!(
                unit.contains(&format!("EnvironmentFile=-/{}", package.settings())),
                "{unit}"
            );
        }
    }
}
