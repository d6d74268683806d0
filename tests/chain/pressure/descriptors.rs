//! Without free file descriptors, new connections are refused at once, no program spins, and
//! established connections continue.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client, Report};
use culvert_lab::process::Process;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use super::expect_idle;
use crate::connect;
use crate::world::{self, ECHO, HeldClient, World};

/// This many consecutive free numbers are not counted as a gap.
const ROOM: u32 = 10;
/// More than the gaps that closed files leave among a program's descriptors.
const FILLERS: usize = 60;
/// Clients that connect meanwhile.
const ROUNDS: usize = 20;

#[test]
fn a_proxy_without_descriptors_resets_new_clients_at_once_and_serves_them_when_it_has_some() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        exhausted(world, Program::Proxy, |world| {
            // To refuse a connection, the listener gives up a descriptor for a moment. Another
            // listener's client may get it.
            let gone =
                (0..ROUNDS).map(|_| is_gone(connect::open(world, &format!("edge-1:{ECHO}"))));
            let gone = gone.collect::<Result<Vec<_>>>()?;
            ensure!(gone.contains(&true), "all are served");
            Ok(())
        })?;
        world.wait_proxy_log(
            "accept",
            &[("error", "Too many open files"), ("refused", "true")],
        )
    });
}

#[test]
fn an_agent_without_descriptors_refuses_new_streams_and_serves_them_when_it_has_some() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        exhausted(world, Program::Agent, |world| {
            for _ in 0..ROUNDS {
                let answer = format!("{:?}", connect::connect(world, &format!("edge-1:{ECHO}"))?);
                ensure!(
                    answer.contains("502 Bad Gateway") && answer.contains("Too many open files"),
                    "{answer}"
                );
            }
            Ok(())
        })?;
        world.wait_proxy_log("stream ended", &[("reason", "Too many open files")])
    });
}

/// The program whose descriptors are used up.
#[derive(Clone, Copy)]
enum Program {
    Proxy,
    Agent,
}

impl Program {
    fn of<'world>(self, world: &'world mut World<'_>) -> &'world Process {
        match self {
            Self::Proxy => &world.culvert.proxy,
            Self::Agent => world.culvert.agent(0),
        }
    }
}

/// Whether the proxy has closed a client's connection to the CONNECT socket, when it serves another
/// one.
fn is_gone(client: Result<UnixStream>) -> Result<bool> {
    let first = client.and_then(|mut client| {
        let mut first = [0; 12];
        let read = client.read(&mut first)?;
        Ok(first[..read].to_vec())
    });
    match first {
        Ok(first) if first.is_empty() => Ok(true),
        Ok(first) => {
            ensure!(
                first == b"HTTP/1.1 200",
                "{}",
                String::from_utf8_lossy(&first)
            );
            Ok(false)
        }
        Err(error) => match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Ok(true),
            _ => Err(error),
        },
    }
}

/// `refused`: clients of the CONNECT socket must be refused.
fn exhausted(
    world: &mut World<'_>,
    program: Program,
    refused: impl Fn(&World<'_>) -> Result<()>,
) -> Result<()> {
    let mut established = world.hold(format!("edge-1:{ECHO}"), 20)?;
    let leaving = world.hold(format!("edge-1:{ECHO}"), 5)?;
    limit_to_open_files(program.of(world))?;
    let fillers = fill(world)?;
    for _ in 0..ROUNDS {
        let steered = world.failing_client(&Client::talk(format!("edge-1:{ECHO}"), "x"))?;
        ensure!(steered.cause == Cause::Reset, "{steered}");
    }
    refused(world)?;
    established.check()?;
    expect_idle(
        "the program",
        program.of(world),
        Duration::from_secs(3),
        || Ok(()),
    )?;
    established.check()?;
    drop((fillers, leaving));
    wait::until("a new client is served", PATIENCE, || {
        world.hold(format!("edge-1:{ECHO}"), 1).map(drop)
    })?;
    established.check()
}

/// Limits a running program to the descriptors that it has, plus small gaps between them. Single
/// high ones are inherited.
fn limit_to_open_files(process: &Process) -> Result<()> {
    let pid = process.pid();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).context("list its files")?;
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let numbers: BTreeSet<u32> = numbers.collect();
    let is_free = |first: &u32| numbers.range(*first..first + ROOM).next().is_none();
    let limit = (0..).find(is_free).context("it has all files")?;
    let mut command = Command::new("prlimit");
    workspace::output(command.args([
        "--pid",
        &pid.to_string(),
        &format!("--nofile={limit}:{limit}"),
    ]))?;
    Ok(())
}

/// Starts clients until one is refused, so that no descriptors are left.
fn fill(world: &World<'_>) -> Result<Vec<HeldClient>> {
    let mut fillers = Vec::new();
    while fillers.len() < FILLERS {
        let filler = world.held_client(&Client::hold_open(format!("edge-1:{ECHO}"), 1))?;
        if filler.report(Duration::from_secs(30))? != Report::Held {
            return Ok(fillers);
        }
        fillers.push(filler);
    }
    bail!("{FILLERS} more clients were served")
}
