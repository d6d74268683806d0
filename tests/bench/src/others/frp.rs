//! frp, a reverse proxy: its server beside the clients and its client on the edge, with their
//! defaults (TLS, and one connection between them for all). The server has a TCP port for the backend.

use std::path::Path;

use anyhow::{Context, Result};
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::wait;

use super::START_TIME;
use crate::starter::Route;

/// The environment variable that names the folder of `frps` and `frpc`.
pub(super) const PROGRAMS: &str = "FRP";
/// The server's ports: for its clients, and for the backend.
const BIND: u16 = 8140;
const REMOTE: u16 = 8141;

/// Both programs, running.
pub(super) struct Frp {
    server: Process,
    client: Process,
}

impl Frp {
    /// Starts them and waits for the port of the backend. `address` is where the edge reaches the
    /// server.
    pub(super) fn start(
        programs: &Path,
        cloud: &Site,
        edge: &Site,
        address: &str,
        backend: u16,
    ) -> Result<Self> {
        let of_server = format!("bindPort = {BIND}\nlog.level = \"warn\"\n");
        let server = start(cloud, &programs.join("frps"), "frps", &of_server)?;
        let of_client = format!(
            "serverAddr = \"{address}\"\nserverPort = {BIND}\nloginFailExit = false\nlog.level = \
             \"warn\"\n[[proxies]]\nname = \"bench\"\ntype = \"tcp\"\nlocalIP = \
             \"127.0.0.1\"\nlocalPort = {backend}\nremotePort = {REMOTE}\n"
        );
        let client = start(edge, &programs.join("frpc"), "frpc", &of_client)?;
        let mut frp = Self { server, client };
        wait::until("frp has the backend's port", START_TIME, || {
            frp.check()?;
            let filter = format!(":{REMOTE}");
            let listening = cloud.output("ss", ["-Htln", "sport", "=", &filter])?;
            (!listening.is_empty()).then_some(()).context("not yet")
        })?;
        Ok(frp)
    }

    /// Fails if one of them has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.server.check()?;
        self.client.check()
    }

    /// The route to the backend.
    pub(super) fn route(&self) -> Route {
        Route {
            endpoint: format!("tcp:127.0.0.1:{REMOTE}"),
            pids: vec![self.server.pid(), self.client.pid()],
        }
    }
}

fn start(site: &Site, program: &Path, name: &str, settings: &str) -> Result<Process> {
    let file = site.file(&format!("{name}.toml"));
    std::fs::write(&file, settings).with_context(|| format!("write {}", file.display()))?;
    site.start_process(name, site.command(program).arg("-c").arg(&file))
}
