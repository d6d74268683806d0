//! frp, a reverse proxy: its server beside the clients and its client on the edge, with TLS. Its
//! default is one connection between them for all clients; it can also have one for each. The server
//! has a TCP port for the backend.

use std::path::Path;

use anyhow::{Context, Result};
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::wait;

use super::START_TIME;
use crate::starter::Route;

/// The environment variable that names the folder of `frps` and `frpc`.
pub(super) const PROGRAMS: &str = "FRP";
/// Connections that wait for clients, where each has its own.
const POOL: u8 = 16;

/// How clients share connections.
#[derive(Clone, Copy)]
pub(super) enum Sharing {
    /// The default: all have one.
    OneForAll,
    /// Each has its own, out of a pool.
    OneForEach,
}

/// Both programs, running.
pub(super) struct Frp {
    /// The server's port for the backend.
    port: u16,
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
        (address, backend): (&str, u16),
        sharing: Sharing,
    ) -> Result<Self> {
        let [bind, port] = sharing.ports();
        let name = sharing.name();
        let settings = format!(
            "bindPort = {bind}\nlog.level = \"warn\"\n{}",
            sharing.of_server()
        );
        let server = start(cloud, &programs.join("frps"), ("frps", name), &settings)?;
        let settings = format!(
            "serverAddr = \"{address}\"\nserverPort = {bind}\nloginFailExit = false\nlog.level = \
             \"warn\"\n{}[[proxies]]\nname = \"bench\"\ntype = \"tcp\"\nlocalIP = \
             \"127.0.0.1\"\nlocalPort = {backend}\nremotePort = {port}\n",
            sharing.of_client()
        );
        let client = start(edge, &programs.join("frpc"), ("frpc", name), &settings)?;
        let mut frp = Self {
            port,
            server,
            client,
        };
        wait::until("frp has the backend's port", START_TIME, || {
            frp.check()?;
            let filter = format!(":{port}");
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
            endpoint: format!("tcp:127.0.0.1:{}", self.port),
            pids: vec![self.server.pid(), self.client.pid()],
        }
    }
}

impl Sharing {
    fn name(self) -> &'static str {
        match self {
            Self::OneForAll => "mux",
            Self::OneForEach => "no-mux",
        }
    }

    /// The server's ports: for its client, and for the backend.
    fn ports(self) -> [u16; 2] {
        match self {
            Self::OneForAll => [8140, 8141],
            Self::OneForEach => [8142, 8143],
        }
    }

    fn of_server(self) -> String {
        match self {
            Self::OneForAll => String::new(),
            Self::OneForEach => {
                format!("transport.tcpMux = false\ntransport.maxPoolCount = {POOL}\n")
            }
        }
    }

    fn of_client(self) -> String {
        match self {
            Self::OneForAll => String::new(),
            Self::OneForEach => {
                format!("transport.tcpMux = false\ntransport.poolCount = {POOL}\n")
            }
        }
    }
}

fn start(
    site: &Site,
    program: &Path,
    (program_name, sharing): (&str, &str),
    settings: &str,
) -> Result<Process> {
    let name = &format!("{program_name}-{sharing}");
    let file = site.file(&format!("{name}.toml"));
    std::fs::write(&file, settings).with_context(|| format!("write {}", file.display()))?;
    site.start_process(name, site.command(program).arg("-c").arg(&file))
}
