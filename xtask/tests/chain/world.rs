//! The lab with Culvert and backends in it that every test starts from, and clients in the cloud.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use xtask::lab::culvert::{Culvert, Options};
use xtask::lab::place::Place;
use xtask::lab::process::Process;
use xtask::lab::{Lab, LabName};
use xtask::{wait, workspace};

pub(crate) const ECHO: u16 = 9001;
pub(crate) const SINK: u16 = 9002;
/// 1 GiB.
pub(crate) const SOURCE: u16 = 9003;
pub(crate) const GREET: u16 = 9004;
/// 64 MiB: what a stalled reader leaves unread.
pub(crate) const SMALL_SOURCE: u16 = 9005;
/// Served on the edges, but in no allow-list.
pub(crate) const FORBIDDEN: u16 = 9666;

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

/// Long enough for whatever a client does on two busy cores.
const CLIENT_TIME: Duration = Duration::from_secs(120);

/// Whether this test can run; says why not.
pub(crate) fn may_run() -> bool {
    if workspace::is_root() {
        return true;
    }
    assert!(std::env::var("REQUIRE_PRIVILEGED").as_deref() != Ok("1"), "REQUIRE_PRIVILEGED=1, but this is not root");
    eprintln!("skipped: making network namespaces and loading eBPF programs needs root");
    false
}

/// Runs a test in a lab with Culvert on the given edges.
pub(crate) fn with(edges: &[Place], options: Options, test: impl FnOnce(&mut World<'_>) -> Result<()>) {
    in_lab(|lab| {
        let backends = edges.iter().map(|place| serve(lab, *place)).collect::<Result<Vec<_>>>()?;
        let culvert = Culvert::start(lab, edges, with_ports(options))?;
        test(&mut World::of(lab, culvert, backends))
    });
}

/// Runs a test in a lab without Culvert.
pub(crate) fn in_lab(test: impl FnOnce(&Lab) -> Result<()>) {
    if !may_run() {
        return;
    }
    let lab = Lab::start(LabName::Test).expect("the lab");
    // The panic comes while the lab is up, so that it shows its logs.
    if let Err(error) = test(&lab) {
        panic!("{error:#}");
    }
}

/// The ports of the usual backends beside the default ones.
pub(crate) fn with_ports(mut options: Options) -> Options {
    options.ports.extend([ECHO, SINK, SOURCE, GREET, SMALL_SOURCE]);
    options
}

/// The usual backends of a node.
pub(crate) fn serve(lab: &Lab, place: Place) -> Result<Process> {
    let site = lab.site(place);
    let mut command = site.command(XTASK);
    command.args(["probe", "serve", "9001=echo", "9002=sink", "9004=greet", "9666=echo", "9100=greet"]);
    command.arg(format!("{SOURCE}=source:{GIB}")).arg(format!("{SMALL_SOURCE}=source:{}", 64 << 20));
    let mut server = site.start_process("backends", &mut command)?;
    wait::until("the backends listen", Duration::from_secs(10), || {
        server.check()?;
        server.log().contains("ready").then_some(()).context("not yet")
    })?;
    Ok(server)
}

/// A lab with Culvert in it.
pub(crate) struct World<'lab> {
    pub(crate) lab: &'lab Lab,
    pub(crate) culvert: Culvert<'lab>,
    _backends: Vec<Process>,
}

impl<'lab> World<'lab> {
    /// Culvert and backends that were started by hand.
    pub(crate) fn of(lab: &'lab Lab, culvert: Culvert<'lab>, backends: Vec<Process>) -> Self {
        Self { lab, culvert, _backends: backends }
    }

    /// What a client in the cloud prints.
    pub(crate) fn client(&self, args: &[&str]) -> Result<String> {
        client(self.lab, Place::Cloud, args)
    }

    /// What a client prints that must fail.
    pub(crate) fn failing_client(&self, args: &[&str]) -> Result<String> {
        match self.client(args) {
            Ok(line) => bail!("{args:?} went through: {line}"),
            Err(failure) => Ok(failure.to_string()),
        }
    }

    /// A client in the cloud that is steered line by line.
    pub(crate) fn held_client(&self, args: &[&str]) -> Result<HeldClient> {
        HeldClient::start(self.lab, args)
    }

    /// The greeting of whichever node answers.
    pub(crate) fn greeting(&self, host: &str) -> Result<String> {
        self.client(&["talk", &format!("{host}:{GREET}")])
    }

    /// Waits until a node answers by a name or address.
    pub(crate) fn wait_greeting(&self, host: &str, deadline: Duration) -> Result<()> {
        wait::until(&format!("{host} answers"), deadline, || self.greeting(host).map(drop))
    }
}

/// What a client at a place prints; its failure line is the error.
pub(crate) fn client(lab: &Lab, place: Place, args: &[&str]) -> Result<String> {
    let done = lab
        .site(place)
        .command("timeout")
        .arg(CLIENT_TIME.as_secs().to_string())
        .arg(XTASK)
        .arg("probe")
        .args(args)
        .output()?;
    let line = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    if !done.status.success() {
        bail!("{line}{}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(line)
}

/// A client that goes on until it is dropped.
pub(crate) struct HeldClient {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl HeldClient {
    fn start(lab: &Lab, args: &[&str]) -> Result<Self> {
        let mut command = lab.site(Place::Cloud).command(XTASK);
        let mut child = command.arg("probe").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        let (line_tx, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| line_tx.send(line))
        });
        Ok(Self { child, input, lines })
    }

    /// Waits for its next line.
    pub(crate) fn expect(&self, expected: &str) -> Result<()> {
        let line =
            self.lines.recv_timeout(CLIENT_TIME).with_context(|| format!("the client never said {expected:?}"))?;
        if line == expected { Ok(()) } else { bail!("the client said {line:?}, not {expected:?}") }
    }

    /// Has it try all its connections.
    pub(crate) fn check(&mut self) -> Result<()> {
        writeln!(self.input, "check")?;
        self.expect("ok")
    }
}

impl Drop for HeldClient {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
