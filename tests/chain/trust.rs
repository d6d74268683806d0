//! Tests of trust: an agent is the node in its certificate, and a token works once.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::{Options, PROXY_FOR_AGENTS};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, workspace};

use crate::world::{self, World};
use culvert_lab::pki::{Authority, Issued, Use};

const EDGE: &[Host] = &[Host::Edge1];

#[test]
fn a_certificate_of_another_authority_makes_nobody_a_node() {
    world::with(EDGE, Options::default(), |world| {
        let forged = Authority::at(world.lab.site(Host::Edge2).file("forged"))
            .make()?
            .issue("edge-1", Use::Client)?;
        // The real authority's certificate makes the agent trust the proxy.
        let ca = world.lab.site(Host::Edge1).file("agent/ca.pem");
        let mut forger = agent_with(world, &forged, &ca)?;
        expect_refusal(world, &mut forger)
    });
}

#[test]
fn a_certificate_for_a_node_that_nobody_added_is_refused() {
    world::prepared(EDGE, with_operators_authority, |world| {
        let authority = operator(world.lab);
        let unknown = authority.issue("edge-9", Use::Client)?;
        let mut stranger = agent_with(world, &unknown, &authority.certificate())?;
        expect_refusal(world, &mut stranger)
    });
}

#[test]
fn an_operator_s_authority_signs_what_agents_join_with() {
    world::prepared(EDGE, with_operators_authority, |world| {
        world.check_greeting("edge-1", "edge-1")?;
        let identity = world.lab.site(Host::Edge1).file("agent/identity.pem");
        let mode = std::fs::metadata(&identity)?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "{} has mode {mode:o}", identity.display());
        let mut verify = Command::new("openssl");
        verify
            .arg("verify")
            .arg("-CAfile")
            .arg(operator(world.lab).certificate());
        workspace::output(verify.args(["-verify_hostname", "edge-1"]).arg(&identity))?;
        Ok(())
    });
}

/// The operator's own authority.
fn operator(lab: &Lab) -> Authority {
    Authority::at(lab.site(Host::Cloud).file("operator"))
}

fn with_operators_authority(lab: &Lab) -> Result<Options> {
    Ok(world::proxy_options(operator(lab).make()?.proxy_flags()))
}

/// Starts an agent on edge-2 with a ready certificate.
fn agent_with(world: &World<'_>, issued: &Issued, ca: &Path) -> Result<Process> {
    let site = world.lab.site(Host::Edge2);
    let mut command = site.command(workspace::binary("culvert-agent"));
    command.arg("--state-dir").arg(site.file("agent")).args([
        "--proxy",
        PROXY_FOR_AGENTS,
        "--log-format",
        "json",
    ]);
    command
        .arg("--cert")
        .arg(&issued.certificate)
        .arg("--key")
        .arg(&issued.key)
        .arg("--ca")
        .arg(ca);
    site.start_process("forger", &mut command)
}

/// Fails unless the agent is refused, agent and proxy log the reason, and there is no tunnel.
fn expect_refusal(world: &World<'_>, agent: &mut Process) -> Result<()> {
    world.wait_proxy_log("agent connection", &[("client.addr", "198.51.100.5")])?;
    wait::until("the agent says that it is refused", PATIENCE, || {
        agent.check()?;
        let refused = !agent.logged("no tunnel; trying again", &[]).is_empty();
        refused.then_some(()).with_context(|| agent.log())
    })?;
    ensure!(
        world.culvert.tunnels("edge-1")? == 2,
        "edge-1 has other tunnels than its own two"
    );
    world.check_greeting("edge-1", "edge-1")
}

#[test]
fn a_token_works_once() {
    world::with(EDGE, Options::default(), |world| {
        let join = world.culvert.create_token(Host::Edge2, &[])?;
        world.culvert.join(Host::Edge2, &join)?;
        expect_refused_join(world, Host::Edge3, &join, "used")
    });
}

#[test]
fn a_token_makes_its_holder_the_node_it_was_made_for() {
    world::with(EDGE, Options::default(), |world| {
        // Used on another machine, the token makes that machine edge-3 and nothing else.
        let join = world.culvert.create_token(Host::Edge3, &[])?;
        world.culvert.join(Host::Edge2, &join)?;
        let certificate = world.lab.site(Host::Edge2).file("agent/identity.pem");
        let names = workspace::output(
            Command::new("openssl")
                .args(["x509", "-noout", "-ext", "subjectAltName", "-in"])
                .arg(certificate),
        )?;
        ensure!(
            names.contains("DNS:edge-3,") && names.matches("DNS:").count() == 1,
            "{names}"
        );
        Ok(())
    });
}

#[test]
fn a_wrong_token_is_refused() {
    world::with(EDGE, Options::default(), |world| {
        let mut join = world.culvert.create_token(Host::Edge2, &[])?;
        let at = join
            .iter()
            .position(|word| word == "--token")
            .context("no --token")?
            + 1;
        let last = join[at].pop().context("an empty token")?;
        join[at].push(if last == 'a' { 'b' } else { 'a' });
        expect_refused_join(world, Host::Edge2, &join, "token")
    });
}

#[test]
fn an_expired_token_is_refused() {
    world::with(EDGE, Options::default(), |world| {
        let join = world
            .culvert
            .create_token(Host::Edge2, &["--lifetime", "1s"])?;
        wait::until("the token has expired", PATIENCE, || {
            let listed = workspace::output(&mut world.culvert.control(&["token", "list"]))?;
            listed.contains("expired").then_some(()).context(listed)
        })?;
        expect_refused_join(world, Host::Edge2, &join, "expired")
    });
}

#[test]
fn root_joins_and_the_agents_own_user_runs_by_it() {
    const NOBODY: u32 = 65534;
    world::with(EDGE, Options::default(), |world| {
        let join = world.culvert.create_token(Host::Edge2, &[])?;
        let site = world.lab.site(Host::Edge2);
        let state = site.file("of-nobody/agent");
        let mut command = site.command(workspace::binary("culvert-agent"));
        command
            .args(&join)
            .args(["--user", "nobody", "--state-dir"])
            .arg(&state);
        workspace::output(&mut command)?;
        for file in ["", "identity.pem", "ca.pem", "joined.json"] {
            let found = std::fs::metadata(state.join(file))?;
            let owner = found.uid();
            let mode = found.permissions().mode() & 0o777;
            ensure!(owner == NOBODY, "{file:?} belongs to {owner}");
            ensure!(
                mode & 0o077 == 0 || file == "ca.pem" || file == "joined.json",
                "{file:?} has mode {mode:o}"
            );
        }
        let mut command = site.command("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--no-new-privs",
            "--",
        ]);
        command
            .arg(workspace::binary("culvert-agent"))
            .arg("--state-dir")
            .arg(&state);
        let mut agent = site.start_process("of-nobody", &mut command)?;
        wait::until("the agent of that user has its tunnels", PATIENCE, || {
            agent.check()?;
            ensure!(world.culvert.tunnels("edge-2")? == 2, "{}", agent.log());
            Ok(())
        })
    });
}

#[test]
fn a_node_that_left_the_directory_file_comes_back_without_its_old_certificate() {
    world::prepared(EDGE, with_a_file, |world| {
        let file = world.lab.site(Host::Cloud).file("nodes.toml");
        let join = world.culvert.create_bare_token(Host::Edge2, &[])?;
        world.culvert.join(Host::Edge2, &join)?;
        world.culvert.start_agent(Host::Edge2)?;
        world.culvert.wait_online(Host::Edge2)?;
        std::fs::write(&file, "[nodes]\n")?;
        world.culvert.wait_offline(Host::Edge2, PATIENCE)?;
        std::fs::write(&file, FILE_WITH_EDGE_2)?;
        world.wait_proxy_log(
            "agent connection",
            &[("reason", "the certificate of edge-2 was revoked")],
        )?;
        ensure!(world.culvert.tunnels("edge-2")? == 0, "it has a tunnel");
        // A new token makes it the node again.
        let join = world.culvert.create_bare_token(Host::Edge2, &[])?;
        world.culvert.join(Host::Edge2, &join)?;
        world.culvert.wait_online(Host::Edge2)
    });
}

const FILE_WITH_EDGE_2: &str = "[nodes.edge-2]\n";

fn with_a_file(lab: &Lab) -> Result<Options> {
    let file = lab.site(Host::Cloud).file("nodes.toml");
    std::fs::write(&file, FILE_WITH_EDGE_2)?;
    Ok(world::proxy_options([
        "--directory".to_owned(),
        file.display().to_string(),
    ]))
}

#[test]
fn a_revoked_token_is_refused() {
    world::with(EDGE, Options::default(), |world| {
        let join = world.culvert.create_token(Host::Edge2, &[])?;
        let listed = workspace::output(&mut world.culvert.control(&["token", "list"]))?;
        let line = listed
            .lines()
            .find(|line| line.contains("edge-2"))
            .with_context(|| listed.clone())?;
        let id = line.split_whitespace().nth(1).context("no id")?;
        workspace::output(&mut world.culvert.control(&["token", "revoke", id]))?;
        expect_refused_join(world, Host::Edge2, &join, "token")
    });
}

#[test]
fn a_token_of_another_proxy_is_refused_before_it_is_shown() {
    world::with(EDGE, Options::default(), |world| {
        let mut join = world.culvert.create_token(Host::Edge2, &[])?;
        let at = join
            .iter()
            .position(|word| word == "--ca-pin")
            .context("no --ca-pin")?
            + 1;
        join[at] = format!("sha256:{}", "0".repeat(64));
        expect_no_join(world, Host::Edge2, &join, "pin")?;
        ensure!(
            !world.culvert.proxy.log().contains("certificate refused"),
            "the proxy was asked"
        );
        // The proxy never received the token, so the token still works.
        let tokens = workspace::output(&mut world.culvert.control(&["token", "list"]))?;
        ensure!(
            tokens.contains("edge-2")
                && !tokens
                    .lines()
                    .any(|line| line.contains("edge-2") && line.contains("used")),
            "{tokens}"
        );
        Ok(())
    });
}

#[test]
fn a_removed_node_loses_its_tunnels_at_once_and_for_good() {
    world::with(EDGE, Options::default(), |world| {
        workspace::output(&mut world.culvert.control(&["node", "remove", "edge-1"]))?;
        world.culvert.wait_offline(Host::Edge1, PATIENCE)?;
        let nodes = workspace::output(&mut world.culvert.control(&["nodes"]))?;
        ensure!(!nodes.contains("edge-1"), "{nodes}");
        wait::throughout(
            "its agent, which tries on, gets no tunnel",
            Duration::from_secs(5),
            || {
                ensure!(world.culvert.tunnels("edge-1")? == 0, "it has one");
                Ok(())
            },
        )?;
        world.culvert.agent(0).check()
    });
}

/// Fails unless the join is refused and the proxy logs the reason.
fn expect_refused_join(world: &World<'_>, host: Host, join: &[String], reason: &str) -> Result<()> {
    expect_no_join(world, host, join, reason)?;
    world.wait_proxy_log("certificate refused", &[("reason", reason)])
}

fn expect_no_join(world: &World<'_>, host: Host, join: &[String], reason: &str) -> Result<()> {
    let error = match world.culvert.join(host, join) {
        Ok(()) => bail!("{} joined", host.name()),
        Err(error) => error.to_string(),
    };
    ensure!(
        error.contains(reason),
        "the agent does not say {reason:?}: {error}"
    );
    let secret = join
        .iter()
        .skip_while(|word| *word != "--token")
        .nth(1)
        .context("no token")?;
    let said = error
        .rsplit("ended with")
        .next()
        .unwrap_or_default()
        .to_owned()
        + &world.culvert.proxy.log();
    ensure!(!said.contains(secret.as_str()), "the token was printed");
    Ok(())
}
