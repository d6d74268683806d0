//! Two thousand agents on one proxy, all behind one address: they connect, serve, are cut off
//! together and reconnect together.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_FOR_AGENTS};
use culvert_lab::host::Host;
use culvert_lab::process::KernelResources;
use culvert_lab::{Lab, progress, workspace};
use serde_json::Value;

use super::{start_load, wait_gauge};
use crate::life::wait_within;
use crate::world::{self, World};
use culvert_lab::pki::{Authority, text};

const AGENTS: usize = 2000;

/// Time from when the proxy is reachable until the last agent is online: their back-off grows to 15
/// s, and 128 handshakes can run at once.
const ALL_ONLINE: Duration = Duration::from_secs(90);

/// The proxy's memory per idle tunnel, in an unoptimised build as in tests. `notes/performance.md`
/// has the number for a release.
const MEMORY_PER_AGENT: u64 = 96 << 10;

const TUNNELS: &str = "culvert_proxy_tunnels";

#[test]
#[ignore = "two minutes of two processors: `cargo xtask test --long`"]
fn two_thousand_agents_register_serve_and_all_come_back_after_a_restart() {
    world::prepared(&[], options, |world| {
        let resident = world.culvert.proxy.resident()?;
        let started = Instant::now();
        let ca = authority(world.lab);
        let certificate = text(&ca.certificate());
        let key = text(&ca.key());
        let proxy = PROXY_FOR_AGENTS;
        let count = AGENTS.to_string();
        let args = [
            "agents",
            "--proxy",
            proxy,
            "--ca-cert",
            &certificate,
            "--ca-key",
            &key,
            "--count",
            &count,
        ];
        let agents = start_load(world.lab, Host::Edge1, "agents", &args)?;
        wait_gauge(world.lab, TUNNELS, AGENTS, ALL_ONLINE)?;
        let grown = world.culvert.proxy.resident()?.saturating_sub(resident) / AGENTS as u64;
        progress::say(&format!(
            "    all online after {:?}; the proxy grew by {grown} bytes each",
            started.elapsed()
        ));
        ensure!(
            grown <= MEMORY_PER_AGENT,
            "the proxy grew by {grown} bytes for each agent"
        );
        all_are_online_and_serve(world)?;

        world.culvert.proxy.kill()?;
        world.culvert.restart_proxy()?;
        let started = Instant::now();
        world.culvert.wait_for_proxy()?;
        wait_gauge(world.lab, TUNNELS, AGENTS, ALL_ONLINE)?;
        progress::say(&format!(
            "    all back {:?} after the restart",
            started.elapsed()
        ));
        all_are_online_and_serve(world)?;

        let resources = world.culvert.proxy.kernel_resources()?;
        drop(agents);
        wait_gauge(world.lab, TUNNELS, 0, Duration::from_secs(30))?;
        wait_within(
            "the proxy",
            &world.culvert.proxy,
            KernelResources {
                files: resources.files - AGENTS,
                ..resources
            },
        )
    });
}

fn authority(lab: &Lab) -> Authority {
    Authority::at(lab.site(Host::Cloud).file("operator"))
}

fn node(number: usize) -> String {
    format!("node-{number:04}")
}

fn options(lab: &Lab) -> Result<Options> {
    let authority = authority(lab).make()?;
    let nodes = lab.site(Host::Cloud).file("nodes.toml");
    let mut list = String::new();
    for number in 0..AGENTS {
        writeln!(list, "[nodes.{}]", node(number))?;
    }
    std::fs::write(&nodes, list).with_context(|| text(&nodes))?;
    let mut options = world::proxy_options(authority.proxy_flags());
    options.proxy.extend(["--directory".into(), text(&nodes)]);
    Ok(options)
}

/// Proves that the list shows all of them with a tunnel, and that every hundredth one answers.
fn all_are_online_and_serve(world: &World<'_>) -> Result<()> {
    let list = workspace::output(&mut world.culvert.control(&["nodes", "-o", "json"]))?;
    let list: Value = serde_json::from_str(&list)?;
    let nodes = list["nodes"].as_array().into_iter().flatten();
    let online = nodes.filter(|node| node["tunnels"] == 1).count();
    ensure!(
        online == AGENTS,
        "`culvert nodes` shows {online} nodes with a tunnel"
    );
    for number in (37..AGENTS).step_by(100) {
        world.check_greeting(&node(number), &node(number))?;
    }
    Ok(())
}
