//! Several proxies: any of them reaches any node, wherever the node's tunnels end.

use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::{Lab, wait};

use crate::connect;
use crate::proxies::{self, FIRST};
use crate::world::{self, GREET, World};

const EDGES: &[Host] = &[Host::Edge1];
const TIME: Duration = Duration::from_secs(30);
/// The other two of three proxies.
const SECOND: u16 = 5;
const THIRD: u16 = 6;

/// Each proxy is told of all three, itself included.
fn peer_flags() -> Vec<String> {
    [FIRST, SECOND, THIRD]
        .iter()
        .flat_map(|number| ["--peer".to_owned(), proxies::for_peers(*number)])
        .collect()
}

/// Three proxies of one authority; the agents know the first one.
fn three(lab: &Lab) -> Result<Options> {
    let mut options = proxies::prepare(lab, EDGES)?;
    options.proxy.extend(peer_flags());
    Ok(options)
}

fn start(world: &World<'_>, number: u16) -> Result<Process> {
    proxies::start(world, number, &peer_flags())
}

fn greets_through(world: &World<'_>, number: u16) -> Result<()> {
    let target = format!("edge-1:{GREET}");
    connect::check_greeting(&proxies::connect_socket(world, number), &target)
}

#[test]
fn every_proxy_reaches_a_node_whose_tunnels_end_at_one_of_them() {
    world::prepared(EDGES, three, |world| {
        let _second = start(world, SECOND)?;
        let _third = start(world, THIRD)?;
        for number in [FIRST, SECOND, THIRD] {
            let what = format!("proxy {number} reaches the node");
            wait::until(&what, TIME, || greets_through(world, number))?;
        }
        for number in [SECOND, THIRD] {
            let page = world
                .lab
                .site(Host::Cloud)
                .json(proxies::admin(number), "/debug/tunnels")?;
            ensure!(page == serde_json::json!([]), "tunnels end here: {page}");
        }
        Ok(())
    });
}
