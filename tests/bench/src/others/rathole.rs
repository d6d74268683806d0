//! rathole, a reverse proxy with a connection for each client, out of a pool: its server beside the
//! clients and its client on the edge, with its Noise transport. The server has a TCP port for the
//! backend.

use std::path::Path;

use anyhow::{Context, Result};
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::{wait, workspace};

use super::START_TIME;
use crate::starter::Route;

/// The environment variable that names the folder of `rathole`.
pub(super) const PROGRAMS: &str = "RATHOLE";
/// The server's ports: for its client, and for the backend.
const BIND: u16 = 8144;
const REMOTE: u16 = 8145;

/// Both processes, running.
pub(super) struct Rathole {
    server: Process,
    client: Process,
}

impl Rathole {
    /// Starts them and waits for the backend to answer. `address` is where the edge reaches the
    /// server.
    pub(super) fn start(
        programs: &Path,
        cloud: &Site,
        edge: &Site,
        (address, backend): (&str, u16),
    ) -> Result<Self> {
        let program = programs.join("rathole");
        let [private, public] = keys(cloud, &program)?;
        let of_server = format!(
            "[server]\nbind_addr = \"0.0.0.0:{BIND}\"\ndefault_token = \"bench\"\n\
             [server.transport]\ntype = \"noise\"\n\
             [server.transport.noise]\nlocal_private_key = \"{private}\"\n\
             [server.services.bench]\nbind_addr = \"127.0.0.1:{REMOTE}\"\n"
        );
        let of_client = format!(
            "[client]\nremote_addr = \"{address}:{BIND}\"\ndefault_token = \"bench\"\n\
             [client.transport]\ntype = \"noise\"\n\
             [client.transport.noise]\nremote_public_key = \"{public}\"\n\
             [client.services.bench]\nlocal_addr = \"127.0.0.1:{backend}\"\n"
        );
        let server = start(cloud, &program, "--server", &of_server)?;
        let client = start(edge, &program, "--client", &of_client)?;
        let mut rathole = Self { server, client };
        wait::until("rathole has the backend's port", START_TIME, || {
            rathole.check()?;
            let filter = format!(":{REMOTE}");
            let listening = cloud.output("ss", ["-Htln", "sport", "=", &filter])?;
            (!listening.is_empty()).then_some(()).context("not yet")
        })?;
        Ok(rathole)
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

/// A new private key and its public key.
fn keys(site: &Site, program: &Path) -> Result<[String; 2]> {
    let printed = workspace::output(site.command(program).arg("--genkey"))?;
    // After each heading is the key, on a line of its own.
    let mut lines = printed.lines().filter(|line| !line.trim().is_empty());
    let mut after = |heading: &str| {
        lines.find(|line| line.contains(heading));
        let key = lines.next().context("rathole prints no keys")?;
        anyhow::Ok(key.trim().to_owned())
    };
    Ok([after("Private Key")?, after("Public Key")?])
}

fn start(site: &Site, program: &Path, role: &str, settings: &str) -> Result<Process> {
    let name = format!("rathole{role}");
    let file = site.file(&format!("{name}.toml"));
    std::fs::write(&file, settings).with_context(|| format!("write {}", file.display()))?;
    site.start_process(&name, site.command(program).arg(role).arg(&file))
}
