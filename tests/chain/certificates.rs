//! Tests of certificates over time, and of certificates that an operator made.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Options, PROXY_FOR_AGENTS};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::{Lab, wait, workspace};

use crate::connect;
use crate::proxies::{self, SECOND, THIRD, THREE, peer_flags};
use crate::world::{self, ECHO, GREET, SMALL, SMALL_SOURCE, World};
use culvert_lab::pki::{Authority, Use, text};

/// The name in the proxy's ready certificate.
const SERVER_NAME: &str = "tunnel.example.org";
/// Agents renew their certificates after 20 to 27 s.
const SHORT_LIFETIME: [&str; 2] = ["--certificate-lifetime", "40s"];

#[test]
fn new_tunnels_take_over_before_a_certificate_ends_and_a_stream_ends_with_its_own() {
    world::with(
        &[Host::Edge1],
        world::proxy_options(["--certificate-lifetime", "60s"]),
        |world| {
            let mut held = world.hold(format!("edge-1:{ECHO}"), 10)?;
            let tunnels = world.culvert.tunnels("edge-1")?;
            let edge = world.lab.site(Host::Edge1);
            wait::until(
                "the certificate was renewed, with downloads going on",
                Duration::from_secs(90),
                || {
                    let whole = world.download(&format!("edge-1:{SMALL_SOURCE}"))?;
                    if whole.count != SMALL {
                        return Ok(Err(anyhow::anyhow!("a download was cut: {whole}")));
                    }
                    let renewed = edge.metric(
                        AGENT_ADMIN,
                        "culvert_agent_certificate_renewals_total{outcome=\"ok\"}",
                    )?;
                    ensure!(renewed >= 1.0, "{renewed} times");
                    Ok(Ok(()))
                },
            )??;
            held.check().context("a renewal cuts nothing")?;
            // The stream from before the renewal is on a tunnel whose certificate expires. Other
            // streams continue meanwhile.
            wait::until(
                "the old stream has ended with its certificate",
                Duration::from_secs(90),
                || {
                    if let Err(error) = world.check_greeting("edge-1", "edge-1") {
                        return Ok(Err(error));
                    }
                    ensure!(held.check().is_err(), "it goes on");
                    Ok(Ok(()))
                },
            )??;
            wait::until(
                "there are as many tunnels as before",
                Duration::from_secs(60),
                || {
                    let now = world.culvert.tunnels("edge-1")?;
                    ensure!(now == tunnels, "{now} of {tunnels}");
                    Ok(())
                },
            )?;
            // The certificate of the join has expired now: only a renewed one can set up new
            // tunnels.
            world.culvert.proxy.kill()?;
            world.culvert.restart_proxy()?;
            world.wait_greeting("edge-1", Duration::from_secs(30))
        },
    );
}

#[test]
fn an_authority_is_changed_in_three_steps_and_its_node_is_reached_meanwhile() {
    world::prepared(&[Host::Edge1], with_authority_files, |world| {
        let files = Authority::at(world.lab.site(Host::Cloud).file("authority"));
        let new = Authority::at(world.lab.site(Host::Cloud).file("new")).make()?;
        let old = files.pem()?;
        let next = new.pem()?;

        let both = format!("{old}{next}");
        std::fs::write(files.certificate(), &both)?;
        renewed(world, "the agent trusts both", || trusts(world, &both))?;
        std::fs::write(files.certificate(), format!("{next}{old}"))?;
        std::fs::copy(new.key(), files.key())?;
        renewed(world, "the new authority has signed", || {
            let mut verify = Command::new("openssl");
            verify.arg("verify").arg("-CAfile").arg(new.certificate());
            verify.arg(world.lab.site(Host::Edge1).file("agent/identity.pem"));
            workspace::output(&mut verify).map(drop)
        })?;
        std::fs::write(files.certificate(), &next)?;
        renewed(world, "the agent trusts the new one alone", || {
            trusts(world, &next)
        })?;

        world.culvert.proxy.kill()?;
        world.culvert.restart_proxy()?;
        world.wait_greeting("edge-1", Duration::from_secs(30))
    });
}

#[test]
fn while_the_authority_of_three_proxies_is_changed_each_reaches_the_node_even_one_that_starts() {
    let three = |lab: &Lab| {
        let mut options = proxies::prepare_three(lab, &[Host::Edge1])?;
        options.proxy.extend(SHORT_LIFETIME.map(str::to_owned));
        Ok(options)
    };
    world::prepared(&[Host::Edge1], three, |world| {
        let cloud = world.lab.site(Host::Cloud);
        let files = Authority::at(cloud.file("operator"));
        let new = Authority::at(cloud.file("new")).make()?;
        let _second = proxies::start(world, SECOND, &peer_flags())?;
        let old = files.pem()?;
        let next = new.pem()?;
        for (certificates, key) in [
            (format!("{old}{next}"), None),
            (format!("{next}{old}"), Some(new.key())),
            (next.clone(), None),
        ] {
            std::fs::write(files.certificate(), &certificates)?;
            if let Some(key) = key {
                std::fs::copy(key, files.key())?;
            }
            renewed(world, "the agent trusts what the proxies trust", || {
                trusts(world, &certificates)
            })?;
            let _third = proxies::start(world, THIRD, &peer_flags())?;
            for number in THREE {
                let socket = proxies::connect_socket(world, number);
                let what = format!("proxy {number} reaches the node");
                wait::until(&what, Duration::from_secs(30), || {
                    connect::check_greeting(&socket, &format!("edge-1:{GREET}"))
                })?;
            }
        }
        Ok(())
    });
}

/// Checks the authorities that the agent has on disk.
fn trusts(world: &World<'_>, authorities: &str) -> Result<()> {
    let ca = std::fs::read_to_string(world.lab.site(Host::Edge1).file("agent/ca.pem"))?;
    ensure!(ca == authorities, "the agent trusts {ca}");
    Ok(())
}

/// The files of an authority of the operator's own, which are changed later.
fn with_authority_files(lab: &Lab) -> Result<Options> {
    let files = Authority::at(lab.site(Host::Cloud).file("authority")).make()?;
    Ok(world::proxy_options(
        files
            .proxy_flags()
            .into_iter()
            .chain(SHORT_LIFETIME.map(str::to_owned)),
    ))
}

/// Waits until the agent has renewed its certificate with this outcome. Its node is reached
/// meanwhile.
fn renewed(world: &World<'_>, what: &str, outcome: impl Fn() -> Result<()>) -> Result<()> {
    wait::until(what, Duration::from_secs(90), || {
        if let Err(error) = world.check_greeting("edge-1", "edge-1") {
            return Ok(Err(error));
        }
        outcome().map(Ok)
    })?
}

#[test]
fn ready_certificates_with_a_name_of_their_own_take_the_place_of_joining() {
    world::prepared(&[], with_ready_certificates, |world| {
        let _backends = world::serve(world.lab, Host::Edge1)?;
        world.culvert.start_agent(Host::Edge1)?;
        world.culvert.wait_online(Host::Edge1)?;
        world.check_greeting("edge-1", "edge-1")?;
        world.check_greeting("10.0.3.7", "edge-1")?;
        // Agents cannot join here, and the proxy says what to do.
        match world.culvert.create_token(Host::Edge2, &[]) {
            Ok(join) => bail!("a token was made: {join:?}"),
            Err(error) => ensure!(
                error.to_string().contains("--cert, --key and --ca"),
                "{error}"
            ),
        }
        let mut misled = agent_without_the_name(world)?;
        // It names the name that it expects.
        misled.wait_logged(
            "no tunnel; trying again",
            &[("reason", "culvert-proxy")],
            Duration::from_secs(10),
        )?;
        misled.check()
    });
}

fn authority(lab: &Lab) -> Authority {
    Authority::at(lab.site(Host::Cloud).file("elsewhere"))
}

fn with_ready_certificates(lab: &Lab) -> Result<Options> {
    let authority = authority(lab).make()?;
    let server = authority.issue(SERVER_NAME, Use::Server)?;
    let agent = authority.issue("edge-1", Use::Client)?;
    let ca = text(&authority.certificate());
    let nodes = lab.site(Host::Cloud).file("nodes.toml");
    std::fs::write(
        &nodes,
        "[nodes.edge-1]\naddresses = [\"10.0.3.7\"]\nports = [9004]\n",
    )?;
    let server_cert = text(&server.certificate);
    let server_key = text(&server.key);
    let mut options = world::proxy_options([
        "--tls-cert",
        &server_cert,
        "--tls-key",
        &server_key,
        "--agent-ca",
        &ca,
    ]);
    options
        .proxy
        .extend(["--server-name", SERVER_NAME, "--directory", &text(&nodes)].map(str::to_owned));
    let agent_cert = text(&agent.certificate);
    let agent_key = text(&agent.key);
    let agent = [
        "--cert",
        &agent_cert,
        "--key",
        &agent_key,
        "--ca",
        &ca,
        "--server-name",
        SERVER_NAME,
    ];
    options.agent = [&agent[..], &["--proxy", PROXY_FOR_AGENTS]]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
    Ok(options)
}

/// Starts an agent on edge-2, with a valid certificate and without `--server-name`.
fn agent_without_the_name(world: &World<'_>) -> Result<Process> {
    let authority = authority(world.lab);
    let agent = authority.issue("edge-1", Use::Client)?;
    let site = world.lab.site(Host::Edge2);
    let mut command = site.command(workspace::binary("culvert-agent"));
    command
        .args(["--log-format", "json"])
        .args(["--proxy", PROXY_FOR_AGENTS, "--cert"])
        .arg(agent.certificate)
        .arg("--key")
        .arg(agent.key);
    command.arg("--ca").arg(authority.certificate());
    site.start_process("misled-agent", &mut command)
}
