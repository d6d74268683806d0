//! An edge that gets another address while connections are open.

use std::time::Duration;

use anyhow::ensure;
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;

use crate::world::{self, ECHO};

/// The shortest `--keepalive`.
const KEEPALIVE: &str = "5s";
/// Longer than it takes to notice that a tunnel is dead: 12 s after a ping.
const DEAD: Duration = Duration::from_secs(20);

#[test]
fn with_mptcp_tunnels_and_their_streams_survive_another_address_of_the_edge() {
    let flags = ["--mptcp", "--keepalive", KEEPALIVE];
    let options = Options {
        agent: flags.map(str::to_owned).into(),
        ..world::proxy_options(["--mptcp"])
    };
    world::with(&[Host::Edge1], options, |world| {
        let before = world.numbers_of_all_tunnels()?;
        let mut held = world.hold(format!("edge-1:{ECHO}"), 3)?;
        world.lab.move_edge(Host::Edge1)?;
        held.check()?;
        std::thread::sleep(DEAD);
        held.check()?;
        let now = world.numbers_of_all_tunnels()?;
        ensure!(now == before, "tunnels {now:?}, before {before:?}");
        world.check_greeting("edge-1", "edge-1")
    });
}

#[test]
fn an_agent_with_mptcp_uses_tcp_to_a_proxy_without_it() {
    let options = Options {
        agent: vec!["--mptcp".to_owned()],
        ..Options::default()
    };
    world::with(&[Host::Edge1], options, |world| {
        world.check_greeting("edge-1", "edge-1")
    });
}
