//! Culvert's redirector beside a proxy.

use std::time::Duration;

use anyhow::{Result, bail};
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::wait;

use crate::starter::Starter;

/// The port of its state and metrics.
pub(crate) const ADMIN: u16 = 7419;
/// Time for programs that start side by side on two cores.
const START_TIME: Duration = Duration::from_secs(20);

/// Starts it; `directory` is the proxy's socket.
pub(crate) fn start(starter: &Starter<'_>, directory: &str) -> Result<Process> {
    let mut command = starter.command("culvert-redirector");
    command.arg("--cgroup").arg(starter.site.cgroup());
    command.args(["--directory-socket", directory]);
    command.args(["--state-dir", &starter.file("redirector")]);
    command.args(["--admin-socket", &starter.file("redirector.sock")]);
    starter.site.start_process("redirector", &mut command)
}

/// The VIP of a node, from the proxy with that port of state.
pub(crate) fn vip(site: &Site, proxy_admin: u16, node: &str) -> Result<String> {
    let nodes = site.json(proxy_admin, "/debug/nodes")?;
    for view in nodes.as_array().into_iter().flatten() {
        if view["name"] == node
            && let Some(vip) = view["vip4"].as_str()
        {
            return Ok(vip.to_owned());
        }
    }
    bail!("{node} has no VIP")
}

/// Waits until a client of that VIP is steered.
pub(crate) fn wait_steered(site: &Site, vip: &str, port: u16) -> Result<()> {
    let connect = format!("exec 3<>/dev/tcp/{vip}/{port}");
    wait::until("a client of the node is steered", START_TIME, || {
        site.output("bash", ["-c", &connect]).map(drop)
    })
}
