//! No descriptors left: new connections are refused at once, nothing spins, and what is established goes on.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use xtask::lab::culvert::Options;
use xtask::lab::place::Place;
use xtask::lab::process::Process;
use xtask::{wait, workspace};

use super::expect_idle;
use crate::connect::connect;
use crate::world::{self, ECHO, HeldClient, World};

/// So many free numbers in a row are no gap.
const ROOM: u32 = 10;
/// More than the gaps that closed files leave among a program's descriptors.
const FILLERS: usize = 60;

#[test]
fn a_proxy_without_descriptors_resets_new_clients_at_once_and_serves_them_when_it_has_some() {
    world::with(&[Place::Edge1], Options::default(), |world| {
        exhausted(world, Program::Proxy, |world| match connect(world, &format!("edge-1:{ECHO}")) {
            Ok(answer) => {
                ensure!(answer.head.is_empty(), "{answer:?}");
                Ok(())
            }
            Err(error) => {
                let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
                ensure!(matches!(kind, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)), "{error:#}");
                Ok(())
            }
        })?;
        world.wait_proxy_log(&["WARN", "accept", "Too many open files", "refused=true"])
    });
}

#[test]
fn an_agent_without_descriptors_refuses_new_streams_and_serves_them_when_it_has_some() {
    world::with(&[Place::Edge1], Options::default(), |world| {
        exhausted(world, Program::Agent, |world| {
            let answer = format!("{:?}", connect(world, &format!("edge-1:{ECHO}"))?);
            ensure!(answer.contains("502 Bad Gateway") && answer.contains("Too many open files"), "{answer}");
            Ok(())
        })?;
        world.wait_proxy_log(&["stream ended", "Too many open files"])
    });
}

/// Whose descriptors are used up.
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

/// `refused`: fails unless a client of the CONNECT socket is.
fn exhausted(world: &mut World<'_>, program: Program, refused: impl Fn(&World<'_>) -> Result<()>) -> Result<()> {
    let mut established = hold(world, "20")?;
    established.expect("held")?;
    let leaving = hold(world, "5")?;
    leaving.expect("held")?;
    limit_to_open_files(program.of(world))?;
    let fillers = fill(world)?;
    for _ in 0..20 {
        let steered = world.failing_client(&["talk", &format!("edge-1:{ECHO}"), "--send", "x"])?;
        ensure!(steered.contains("ConnectionReset"), "{steered}");
        refused(world)?;
    }
    established.check()?;
    expect_idle("the program", program.of(world), Duration::from_secs(3), || Ok(()))?;
    established.check()?;
    drop((fillers, leaving));
    wait::until("a new client is served", Duration::from_secs(5), || hold(world, "1")?.expect("held"))?;
    established.check()
}

fn hold(world: &World<'_>, count: &str) -> Result<HeldClient> {
    world.held_client(&["hold", &format!("edge-1:{ECHO}"), count])
}

/// Allows a running program no descriptor beyond those that it has, but for small gaps among them. Lone high ones it was born with.
fn limit_to_open_files(process: &Process) -> Result<()> {
    let pid = process.pid();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).context("list its files")?;
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let numbers: BTreeSet<u32> = numbers.collect();
    let is_free = |first: &u32| numbers.range(*first..first + ROOM).next().is_none();
    let limit = (0..).find(is_free).context("it has all files")?;
    let mut command = Command::new("prlimit");
    workspace::output(command.args(["--pid", &pid.to_string(), &format!("--nofile={limit}:{limit}")]))?;
    Ok(())
}

/// Clients that take what is left, until one is refused.
fn fill(world: &World<'_>) -> Result<Vec<HeldClient>> {
    let mut fillers = Vec::new();
    while fillers.len() < FILLERS {
        let filler = hold(world, "1")?;
        if filler.line(Duration::from_secs(30))? != "held" {
            return Ok(fillers);
        }
        fillers.push(filler);
    }
    bail!("{FILLERS} more clients were served")
}
