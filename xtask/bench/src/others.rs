//! Programs of other projects, measured beside Culvert where an environment variable names their
//! folder.

mod frp;
mod konnectivity;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::site::Site;

use crate::plan::Path;
use crate::world::Route;
use frp::Frp;
use konnectivity::Konnectivity;

/// For a server to start, and for its client to connect.
const START_TIME: Duration = Duration::from_secs(60);

/// The paths of the programs that are named.
pub(crate) fn paths() -> impl Iterator<Item = Path> {
    [
        (konnectivity::PROGRAMS, Path::Konnectivity),
        (frp::PROGRAMS, Path::Frp),
    ]
    .into_iter()
    .filter(|(variable, _)| folder(variable).is_some())
    .map(|(_, path)| path)
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
        let konnectivity = folder(konnectivity::PROGRAMS)
            .map(|programs| Konnectivity::start(&programs, cloud, edge, address))
            .transpose()?;
        let frp = folder(frp::PROGRAMS)
            .map(|programs| Frp::start(&programs, cloud, edge, address, backend))
            .transpose()?;
        Ok(Self { konnectivity, frp })
    }

    /// Fails if one of them has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.konnectivity
            .as_mut()
            .map_or(Ok(()), Konnectivity::check)?;
        self.frp.as_mut().map_or(Ok(()), Frp::check)
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
