//! Programs of other projects, measured beside Culvert where an environment variable names their
//! folder.

mod frp;
mod konnectivity;
mod rathole;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::site::Site;

use crate::plan::Path;
use crate::starter::Route;
use frp::{Frp, Sharing};
use konnectivity::Konnectivity;
use rathole::Rathole;

/// For a server to start, and for its client to connect.
const START_TIME: Duration = Duration::from_secs(60);

/// The paths of the programs that are named.
pub(crate) fn paths() -> Vec<Path> {
    let mut paths = Vec::new();
    if folder(konnectivity::PROGRAMS).is_some() {
        paths.push(Path::Konnectivity);
    }
    if folder(frp::PROGRAMS).is_some() {
        paths.extend([Path::Frp, Path::FrpNoMux]);
    }
    if folder(rathole::PROGRAMS).is_some() {
        paths.push(Path::Rathole);
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
    frp_no_mux: Option<Frp>,
    rathole: Option<Rathole>,
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
            let start = |sharing| Frp::start(&programs, cloud, edge, (address, backend), sharing);
            others.frp = Some(start(Sharing::OneForAll)?);
            others.frp_no_mux = Some(start(Sharing::OneForEach)?);
        }
        if let Some(programs) = folder(rathole::PROGRAMS) {
            let rathole = Rathole::start(&programs, cloud, edge, (address, backend))?;
            others.rathole = Some(rathole);
        }
        Ok(others)
    }

    /// Fails if one of them has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(konnectivity) = &mut self.konnectivity {
            konnectivity.check()?;
        }
        for frp in [&mut self.frp, &mut self.frp_no_mux].into_iter().flatten() {
            frp.check()?;
        }
        if let Some(rathole) = &mut self.rathole {
            rathole.check()?;
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

    /// The route of frp without multiplexing to the backend.
    pub(crate) fn by_frp_no_mux(&self) -> Result<Route> {
        Ok(self.frp_no_mux.as_ref().context("frp is not up")?.route())
    }

    /// The route of rathole to the backend.
    pub(crate) fn by_rathole(&self) -> Result<Route> {
        let running = self.rathole.as_ref();
        Ok(running.context("rathole is not up")?.route())
    }
}
