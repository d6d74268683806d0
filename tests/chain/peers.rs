//! Several proxies: any of them reaches any node, wherever the node's tunnels end.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::cut::Cut;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::{Lab, wait};
use serde_json::Value;

use crate::connect;
use crate::proxies::{self, FIRST, SECOND, THIRD, peer_flags};
use crate::world::{self, GREET, World};
use culvert_lab::pki::{Authority, Use, text};

const EDGES: &[Host] = &[Host::Edge1];
const TIME: Duration = Duration::from_secs(30);

/// Three proxies of one authority; the agents know the first one.
fn three(lab: &Lab) -> Result<Options> {
    proxies::prepare_three(lab, EDGES)
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
        wait::until(
            "a proxy lists all three, and who has the node",
            TIME,
            || {
                let peers = proxies::peers(world, SECOND)?;
                ensure!(proxies::linked(&peers) == 2, "{peers:#?}");
                let nodes = proxies::control(world, SECOND, &["nodes", "-o", "json"])?;
                let nodes: Value = serde_json::from_str(&nodes)?;
                let node = &nodes["nodes"][0];
                let is_elsewhere = node["online"] == true && node["tunnels"] == 0;
                ensure!(is_elsewhere, "{nodes:#}");
                Ok(())
            },
        )
    });
}

#[test]
fn a_node_stays_reachable_everywhere_when_one_of_its_two_proxies_is_killed() {
    let two_of_three = |lab: &Lab| {
        let mut options = three(lab)?;
        for number in [FIRST, SECOND] {
            let proxy = proxies::for_agents(number);
            options.agent.extend(["--proxy".to_owned(), proxy]);
        }
        Ok(options)
    };
    world::prepared(EDGES, two_of_three, |world| {
        let mut second = start(world, SECOND)?;
        let _third = start(world, THIRD)?;
        proxies::wait_for_tunnels(world, SECOND)?;
        let reaches = |world: &World<'_>, number| {
            let what = format!("proxy {number} reaches the node");
            wait::until(&what, TIME, || greets_through(world, number))
        };
        reaches(world, THIRD)?;
        second.kill()?;
        reaches(world, THIRD)?;
        let _second = start(world, SECOND)?;
        proxies::wait_for_tunnels(world, SECOND)?;
        world.culvert.proxy.kill()?;
        reaches(world, THIRD)?;
        reaches(world, SECOND)
    });
}

#[test]
fn a_cut_between_proxies_is_said_and_heals() {
    world::prepared(EDGES, three, |world| {
        let _second = start(world, SECOND)?;
        let reached = || greets_through(world, SECOND);
        wait::until("the second proxy reaches the node", TIME, reached)?;
        let explain = || proxies::why(world, SECOND, "edge-1");
        let explained = explain()?;
        ensure!(explained.contains("at proxy "), "{explained}");
        let cut = Cut::to_port(world.lab, Host::Cloud, proxies::peer_port(FIRST))?;
        wait::until("the second proxy says that the way is cut", TIME, || {
            let explained = explain()?;
            ensure!(explained.contains("offline"), "{explained}");
            Ok(())
        })?;
        greets_through(world, FIRST)?;
        drop(cut);
        wait::until("the second proxy reaches it again", TIME, reached)
    });
}

#[test]
fn a_proxy_of_another_authority_is_refused_and_both_say_why() {
    world::prepared(EDGES, three, |world| {
        let cloud = world.lab.site(Host::Cloud);
        let foreign = Authority::at(cloud.file("foreign")).make()?;
        let stranger = proxies::start_under(&foreign, world, SECOND, &peer_flags())?;
        let address = proxies::for_peers(FIRST);
        let why = [
            ("peer.addr", address.as_str()),
            ("reason", "of another authority"),
        ];
        stranger.wait_logged("no connection to a peer", &why, TIME)?;
        world.culvert.proxy.wait_logged("peer refused", &[], TIME)?;
        let target = format!("edge-1:{GREET}");
        let answered = connect::check_greeting(&proxies::connect_socket(world, SECOND), &target);
        ensure!(answered.is_err(), "a stranger reaches the node");
        Ok(())
    });
}

#[test]
fn an_agents_certificate_does_not_open_the_peer_port() {
    world::prepared(EDGES, three, |world| {
        let cloud = world.lab.site(Host::Cloud);
        let authority = Authority::at(cloud.file("operator"));
        let agent = authority.issue("edge-1", Use::Client)?;
        for alpn in ["h2", "culvert-tunnel/1"] {
            let mut client = cloud.command("timeout");
            client.args(["20", "openssl", "s_client", "-quiet", "-alpn", alpn]);
            client.args(["-connect", &proxies::for_peers(FIRST)]);
            client.args([
                "-cert",
                &text(&agent.certificate),
                "-key",
                &text(&agent.key),
            ]);
            client.stdin(Stdio::null());
            let output = client.output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(said.contains("alert"), "{alpn}: {said}");
        }
        world.culvert.proxy.wait_logged("peer refused", &[], TIME)
    });
}
