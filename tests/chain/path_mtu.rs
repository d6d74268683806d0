//! Tests of a link that loses large packets without a word: it is told from a cut, and
//! `--tunnel-mss` is named and heals it.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Options};
use culvert_lab::cut::Cut;
use culvert_lab::host::Host;
use culvert_lab::probe::Client;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::world::{self, SINK, SMALL, SMALL_SOURCE, SOURCE, World, xtask};

const EDGE: &[Host] = &[Host::Edge1];
const FIX: &str = "--tunnel-mss";

fn one_tunnel() -> Options {
    Options {
        agent: world::one_tunnel(),
        ..Options::default()
    }
}

#[test]
fn a_cut_in_the_middle_of_bulk_data_is_not_taken_for_lost_packets() {
    let mut options = one_tunnel();
    // As agents outside of labs: the kernel finds a cut before they do.
    options.agent_env = vec![("CULVERT_KEEPALIVE".to_owned(), "25s".to_owned())];
    world::with(EDGE, options, |world| {
        let bulk = download(world, SOURCE)?;
        let agent = world.lab.site(Host::Edge1);
        let sent = "culvert_agent_bytes_total{direction=\"to_client\"}";
        wait::until("bulk data flows", PATIENCE, || {
            let sent = agent.metric(AGENT_ADMIN, sent)?;
            ensure!(sent > 1e6, "{sent}");
            Ok(())
        })?;
        let cut = Cut::of(world.lab, Host::Edge1)?;
        wait_for_reason(world, "the link is cut")?;
        drop(cut);
        end(bulk)?;
        world.culvert.wait_online(Host::Edge1)?;
        for log in [world.culvert.agent(0).log(), world.culvert.proxy.log()] {
            ensure!(!log.contains(FIX), "a cut was taken for it: {log}");
        }
        Ok(())
    });
}

/// wendylabs/WendyOS#1709, netbirdio/netbird#3800, kubernetes/minikube#9537. The proxy is the
/// first that gives up here.
#[test]
fn packets_of_the_agent_that_are_lost_for_their_size_are_named_at_both_ends() {
    world::with(EDGE, one_tunnel(), |world| {
        world.check_greeting("edge-1", "edge-1")?;
        let _lossy = Cut::of_large_packets(world.lab, Host::Edge1)?;
        let small = download(world, SMALL_SOURCE)?;
        wait_for_reason(world, FIX)?;
        end(small)?;
        // That log cannot be read while larger answers end the tunnel.
        for command in [&["why", "edge-1"][..], &["check"]] {
            wait::until("the cloud names it", PATIENCE, || {
                let said = world.culvert.control(command).output()?;
                let said = String::from_utf8_lossy(&said.stdout).into_owned();
                ensure!(said.contains(FIX), "{command:?}: {said}");
                Ok(())
            })?;
        }

        world.culvert.agent(0).kill()?;
        world.culvert.add_agent_args(&[FIX, "1200"]);
        world.culvert.start_agent(Host::Edge1)?;
        world.culvert.wait_online(Host::Edge1)?;
        let whole = world.download(&format!("edge-1:{SMALL_SOURCE}"))?;
        ensure!(whole.count == SMALL, "{whole}");
        Ok(())
    });
}

#[test]
fn packets_of_a_client_that_are_lost_for_their_size_are_named_by_the_proxy() {
    let mut options = one_tunnel();
    options.agent_env = vec![("CULVERT_KEEPALIVE".to_owned(), "25s".to_owned())];
    world::with(EDGE, options, |world| {
        world.check_greeting("edge-1", "edge-1")?;
        let _lossy = Cut::of_large_packets(world.lab, Host::Edge1)?;
        let mut upload = world.lab.site(Host::Cloud).command(xtask());
        Client::upload(format!("edge-1:{SINK}"), 64 << 20).complete(&mut upload)?;
        let upload = upload.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        wait::until("the proxy names it", PATIENCE, || {
            let log = world.culvert.proxy.log();
            log.contains(FIX).then_some(()).context("not yet")
        })?;
        end(upload)?;
        let explained = world.culvert.why("edge-1")?;
        ensure!(explained.contains(FIX), "{explained}");

        Ok(())
    });
}

#[test]
fn a_join_over_such_a_link_names_the_fix_and_works_with_it() {
    world::with(EDGE, one_tunnel(), |world| {
        let join = world.culvert.create_token(Host::Edge2, &[])?;
        let lossy = Cut::of_large_packets(world.lab, Host::Edge2)?;
        let mut command = join_command(world, &join);
        let refused = command.output()?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(!refused.status.success() && said.contains(FIX), "{said}");
        workspace::output(join_command(world, &join).args([FIX, "1200"]))?;
        drop(lossy);

        let again = world.culvert.create_token(Host::Edge2, &[])?;
        let _cut = Cut::of(world.lab, Host::Edge2)?;
        let refused = join_command(world, &again).output()?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(!refused.status.success() && !said.contains(FIX), "{said}");
        Ok(())
    });
}

fn join_command(world: &World<'_>, join: &[String]) -> Command {
    let site = world.lab.site(Host::Edge2);
    let mut command = site.command(workspace::binary("culvert-agent"));
    command
        .args(join)
        .arg("--state-dir")
        .arg(site.file("agent"));
    command
}

/// A client that reads all that a port sends.
fn download(world: &World<'_>, port: u16) -> Result<Child> {
    let mut command = world.lab.site(Host::Cloud).command(xtask());
    let target = format!("edge-1:{port}");
    Client::Download { target }.complete(&mut command)?;
    Ok(command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?)
}

fn end(mut client: Child) -> Result<()> {
    client.kill()?;
    client.wait()?;
    Ok(())
}

fn wait_for_reason(world: &World<'_>, reason: &str) -> Result<()> {
    let agent = world.lab.site(Host::Edge1);
    let log = agent.file("culvert-agent.log");
    wait::until(&format!("the agent's log says {reason}"), PATIENCE, || {
        let text = std::fs::read_to_string(&log)?;
        text.contains(reason).then_some(()).context("not yet")
    })
}
