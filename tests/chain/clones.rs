//! Two hosts with one agent's certificate, as a copied disk makes them.

use anyhow::{Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::world::{self, ECHO, World};

const EDGES: &[Host] = &[Host::Edge1, Host::Edge2];
/// Beside the port of edge-2's own agent.
const COPY_ADMIN: u16 = 7430;

/// k3s#532, noobaa-core#1730.
#[test]
fn a_host_with_the_state_directory_of_another_takes_none_of_its_connections_and_is_named() {
    world::with(EDGES, Options::default(), |world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 2)?;
        let own = world.numbers_of_all_tunnels()?;
        let _copy = start_copy(world)?;
        wait::until("the proxy has tunnels of both", PATIENCE, || {
            let tunnels = world.culvert.tunnels("edge-1")?;
            ensure!(tunnels == 4, "{tunnels}");
            Ok(())
        })?;
        let vip = world.vip(Host::Edge1, "vip4")?.to_string();
        for _ in 0..20 {
            for host in ["10.0.3.7", "edge-1", &vip] {
                world.check_greeting(host, "edge-1")?;
            }
        }
        held.check()?;
        wait::until("all that an operator reads names them", PATIENCE, || {
            for command in [&["check"][..], &["why", "edge-1"], &["nodes"]] {
                let output = world.culvert.control(command).output()?;
                let said = String::from_utf8_lossy(&output.stdout);
                let names_both = said.contains("2 agents have its certificate")
                    && said.contains("with 10.0.3.7")
                    && said.contains("none of the node's addresses");
                ensure!(
                    names_both && !said.contains("--allow"),
                    "{command:?}: {said}"
                );
            }
            Ok(())
        })?;
        world.wait_proxy_log(
            "an agent is not where its node is",
            &[("node", "edge-1"), ("reason", "2 agents")],
        )?;
        ensure!(
            own.iter()
                .all(|number| world.tunnel_numbers().is_ok_and(|all| all.contains(number))),
            "the host's own tunnels were replaced"
        );
        Ok(())
    });
}

/// An agent on the host of edge-2 with all that edge-1's agent has stored.
fn start_copy(world: &World<'_>) -> Result<Process> {
    let from = world.lab.site(Host::Edge1).file("agent");
    let site = world.lab.site(Host::Edge2);
    let state = site.file("copied-agent");
    workspace::output(
        std::process::Command::new("cp")
            .arg("-a")
            .arg(from)
            .arg(&state),
    )?;
    let mut command = site.command(workspace::binary("culvert-agent"));
    command
        .arg("--state-dir")
        .arg(&state)
        .arg("--admin-socket")
        .arg(site.file("copied-agent.sock"))
        .args(["--admin-listen", &format!("127.0.0.1:{COPY_ADMIN}")])
        .args(["--extra-tunnels", "0"])
        .env("CULVERT_KEEPALIVE", "5s");
    for port in [ECHO, world::GREET] {
        command.args(["--port", &port.to_string()]);
    }
    site.start_process("copied-agent", &mut command)
}
