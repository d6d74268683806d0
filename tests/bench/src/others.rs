//! Programs of other projects, measured beside Culvert where an environment variable names their
//! folder.

mod frp;
mod konnectivity;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::site::Site;

use crate::plan::Path;
use crate::starter::Route;
use frp::Frp;
use konnectivity::Konnectivity;

/// For a server to start, and for its client to connect.
const START_TIME: Duration = Duration::from_secs(60);

/// The paths of the programs that are named.
pub(crate) fn paths() -> Vec<Path> {
    let mut paths = Vec::new();
    if folder(konnectivity::PROGRAMS).is_some() {
        paths.push(Path::Konnectivity);
    }
    if folder(frp::PROGRAMS).is_some() {
        paths.push(Path::Frp);
    }
    paths
}

fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

/// The programs, running.
#[derive(Default)]
pub(crate) struct Others {
    konnectivity: Option<Konnectivity>,
    frp: Option<Frp>,
}

impl Others {
    /// Starts those that are named, and waits for their tunnels. `address` is where the edge reaches
    /// the cloud; `backend` is a port of the edge.
    pub(crate) fn start(cloud: &Site, edge: &Site, address: &str, backend: u16) -> Result<Self> {
        let mut others = Self::default();
        if let Some(programs) = folder(konnectivity::PROGRAMS) {
            let konnectivity = Konnectivity::start(&programs, cloud, edge, address)?;
            others.konnectivity = Some(konnectivity);
        }
        if let Some(programs) = folder(frp::PROGRAMS) {
            others.frp = Some(Frp::start(&programs, cloud, edge, address, backend)?);
        }
        Ok(others)
    }

    /// Fails if one of them has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(konnectivity) = &mut self.konnectivity {
            konnectivity.check()?;
        }
        if let Some(frp) = &mut self.frp {
            frp.check()?;
        }
        Ok(())
    }

    /// The route of konnectivity to a port of the edge.
    pub(crate) fn by_konnectivity(&self, port: u16) -> Result<Route> {
        let running = self.konnectivity.as_ref();
        Ok(running.context("konnectivity is not up")?.route(port))
    }

    /// The route of frp to the backend.
    pub(crate) fn by_frp(&self) -> Result<Route> {
        Ok(self.frp.as_ref().context("frp is not up")?.route())
    }
}
