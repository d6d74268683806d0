//! Trust: an agent is the node that its certificate says, dials what its list says, and joins once.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use xtask::lab::culvert::{Culvert, Options, PROXY_ADMIN, PROXY_FOR_AGENTS};
use xtask::lab::place::Place;
use xtask::lab::process::Process;
use xtask::{wait, workspace};

use crate::world::{self, FORBIDDEN, GREET, World};

const EDGE: &[Place] = &[Place::Edge1];

#[test]
fn a_certificate_of_another_authority_makes_nobody_a_node() {
    world::with(EDGE, Options::default(), |world| {
        let site = world.lab.site(Place::Edge2);
        let folder = site.file("forged");
        authority(&folder)?;
        leaf(&folder, "edge-1")?;
        // The real authority's certificate, so that the agent does trust the proxy.
        let ca = world.lab.site(Place::Edge1).file("agent/ca.pem");
        let mut forger = agent_with(world, &folder, &ca)?;
        expect_refusal(world, &mut forger)
    });
}

#[test]
fn a_certificate_for_a_node_that_nobody_added_is_refused() {
    world::in_lab(|lab| {
        let folder = lab.site(Place::Cloud).file("operator-ca");
        authority(&folder)?;
        let [cert, key] = ["ca.crt", "ca.key"].map(|file| folder.join(file).display().to_string());
        let options = world::with_ports(Options {
            proxy: vec!["--ca-cert".into(), cert, "--ca-key".into(), key],
            ..Options::default()
        });
        let backends = world::serve(lab, Place::Edge1)?;
        let culvert = Culvert::start(lab, EDGE, options)?;
        let world = World::of(lab, culvert, vec![backends]);
        leaf(&folder, "edge-9")?;
        let mut stranger = agent_with(&world, &folder, &folder.join("ca.crt"))?;
        expect_refusal(&world, &mut stranger)
    });
}

/// An agent on edge-2 with a ready certificate.
fn agent_with(world: &World<'_>, folder: &Path, ca: &Path) -> Result<Process> {
    let site = world.lab.site(Place::Edge2);
    let mut command = site.command(workspace::binary("culvert-agent"));
    command.arg("--state-dir").arg(site.file("agent")).args(["--proxy", PROXY_FOR_AGENTS]);
    command.arg("--cert").arg(folder.join("leaf.crt")).arg("--key").arg(folder.join("leaf.key")).arg("--ca").arg(ca);
    site.start_process("forger", &mut command)
}

/// The agent is told, the proxy tells, and no tunnel comes of it.
fn expect_refusal(world: &World<'_>, agent: &mut Process) -> Result<()> {
    wait::until("the proxy refuses the forger", Duration::from_secs(15), || {
        agent.check()?;
        let told = world.culvert.proxy.log().lines().any(|line| line.contains("WARN") && line.contains("198.51.100.5"));
        told.then_some(()).context("its log has no such line")
    })?;
    ensure!(world.culvert.tunnels("edge-1")? == 2, "edge-1 has other tunnels than its own two");
    ensure!(world.greeting("edge-1")? == "hello from edge-1", "edge-1 is somebody else");
    Ok(())
}

#[test]
fn a_backend_outside_the_allow_list_is_refused_and_told_apart_from_a_closed_port() {
    world::with(EDGE, Options::default(), |world| {
        let forbidden = connect(world, &format!("edge-1:{FORBIDDEN}"))?;
        ensure!(forbidden.starts_with("HTTP/1.1 403 "), "outside the list: {forbidden}");
        // Allowed by default, and nothing listens there.
        let closed = connect(world, "edge-1:10255")?;
        ensure!(
            closed.starts_with("HTTP/1.1 502 ") && closed.contains("connection_refused"),
            "a closed port: {closed}"
        );
        ensure!(forbidden.to_ascii_lowercase().contains("proxy-status:"), "{forbidden}");
        let failure = world.failing_client(&["talk", &format!("edge-1:{FORBIDDEN}"), "--send", "x"])?;
        ensure!(
            failure.contains("ConnectionReset") || failure.contains("ConnectionRefused"),
            "an intercepted client: {failure}"
        );
        Ok(())
    });
}

#[test]
fn connect_on_the_unix_socket_reaches_nodes_by_name_and_address() {
    world::with(EDGE, Options::default(), |world| {
        for host in ["edge-1", "edge-1.edge.internal", "10.0.3.7"] {
            let answer = connect(world, &format!("{host}:{GREET}"))?;
            ensure!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hello from edge-1\n"), "{host}: {answer}");
        }
        for (target, status) in [("edge-9:9100", "502"), ("10.9.9.9:9100", "502"), ("edge-1:0", "400")] {
            let answer = connect(world, target)?;
            ensure!(
                answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 5"),
                "{target} (about {status}): {answer}"
            );
        }
        Ok(())
    });
}

/// The head of the answer to a CONNECT, and the first line behind it.
fn connect(world: &World<'_>, target: &str) -> Result<String> {
    let mut socket =
        UnixStream::connect(world.culvert.socket("connect.sock")).context("connect to the CONNECT socket")?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(socket, "CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")?;
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    loop {
        let count =
            socket.read(&mut piece).with_context(|| format!("read the answer to {target}: so far {answer:?}"))?;
        answer += &String::from_utf8_lossy(&piece[..count]);
        let greeted =
            answer.split_once("\r\n\r\n").is_some_and(|(head, body)| !head.contains(" 200 ") || body.ends_with('\n'));
        if count == 0 || greeted {
            return Ok(answer);
        }
    }
}

#[test]
fn an_agent_reaches_the_proxy_under_another_address_through_a_forwarder() {
    world::in_lab(|lab| {
        let cloud = lab.site(Place::Cloud);
        let mut forwarder = cloud.command(world::XTASK);
        forwarder.args(["probe", "serve", &format!("7444=forward:{PROXY_FOR_AGENTS}")]);
        let _forwarder = cloud.start_process("forwarder", &mut forwarder)?;
        let backends = world::serve(lab, Place::Edge1)?;
        let options = world::with_ports(Options {
            proxy: vec!["--advertise".into(), "203.0.113.1:7444".into()],
            ..Options::default()
        });
        let mut world = World::of(lab, Culvert::start(lab, &[], options)?, vec![backends]);
        let mut join = world.culvert.create_token(Place::Edge1, &[])?;
        // The proxy names both ways to it; this agent is given the second alone.
        let direct =
            join.iter().position(|word| word == PROXY_FOR_AGENTS).context("no direct way in the join command")?;
        join.drain(direct - 1..=direct);
        ensure!(join.iter().any(|word| word == "203.0.113.1:7444"), "{join:?}");
        world.culvert.join(Place::Edge1, &join)?;
        world.culvert.start_agent(Place::Edge1)?;
        world.culvert.wait_online(Place::Edge1)?;
        came_from_the_cloud(&world)?;
        world.wait_greeting("10.0.3.7", Duration::from_secs(5))
    });
}

#[test]
fn an_agent_behind_an_http_proxy_dials_out_through_it() {
    world::in_lab(|lab| {
        let cloud = lab.site(Place::Cloud);
        let mut proxy = cloud.command(world::XTASK);
        let _proxy = cloud.start_process("http-proxy", proxy.args(["probe", "serve", "3128=http-proxy"]))?;
        let backends = world::serve(lab, Place::Edge1)?;
        let agent_env = vec![("HTTPS_PROXY".to_owned(), "http://203.0.113.1:3128".to_owned())];
        let options = world::with_ports(Options { agent_env, ..Options::default() });
        let world = World::of(lab, Culvert::start(lab, EDGE, options)?, vec![backends]);
        came_from_the_cloud(&world)?;
        world.wait_greeting("10.0.3.7", Duration::from_secs(5))
    });
}

/// The forwarder's own address is the tunnels' other end, not the edge's.
fn came_from_the_cloud(world: &World<'_>) -> Result<()> {
    let tunnels = world.culvert.debug(PROXY_ADMIN, "/debug/tunnels")?;
    let agents: Vec<&str> =
        tunnels.as_array().into_iter().flatten().filter_map(|tunnel| tunnel["agent"].as_str()).collect();
    ensure!(!agents.is_empty() && agents.iter().all(|agent| agent.contains("203.0.113.1")), "tunnels from {agents:?}");
    Ok(())
}

#[test]
fn a_token_works_once() {
    world::with(EDGE, Options::default(), |world| {
        let join = world.culvert.create_token(Place::Edge2, &[])?;
        world.culvert.join(Place::Edge2, &join)?;
        expect_no_join(world, Place::Edge3, &join, "used")
    });
}

#[test]
fn a_wrong_token_is_refused() {
    world::with(EDGE, Options::default(), |world| {
        let mut join = world.culvert.create_token(Place::Edge2, &[])?;
        let at = join.iter().position(|word| word == "--token").context("no --token")? + 1;
        let last = join[at].pop().context("an empty token")?;
        join[at].push(if last == 'a' { 'b' } else { 'a' });
        expect_no_join(world, Place::Edge2, &join, "token")
    });
}

#[test]
fn an_expired_token_is_refused() {
    world::with(EDGE, Options::default(), |world| {
        let join = world.culvert.create_token(Place::Edge2, &["--lifetime", "1s"])?;
        wait::throughout("the token expires", Duration::from_millis(2100), || Ok(()))?;
        expect_no_join(world, Place::Edge2, &join, "expired")
    });
}

#[test]
fn a_revoked_token_is_refused() {
    world::with(EDGE, Options::default(), |world| {
        let join = world.culvert.create_token(Place::Edge2, &[])?;
        let listed = workspace::output(&mut world.culvert.control(&["token", "list"]))?;
        let line = listed.lines().find(|line| line.contains("edge-2")).with_context(|| listed.clone())?;
        let id = line.split_whitespace().next().context("no id")?;
        workspace::output(&mut world.culvert.control(&["token", "revoke", id]))?;
        expect_no_join(world, Place::Edge2, &join, "token")
    });
}

#[test]
fn a_token_of_another_proxy_is_refused_before_it_is_shown() {
    world::with(EDGE, Options::default(), |world| {
        let mut join = world.culvert.create_token(Place::Edge2, &[])?;
        let at = join.iter().position(|word| word == "--ca-pin").context("no --ca-pin")? + 1;
        join[at] = format!("sha256:{}", "0".repeat(64));
        expect_no_join(world, Place::Edge2, &join, "pin")?;
        // The proxy never saw the token, so it still works.
        let tokens = workspace::output(&mut world.culvert.control(&["token", "list"]))?;
        ensure!(
            tokens.contains("edge-2") && !tokens.lines().any(|line| line.contains("edge-2") && line.contains("used")),
            "{tokens}"
        );
        Ok(())
    });
}

#[test]
fn a_removed_node_loses_its_tunnels_at_once_and_for_good() {
    world::with(EDGE, Options::default(), |world| {
        workspace::output(&mut world.culvert.control(&["node", "remove", "edge-1"]))?;
        world.culvert.wait_offline(Place::Edge1, Duration::from_secs(5))?;
        let nodes = workspace::output(&mut world.culvert.control(&["node", "list"]))?;
        ensure!(!nodes.contains("edge-1"), "{nodes}");
        wait::throughout("its agent, which tries on, gets no tunnel", Duration::from_secs(5), || {
            ensure!(world.culvert.tunnels("edge-1")? == 0, "it has one");
            Ok(())
        })?;
        world.culvert.agent(0).check()
    });
}

fn expect_no_join(world: &World<'_>, place: Place, join: &[String], reason: &str) -> Result<()> {
    let error = match world.culvert.join(place, join) {
        Ok(()) => bail!("{} joined", place.name()),
        Err(error) => error.to_string(),
    };
    ensure!(error.contains(reason), "the agent does not say {reason:?}: {error}");
    let secret = join.iter().skip_while(|word| *word != "--token").nth(1).context("no token")?;
    let said = error.rsplit("ended with").next().unwrap_or_default().to_owned() + &world.culvert.proxy.log();
    ensure!(!said.contains(secret.as_str()), "the token was printed");
    Ok(())
}

fn authority(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let args = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -keyout ca.key -out ca.crt -subj /CN=operator \
                -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign";
    openssl(folder, args)
}

fn leaf(folder: &Path, node: &str) -> Result<()> {
    let extensions = format!("subjectAltName=DNS:{node}\nextendedKeyUsage=clientAuth\nbasicConstraints=CA:FALSE\n");
    std::fs::write(folder.join("extensions"), extensions)?;
    openssl(
        folder,
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout leaf.key -out leaf.csr -subj /CN=leaf",
    )?;
    openssl(
        folder,
        "x509 -req -in leaf.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out leaf.crt -extfile extensions",
    )
}

fn openssl(folder: &Path, args: &str) -> Result<()> {
    workspace::output(Command::new("openssl").args(args.split_whitespace()).current_dir(folder))?;
    Ok(())
}
