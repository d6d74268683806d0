//! What people and their scripts go by: exit codes, counts, the first lines of a log.

use anyhow::ensure;
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::culvert::link_all;
use crate::world::{self, ECHO, World};

const EDGE: &[Host] = &[Host::Edge1];
/// What a proxy logs that starts.
const SERVING: &str = "serving agents and clients";
/// And without nodes.
const NEXT: &str = "token create NODE";

#[test]
fn culvert_check_does_not_fail_where_there_is_no_redirector() {
    world::with(EDGE, Options::default(), |world| {
        let run = world.lab.site(Host::Cloud).file("run");
        let sockets = [
            ("control.sock", "control.sock"),
            ("connect.sock", "connect.sock"),
            ("proxy/admin.sock", "admin.sock"),
        ];
        link_all(&run, world, &sockets)?;
        world.culvert.redirector.kill()?;
        let usual = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{usual}", workspace::binary("").display());
        wait::until("the other checks pass", PATIENCE, || {
            let mut culvert = world
                .lab
                .site(Host::Cloud)
                .command(workspace::binary("culvert"));
            culvert
                .args(["check", "--local"])
                .env("PATH", &path)
                .env("CULVERT_RUN_DIR", &run);
            let said = culvert.output()?;
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
            let status = workspace::output(&mut world.culvert.control(&["status"]))?;
            let mut lines = status.lines();
            let head = lines.next().unwrap_or_default();
            let own = lines.next().unwrap_or_default();
            let column = head
                .split("  ")
                .map(str::trim)
                .filter(|name| !name.is_empty());
            let column = column.take_while(|name| *name != "STREAMS").count();
            let mut values = own
                .split("  ")
                .map(str::trim)
                .filter(|value| !value.is_empty());
            ensure!(values.nth(column) == Some("3"), "{status}");
            Ok(())
        })
    });
}

#[test]
fn explain_fails_for_a_node_that_does_not_exist() {
    world::with(EDGE, Options::default(), |world| {
        for (asked, code) in [("edge-1", 0), ("edge-9", 1)] {
            let said = world.culvert.control(&["explain", asked]).output()?;
            ensure!(said.status.code() == Some(code), "{asked}: {said:?}");
        }
        Ok(())
    });
}

/// Whoever has started the first proxy learns what comes next; with nodes, nobody does.
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
