//! Tests that the programs name a backend that accepts and never answers, and leave in peace one
//! that has answered and is quiet, whatever TLS sends by itself.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::world::{self, World};

const EDGE: &[Host] = &[Host::Edge1];

/// A port of the backend, and how a client asks there.
struct Port {
    scheme: &'static str,
    number: u16,
    /// `silent` or `quiet`.
    kind: &'static str,
}

const PORTS: [Port; 4] = [
    Port {
        scheme: "https",
        number: 9443,
        kind: "silent",
    },
    Port {
        scheme: "https",
        number: 9444,
        kind: "quiet",
    },
    Port {
        scheme: "http",
        number: 9080,
        kind: "silent",
    },
    Port {
        scheme: "http",
        number: 9081,
        kind: "quiet",
    },
];
/// The port of a backend whose process is stopped.
const STOPPED: Port = Port {
    scheme: "https",
    number: 9445,
    kind: "quiet",
};

#[test]
fn a_backend_that_never_answers_is_named_and_one_that_is_quiet_is_not() {
    let mut options = Options::default();
    options.ports.push(STOPPED.number);
    options.ports.extend(PORTS.map(|port| port.number));
    world::with(EDGE, options, |world| {
        let _serving = start_backend(world, "silent", &PORTS)?;
        let stopped = start_backend(world, "stopped", &[STOPPED])?;
        stopped.signal(Signal::SIGSTOP)?;
        let mut clients = Vec::new();
        for port in PORTS.iter().chain([&STOPPED]) {
            clients.push(ask(world, port)?);
        }
        let waiting = [PORTS[0].number, PORTS[2].number, STOPPED.number];
        let result = is_named(world, &waiting);
        for client in &mut clients {
            client.kill()?;
            client.wait()?;
        }
        result
    });
}

fn start_backend(world: &World<'_>, name: &str, ports: &[Port]) -> Result<Process> {
    let site = world.lab.site(Host::Edge1);
    let folder = site.file(name);
    std::fs::create_dir_all(&folder)?;
    SelfSigned::make(&folder, "tls", "/CN=edge-1", "subjectAltName=DNS:edge-1")?;
    let mut command = site.command("python3");
    command
        .arg(workspace::root().join("tests/chain/silent_backend.py"))
        .arg(folder.join("tls.crt"))
        .arg(folder.join("tls.key"));
    for port in ports {
        command.arg(format!("{}:{}={}", port.scheme, port.number, port.kind));
    }
    let serving = site.start_process(name, &mut command)?;
    wait::until("the backend listens", PATIENCE, || {
        let is_ready = serving.log().contains("ready");
        is_ready.then_some(()).context("not yet")
    })?;
    Ok(serving)
}

/// A client that asks and stays.
fn ask(world: &World<'_>, port: &Port) -> Result<Child> {
    let mut command = world.lab.site(Host::Cloud).command("curl");
    command
        .args(["--silent", "--insecure", "--no-buffer"])
        .arg(format!("{}://edge-1:{}/", port.scheme, port.number))
        .stdout(Stdio::null());
    Ok(command.spawn()?)
}

/// Fails unless the ports in `waiting` are what clients wait for, by all that tells it.
fn is_named(world: &World<'_>, waiting: &[u16]) -> Result<()> {
    let all = PORTS.len() + 1;
    wait::until("each client has asked", PATIENCE, || {
        let mut waits = Vec::new();
        let streams = world
            .lab
            .site(Host::Cloud)
            .json(PROXY_ADMIN, "/debug/streams")?;
        let streams = streams.as_array().context("no list")?;
        ensure!(streams.len() == all, "{streams:?}");
        for stream in streams {
            ensure!(stream["bytes_to_backend"] != 0, "{stream}");
            if stream["waits_seconds"].is_number() {
                waits.push(port_of(stream)?);
            }
        }
        waits.sort_unstable();
        let mut expected = waiting.to_vec();
        expected.sort_unstable();
        ensure!(waits == expected, "{waits:?} wait: {streams:?}");
        Ok(())
    })?;
    wait::until("the check names them", PATIENCE, || {
        let listed = run(&mut world.culvert.control(&["streams", "--idle", "30s"]))?;
        ensure!(listed.lines().count() == all + 1, "{listed}");
        let checked = run(&mut world.culvert.control(&["check", "-o", "json"]))?;
        let checked: Value = serde_json::from_str(&checked)?;
        let findings = checked["hosts"][0]["checks"]
            .as_array()
            .context("no checks")?;
        let finding = findings
            .iter()
            .find(|finding| finding["check"] == "streams")
            .context("no finding")?;
        let found = finding["found"].as_str().unwrap_or_default();
        ensure!(finding["verdict"] == "warning", "{finding}");
        for port in PORTS.iter().chain([&STOPPED]) {
            let is_named = found.contains(&format!(":{})", port.number));
            ensure!(is_named == waiting.contains(&port.number), "{found}");
        }
        Ok(())
    })?;
    for port in PORTS.iter().chain([&STOPPED]) {
        let target = format!("edge-1:{}", port.number);
        let explained = world.culvert.why(&target)?;
        let is_named = explained.contains("have no answer");
        ensure!(is_named == waiting.contains(&port.number), "{explained}");
    }
    Ok(())
}

fn port_of(stream: &Value) -> Result<u16> {
    let destination = stream["original_dst"].as_str().context("no destination")?;
    let (_, port) = destination.rsplit_once(':').context("no port")?;
    Ok(port.parse()?)
}

/// What a command prints, whatever its exit code.
fn run(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&command.output()?.stdout).into_owned())
}
