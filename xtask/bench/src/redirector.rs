//! Culvert's redirector beside a proxy.

use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::wait;

use crate::world::Starter;

/// The port of its state and metrics.
pub(crate) const ADMIN: u16 = 7419;
/// Time for programs that start side by side on two cores.
const START_TIME: Duration = Duration::from_secs(20);

/// Starts it; `directory` is the proxy's socket.
pub(crate) fn start(starter: &Starter<'_>, directory: &str) -> Result<Process> {
    let file = |name: &str| starter.site.file(name).display().to_string();
    let mut command = starter.command("culvert-redirector");
    command.arg("--cgroup").arg(starter.site.cgroup());
    command.args(["--directory-socket", directory]);
    command.args(["--state-dir", &file("redirector")]);
    command.args(["--admin-socket", &file("redirector.sock")]);
    starter.site.start_process("redirector", &mut command)
}

/// The VIP of a node, from the proxy with that port of state.
pub(crate) fn vip(site: &Site, proxy_admin: u16, node: &str) -> Result<String> {
    let nodes = site.json(proxy_admin, "/debug/nodes")?;
    let found = nodes
        .as_array()
        .and_then(|nodes| nodes.iter().find(|view| view["name"] == node));
    let vip = found
        .and_then(|view| view["vip4"].as_str())
        .with_context(|| format!("{node} has no VIP"))?;
    Ok(vip.to_owned())
}

/// Waits until a client of that VIP is steered.
pub(crate) fn wait_steered(site: &Site, vip: &str, port: u16) -> Result<()> {
    let connect = format!("exec 3<>/dev/tcp/{vip}/{port}");
    wait::until("a client of the node is steered", START_TIME, || {
        site.output("bash", ["-c", &connect]).map(drop)
    })
}
