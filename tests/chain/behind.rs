//! Destinations behind a node, such as cameras: an address in the node's network that is none of
//! its own.

use std::time::Duration;

use anyhow::ensure;
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client};
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::directory::{join, with_file, write};
use crate::world::{self, ECHO, GREET};

/// Both have a greeter, and the agent allows the first one alone.
const CAMERA: &str = "192.168.1.20";
const PRINTER: &str = "192.168.1.22";
/// The agent's own range takes in two addresses.
const ALLOWED: &str = "192.168.1.20/31:9004";

#[test]
fn a_device_behind_a_node_is_reached_by_its_address_where_file_and_agent_both_name_it() {
    world::prepared(
        &[],
        |lab| {
            let mut options = with_file(lab, &nodes(""), &[])?;
            let agent = ["--node-address", "10.0.3.7", "--allow", ALLOWED];
            options.agent = agent.map(str::to_owned).into();
            Ok(options)
        },
        |world| {
            let edge = world.lab.site(Host::Edge1);
            for device in [CAMERA, PRINTER] {
                edge.output("ip", ["addr", "add", device, "dev", "lo"])?;
            }
            let _backends = world::serve(world.lab, Host::Edge1)?;
            join(world)?;
            world.wait_greeting(CAMERA, PATIENCE)?;
            world.check_greeting(CAMERA, "edge-1")?;

            let other_port = format!("{CAMERA}:{ECHO}");
            let soon = Duration::from_millis(500);
            let dialled = world.failing_client(&Client::dial(&other_port, soon))?;
            ensure!(dialled.cause == Cause::TimedOut, "not steered: {dialled}");

            let printer = format!("{PRINTER}:{GREET}");
            ensure!(world.greeting(PRINTER).is_err(), "the agent allows it");
            let told = world.culvert.why(&printer)?;
            for words in ["behind edge-1", "fix", &format!("`--allow {printer}`")] {
                ensure!(told.contains(words), "no {words:?} in {told}");
            }

            let claim = format!("[nodes.edge-2]\nbehind = [\"{CAMERA}:{GREET}\"]\n");
            write(world, &nodes(&claim))?;
            wait::until("a second claim is refused", PATIENCE, || {
                let listed = workspace::output(&mut world.culvert.control(&["nodes"]))?;
                let both = format!("{CAMERA}:{GREET} belongs to edge-1 and edge-2");
                ensure!(listed.contains(&both), "{listed}");
                ensure!(world.greeting(CAMERA).is_err(), "one of them answers");
                Ok(())
            })?;
            let told = world.culvert.why(&format!("{CAMERA}:{GREET}"))?;
            ensure!(told.contains("belongs to edge-1 and edge-2"), "{told}");

            write(world, &nodes(""))?;
            world.wait_greeting(CAMERA, PATIENCE)
        },
    );
}

/// edge-1 with both devices, and with an address of the cloud, which is never steered.
fn nodes(further: &str) -> String {
    format!(
        "[nodes.edge-1]\naddresses = [\"10.0.3.7\"]\n\
         behind = [\"{CAMERA}:{GREET}\", \"{PRINTER}:{GREET}\", \"203.0.113.1:{GREET}\"]\n{further}"
    )
}
