//! An address that becomes another node's while clients keep connections to it, as Prometheus does:
//! they must not go on with the former node.

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::wait::{self, PATIENCE};

use crate::world::{self, ECHO, World};

const MOVED: &str = "10.0.3.7";

#[test]
fn a_kept_connection_ends_when_its_address_becomes_another_nodes_and_not_before() {
    let edges = [Host::Edge1, Host::Edge2];
    world::with(&edges, Options::default(), |world| {
        let address = format!("{MOVED}:{ECHO}");
        let mut by_address = world.hold(&address, 2)?;
        let mut by_name = world.hold(format!("edge-1:{ECHO}"), 2)?;
        assign(world, "edge-1", "10.0.3.99")?;
        by_address.check().context("the address is nobody's")?;
        let edge = world.lab.site(Host::Edge2);
        edge.output("ip", ["addr", "add", &format!("{MOVED}/32"), "dev", "lo"])?;
        assign(world, "edge-2", MOVED)?;
        world.wait_proxy_log(
            "stream ended",
            &[
                ("original_dst", &address),
                ("node", "edge-1"),
                ("outcome", "address_moved"),
            ],
        )?;
        ensure!(by_address.check().is_err(), "it goes on with edge-1");
        by_name.check().context("a name is its node")?;
        wait::until("the address leads to edge-2", PATIENCE, || {
            world.check_greeting(MOVED, "edge-2")
        })
    });
}

/// Gives a node this address alone.
fn assign(world: &World<'_>, node: &str, address: &str) -> Result<()> {
    let settings = ["--address", address].map(str::to_owned);
    world.culvert.create_node_token(node, &settings).map(drop)
}
