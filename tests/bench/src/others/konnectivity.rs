//! konnectivity, Kubernetes' own tunnel (apiserver-network-proxy), as one of the paths: its server
//! beside the clients and its agent on the edge, with their defaults, TLS between them, and HTTP
//! CONNECT on the server's Unix socket.

use std::path::{Path, PathBuf};

use anyhow::Result;
use culvert_lab::process::Process;
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::site::Site;
use culvert_lab::wait;

use super::START_TIME;
use crate::starter::Route;

/// The environment variable that names the folder of `proxy-server` and `proxy-agent`.
pub(super) const PROGRAMS: &str = "KONNECTIVITY";
/// The server's port for agents, and the ports where each program says that it is ready.
const AGENTS: u16 = 8132;
const SERVER_HEALTH: u16 = 8134;
const AGENT_HEALTH: u16 = 8093;

/// Both programs, running.
pub(super) struct Konnectivity {
    server: Process,
    agent: Process,
    socket: PathBuf,
}

impl Konnectivity {
    /// Starts them and waits for the tunnel. `address` is where the agent reaches the server.
    pub(super) fn start(
        programs: &Path,
        server_site: &Site,
        agent_site: &Site,
        address: &str,
    ) -> Result<Self> {
        // One certificate for both ends, which is its own authority.
        let pair = SelfSigned::make(
            server_site.folder(),
            "konnectivity",
            "/CN=konnectivity",
            &format!("subjectAltName=IP:{address}"),
        )?;
        let socket = server_site.file("konnectivity.sock");
        let server = start_server(programs, server_site, &pair, &socket)?;
        let agent = start_agent(programs, agent_site, &pair, address)?;
        let mut konnectivity = Self {
            server,
            agent,
            socket,
        };
        for (site, port) in [(server_site, SERVER_HEALTH), (agent_site, AGENT_HEALTH)] {
            wait::until("konnectivity is ready", START_TIME, || {
                konnectivity.check()?;
                site.http_get(port, "/readyz").map(drop)
            })?;
        }
        Ok(konnectivity)
    }

    /// Fails if one of them has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.server.check()?;
        self.agent.check()
    }

    /// The route to a port of the agent's host.
    pub(super) fn route(&self, port: u16) -> Route {
        Route {
            endpoint: format!("connect:{}:127.0.0.1:{port}", self.socket.display()),
            pids: vec![self.server.pid(), self.agent.pid()],
        }
    }
}

fn start_server(programs: &Path, site: &Site, pair: &SelfSigned, socket: &Path) -> Result<Process> {
    let mut server = site.command(programs.join("proxy-server"));
    server.args([
        "--mode=http-connect",
        "--server-port=0",
        "--admin-port=8133",
    ]);
    server.args([
        format!("--uds-name={}", socket.display()),
        format!("--agent-port={AGENTS}"),
        format!("--health-port={SERVER_HEALTH}"),
        format!("--cluster-cert={}", pair.certificate.display()),
        format!("--cluster-key={}", pair.key.display()),
        format!("--cluster-ca-cert={}", pair.certificate.display()),
    ]);
    site.start_process("konnectivity-server", &mut server)
}

fn start_agent(programs: &Path, site: &Site, pair: &SelfSigned, address: &str) -> Result<Process> {
    let mut agent = site.command(programs.join("proxy-agent"));
    agent.args(["--agent-id=bench", "--admin-server-port=8094"]);
    agent.args([
        format!("--proxy-server-host={address}"),
        format!("--proxy-server-port={AGENTS}"),
        format!("--health-server-port={AGENT_HEALTH}"),
        format!("--ca-cert={}", pair.certificate.display()),
        format!("--agent-cert={}", pair.certificate.display()),
        format!("--agent-key={}", pair.key.display()),
    ]);
    site.start_process("konnectivity-agent", &mut agent)
}
