//! What people and their scripts go by: exit codes, counts, the first lines of a log.

use anyhow::ensure;
use culvert_lab::culvert::{Options, ask, link_sockets, printed};
use culvert_lab::host::Host;
use culvert_lab::wait::{self, PATIENCE};
use serde_json::Value;

use crate::world::{self, ECHO, World};

const EDGE: &[Host] = &[Host::Edge1];
/// What a proxy logs that starts.
const SERVING: &str = "serving agents and clients";
/// And without nodes.
const NEXT: &str = "token create NODE";

#[test]
fn culvert_check_does_not_fail_where_there_is_no_redirector() {
    world::with(EDGE, Options::default(), |world| {
        let run = world.culvert.socket("run-without-redirector");
        let sockets = [
            ("control.sock", "control.sock"),
            ("proxy/admin.sock", "admin.sock"),
        ];
        link_sockets(
            &run,
            &sockets.map(|(place, name)| (place, world.culvert.socket(name))),
        )?;
        world.culvert.redirector.kill()?;
        let cloud = world.lab.site(Host::Cloud);
        wait::until("the other checks pass", PATIENCE, || {
            let said = ask(cloud, &run, &["check"]).output()?;
            let text = String::from_utf8_lossy(&said.stdout);
            ensure!(said.status.success(), "{said:?}");
            ensure!(text.contains("no redirector on this host"), "{text}");
            Ok(())
        })
    });
}

#[test]
fn the_status_counts_the_streams_of_its_own_proxy() {
    world::with(EDGE, Options::default(), |world| {
        let _held = world.hold(format!("edge-1:{ECHO}"), 3)?;
        wait::until("the streams are counted", PATIENCE, || {
            let status = printed(&mut world.culvert.control(&["status", "-o", "json"]))?;
            let status: Value = serde_json::from_str(&status)?;
            ensure!(status["proxies"][0]["streams"] == 3, "{status:#}");
            Ok(())
        })
    });
}

/// An operator who has started the first proxy reads what comes next; with nodes, that is not said.
#[test]
fn a_proxy_that_starts_says_what_it_serves_and_without_nodes_what_comes_next() {
    world::with(&[], Options::default(), |world| {
        ensure!(said(world, SERVING) == 1 && said(world, NEXT) == 1);
        world.culvert.create_token(Host::Edge1, &[])?;
        world.culvert.proxy.kill()?;
        world.culvert.restart_proxy()?;
        world.culvert.wait_for_proxy()?;
        ensure!(said(world, SERVING) == 2 && said(world, NEXT) == 1);
        Ok(())
    });
}

/// How often the proxies of this test have logged it.
fn said(world: &World<'_>, words: &str) -> usize {
    world.culvert.proxy.log().matches(words).count()
}
