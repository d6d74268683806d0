//! Hosts made of namespaces on this one machine: a cloud, three edge sites behind their own NAT,
//! and the internet between them. The demo and the whole-chain tests run the real programs in them.
//!
//! ```text
//!            cloud 203.0.113.1 ── internet (drops private ranges) ──┬── 198.51.100.1 edge-1 10.0.3.7
//!   (also fd00:203:0:113::1)                                        ├── 198.51.100.5 edge-2 192.168.1.10
//!                                                                   └── 198.51.100.9 edge-3 192.168.1.10
//! ```
//!
//! Edges can dial the cloud; nothing can dial an edge. Several labs
//! can be up at once, each with a name of its own.

use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Context, Result, ensure};

use crate::host::Host;
use crate::name::NameLock;
use crate::site::Site;
use crate::{LabName, cgroup, network, process, workspace};

/// A running lab. Dropping it ends every process in it and removes everything that it created.
pub struct Lab {
    name: LabName,
    sites: Vec<Site>,
    _lock: NameLock,
}

impl Lab {
    /// Creates the hosts, after it removed what an earlier run of the same name left.
    ///
    /// # Errors
    /// The process is not root, another run has the same lab up, or the kernel refuses a step.
    pub fn start(name: LabName) -> Result<Self> {
        check_root()?;
        let lock = name
            .lock()?
            .with_context(|| format!("{} is in use by another run", name.prefix()))?;
        Self::make(name, lock)
    }

    /// Creates the hosts of a test's lab, which has a unique name. The first call also removes what
    /// killed test runs left.
    ///
    /// # Errors
    /// The process is not root, or the kernel refuses a step.
    pub fn start_test() -> Result<Self> {
        static SWEPT: Once = Once::new();
        check_root()?;
        SWEPT.call_once(|| {
            if let Err(error) = sweep_killed_tests() {
                eprintln!("removing what killed tests left behind: {error:#}");
            }
        });
        let (name, lock) = LabName::lock_for_test()?;
        Self::make(name, lock)
    }

    fn make(name: LabName, lock: NameLock) -> Result<Self> {
        sweep(&name)?;
        std::fs::create_dir_all(name.folder())
            .with_context(|| format!("create {}", name.folder().display()))?;
        // From here on, dropping `lab` removes what exists if a step fails.
        let mut lab = Self {
            name,
            sites: Vec::new(),
            _lock: lock,
        };
        network::make(&lab.name)?;
        for host in Host::ALL {
            lab.sites.push(Site::start(&lab.name, host)?);
        }
        Ok(lab)
    }

    /// One of the hosts.
    pub fn site(&self, host: Host) -> &Site {
        &self.sites[host as usize]
    }

    /// The network namespace of the router between the hosts. Servers of the internet can run
    /// there.
    pub fn internet(&self) -> PathBuf {
        Path::new(network::NAMES).join(self.name.netns(network::INTERNET))
    }

    /// Creates a pod: a network namespace behind the cloud host, as container networks create it.
    /// Returns the namespace's path. It is removed with the lab.
    ///
    /// # Errors
    /// There is a pod already.
    pub fn add_pod(&self) -> Result<PathBuf> {
        Ok(Path::new(network::NAMES).join(network::make_pod(&self.name)?))
    }

    /// Gives an edge another address in the internet; it has none for a moment.
    ///
    /// # Errors
    /// The edge has it already, or the kernel has no MPTCP.
    pub fn move_edge(&self, host: Host) -> Result<()> {
        network::move_edge(&self.name, host)
    }

    /// The lab's name.
    pub fn name(&self) -> &LabName {
        &self.name
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            process::show_logs(&self.name.folder());
        }
        self.sites.clear();
        if let Err(error) = sweep(&self.name) {
            eprintln!("cleaning up {}: {error:#}", self.name.prefix());
        }
    }
}

fn check_root() -> Result<()> {
    ensure!(
        workspace::is_root(),
        "making network namespaces, cgroups and mounts needs root"
    );
    Ok(())
}

/// Removes the labs of test processes that were killed: no process holds their names.
fn sweep_killed_tests() -> Result<()> {
    for name in LabName::taken_by_tests()? {
        if let Some(_lock) = name.lock()? {
            sweep(&name)?;
        }
    }
    Ok(())
}

/// Removes everything of that name: processes first, then what they held.
fn sweep(name: &LabName) -> Result<()> {
    cgroup::remove(&name.cgroup()?)?;
    network::remove(name)?;
    let folder = name.folder();
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}
