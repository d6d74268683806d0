//! Hosts of the cloud, each with an address of its own. The first one is [`Host::Cloud`]. Packets of
//! the others pass through it. Their programs see its files and belong to its cgroup.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::host::Host;
use crate::{Lab, inside, network};

/// A host of the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudHost {
    /// [`Host::Cloud`].
    First,
    /// A host behind it.
    Second,
    /// Another one.
    Third,
}

impl CloudHost {
    /// Creates the hosts behind the first one. They are removed with the lab.
    ///
    /// # Errors
    /// They are there already.
    pub fn add_all(lab: &Lab) -> Result<()> {
        for host in [Self::Second, Self::Third] {
            let first = Self::First.address();
            network::make_cloud_host(lab.name(), host.name(), host.address(), first)?;
        }
        Ok(())
    }

    /// Its address, which edges can dial.
    pub fn address(self) -> Ipv4Addr {
        match self {
            Self::First => Ipv4Addr::new(203, 0, 113, 1),
            Self::Second => Ipv4Addr::new(203, 0, 113, 18),
            Self::Third => Ipv4Addr::new(203, 0, 113, 19),
        }
    }

    /// A command that will run there.
    pub fn command(self, lab: &Lab, program: impl AsRef<std::ffi::OsStr>) -> Command {
        lab.site(Host::Cloud).command_in(&self.netns(lab), program)
    }

    /// The body of a page on its loopback.
    ///
    /// # Errors
    /// As [`crate::site::Site::http_get`].
    pub fn http_get(self, lab: &Lab, port: u16, path: &str) -> Result<String> {
        inside::http(&self.netns(lab), port, &format!("GET {path}"), "")
    }

    fn netns(self, lab: &Lab) -> PathBuf {
        Path::new(network::NAMES).join(lab.name().netns(self.name()))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::First => Host::Cloud.name(),
            Self::Second => network::FURTHER_CLOUD_HOSTS[0],
            Self::Third => network::FURTHER_CLOUD_HOSTS[1],
        }
    }
}
