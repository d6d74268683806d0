//! The lab with Culvert and backends that every test starts from, and clients in the cloud.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Culvert, Options, PROXY_ADMIN, REDIRECTOR_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Failure, Passed, Report};
use culvert_lab::process::Process;
use culvert_lab::skip::may_make_labs;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, LineProcess, progress, workspace};
use serde_json::Value;

pub(crate) const ECHO: u16 = 9001;
pub(crate) const SINK: u16 = 9002;
/// 1 GiB.
pub(crate) const SOURCE: u16 = 9003;
pub(crate) const GREET: u16 = 9004;
/// Sends [`SMALL`] bytes; a stalled reader does not read them.
pub(crate) const SMALL_SOURCE: u16 = 9005;
/// Answers with [`HASTY_ANSWER`] bytes and closes without reading the rest.
pub(crate) const HASTY: u16 = 9006;
pub(crate) const HASTY_ANSWER: u64 = 16 << 10;
/// Served on the edges, but not in any allow-list.
pub(crate) const FORBIDDEN: u16 = 9666;

/// The tunnels that an agent keeps to each proxy by default.
const AGENT_TUNNELS: usize = 2;
pub(crate) const GIB: u64 = 1 << 30;
/// 64 MiB.
pub(crate) const SMALL: u64 = 64 << 20;

/// The program of all tasks, which has servers and clients for labs too.
pub(crate) fn xtask() -> PathBuf {
    workspace::binary("xtask")
}

/// Time for anything that a client does on two busy cores.
const CLIENT_TIME: Duration = Duration::from_secs(240);

/// Runs a test in a lab with Culvert on the given edges.
pub(crate) fn with(
    edges: &[Host],
    options: Options,
    test: impl FnOnce(&mut World<'_>) -> Result<()>,
) {
    prepared(edges, |_| Ok(options), test);
}

/// The same, with options that need files which the test creates in the lab.
pub(crate) fn prepared(
    edges: &[Host],
    options: impl FnOnce(&Lab) -> Result<Options>,
    test: impl FnOnce(&mut World<'_>) -> Result<()>,
) {
    in_lab(|lab| {
        let options = with_defaults(options(lab)?);
        let backends = edges
            .iter()
            .map(|host| serve(lab, *host))
            .collect::<Result<Vec<_>>>()?;
        let culvert = Culvert::start(lab, edges, options)?;
        let mut world = World::of(lab, culvert, backends);
        test(&mut world).inspect_err(|_| show_hook_counters(lab))
    });
}

/// A failed connection may be one that the connect hooks counted.
fn show_hook_counters(lab: &Lab) {
    let metrics = lab.site(Host::Cloud).http_get(REDIRECTOR_ADMIN, "/metrics");
    for line in metrics.unwrap_or_default().lines() {
        if line.starts_with("culvert_redirector_kernel_connections") {
            progress::say(line);
        }
    }
}

/// Flags of an agent with one tunnel to each proxy, whatever it carries.
pub(crate) fn one_tunnel() -> Vec<String> {
    ["--tunnels", "1"].map(str::to_owned).into()
}

/// Options for the proxy alone.
pub(crate) fn proxy_options<S: Into<String>>(args: impl IntoIterator<Item = S>) -> Options {
    Options {
        proxy: args.into_iter().map(Into::into).collect(),
        ..Options::default()
    }
}

/// Runs a test in a lab without Culvert.
pub(crate) fn in_lab(test: impl FnOnce(&Lab) -> Result<()>) {
    if !may_make_labs() {
        return;
    }
    let lab = Lab::start_test().expect("the lab");
    // The panic must happen while the lab is up, so that its logs are shown.
    if let Err(error) = test(&lab) {
        panic!("{error:#}");
    }
}

/// Adds the ports of the usual backends, and logs in JSON. Agents keep the same tunnels, whatever
/// these carry, unless a flag says otherwise.
pub(crate) fn with_defaults(mut options: Options) -> Options {
    for environment in [&mut options.cloud_env, &mut options.agent_env] {
        environment.push(("CULVERT_LOG_FORMAT".to_owned(), "json".to_owned()));
    }
    options
        .agent_env
        .push(("CULVERT_EXTRA_TUNNELS".to_owned(), "0".to_owned()));
    options
        .ports
        .extend([ECHO, SINK, SOURCE, GREET, SMALL_SOURCE, HASTY]);
    options
}

/// Starts the usual backends of a node.
pub(crate) fn serve(lab: &Lab, host: Host) -> Result<Process> {
    let site = lab.site(host);
    let mut command = site.command(xtask());
    command.args([
        "probe",
        "serve",
        "9001=echo",
        "9002=sink",
        "9004=greet",
        "9666=echo",
        "9100=greet",
    ]);
    command
        .arg(format!("{SOURCE}=source:{GIB}"))
        .arg(format!("{SMALL_SOURCE}=source:{SMALL}"));
    command.arg(format!("{HASTY}=hasty:{HASTY_ANSWER}"));
    let mut server = site.start_process("backends", &mut command)?;
    wait::until("the backends listen", Duration::from_secs(60), || {
        server.check()?;
        server
            .log()
            .contains("ready")
            .then_some(())
            .context("not yet")
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
    /// Wraps Culvert and backends that the test started itself.
    pub(crate) fn of(lab: &'lab Lab, culvert: Culvert<'lab>, backends: Vec<Process>) -> Self {
        Self {
            lab,
            culvert,
            _backends: backends,
        }
    }

    /// The report of a client in the cloud. If the client fails, that is the error.
    pub(crate) fn client(&self, client: &Client) -> Result<Report> {
        client_at(self.lab, Host::Cloud, client)
    }

    /// The failure of a client in the cloud.
    pub(crate) fn failing_client(&self, client: &Client) -> Result<Failure> {
        match self.client(client) {
            Ok(report) => bail!("{client:?} went through: {report:?}"),
            Err(error) => error.downcast(),
        }
    }

    /// A server's answer to a text. Without a text, the server's first line.
    pub(crate) fn talk(&self, target: &str, text: &str) -> Result<String> {
        let report = self.client(&Client::talk(target, text))?;
        let Report::Answer(answer) = report else {
            bail!("{target}: {report:?}")
        };
        Ok(answer)
    }

    /// Everything that a server sends until it closes.
    pub(crate) fn download(&self, target: &str) -> Result<Passed> {
        let target = target.to_owned();
        let report = self.client(&Client::Download { target })?;
        let Report::Received(passed) = report else {
            bail!("{report:?}")
        };
        Ok(passed)
    }

    /// The number of connections, of `count`, that are answered while each waits for `patience`.
    pub(crate) fn count_answered(
        &self,
        target: &str,
        count: usize,
        patience: Duration,
    ) -> Result<usize> {
        let target = target.to_owned();
        let report = self.client(&Client::GiveUp {
            target,
            count,
            patience,
        })?;
        let Report::Answered(answered) = report else {
            bail!("{report:?}")
        };
        Ok(answered)
    }

    /// A client in the cloud that acts on lines of input.
    pub(crate) fn held_client(&self, client: &Client) -> Result<HeldClient> {
        let mut command = self.lab.site(Host::Cloud).command(xtask());
        HeldClient::spawn(client.complete(&mut command)?)
    }

    /// Established connections to an echo.
    pub(crate) fn hold(&self, target: impl Into<String>, count: usize) -> Result<HeldClient> {
        let client = self.held_client(&Client::hold_open(target, count))?;
        client.expect(&Report::Held)?;
        Ok(client)
    }

    /// Connections with data waiting that the client does not read.
    pub(crate) fn stall(&self, target: impl Into<String>, count: usize) -> Result<HeldClient> {
        let client = self.held_client(&Client::stall(target, count))?;
        client.expect(&Report::Stalled)?;
        Ok(client)
    }

    /// The greeting of the node that answers.
    pub(crate) fn greeting(&self, host: &str) -> Result<String> {
        self.talk(&format!("{host}:{GREET}"), "")
    }

    /// Fails if a node does not greet the client that dials it.
    pub(crate) fn check_greeting(&self, host: &str, node: &str) -> Result<()> {
        let greeting = self.greeting(host).with_context(|| host.to_owned())?;
        ensure!(
            greeting == format!("hello from {node}"),
            "{host}: {greeting}"
        );
        Ok(())
    }

    /// A node's VIP, `vip4` or `vip6`, as the proxy reports it.
    pub(crate) fn vip(&self, host: Host, family: &str) -> Result<IpAddr> {
        let nodes = self
            .lab
            .site(Host::Cloud)
            .json(PROXY_ADMIN, "/debug/nodes")?;
        let node = nodes
            .as_array()
            .and_then(|all| all.iter().find(|node| node["name"] == host.name()));
        let vip = node
            .and_then(|node| node[family].as_str())
            .with_context(|| format!("no {family} in {nodes}"))?;
        Ok(vip.parse()?)
    }

    /// The numbers of all tunnels that are up. Numbers are never reused.
    pub(crate) fn tunnel_numbers(&self) -> Result<Vec<u64>> {
        let tunnels = self.tunnels()?;
        let numbers = tunnels.iter().map(|tunnel| tunnel["tunnel"].as_u64());
        Ok(numbers.flatten().collect())
    }

    /// All tunnels that are up, as the proxy's page has them.
    fn tunnels(&self) -> Result<Vec<Value>> {
        let cloud = self.lab.site(Host::Cloud);
        let Value::Array(tunnels) = cloud.json(PROXY_ADMIN, "/debug/tunnels")? else {
            bail!("the page of tunnels is no list");
        };
        Ok(tunnels)
    }

    /// The tunnels of a node that are up, as the proxy's page has them.
    pub(crate) fn tunnels_of(&self, node: &str) -> Result<Vec<Value>> {
        let mut tunnels = self.tunnels()?;
        tunnels.retain(|tunnel| tunnel["node"] == node);
        Ok(tunnels)
    }

    /// The same once edge-1 has as many tunnels as its agent keeps: a start ends with the first one.
    pub(crate) fn numbers_of_all_tunnels(&self) -> Result<Vec<u64>> {
        let name = Host::Edge1.name();
        wait::until("edge-1 has all tunnels", PATIENCE, || {
            let tunnels = self.culvert.tunnels(name)?;
            ensure!(tunnels == AGENT_TUNNELS, "{name} has {tunnels} tunnels");
            Ok(())
        })?;
        self.tunnel_numbers()
    }

    /// Waits until neither end of edge-1's tunnels has a stream: then all have been logged.
    pub(crate) fn wait_for_no_streams(&self) -> Result<()> {
        wait::until("no stream is left", Duration::from_secs(30), || {
            for (host, port) in [(Host::Cloud, PROXY_ADMIN), (Host::Edge1, AGENT_ADMIN)] {
                let streams = self.lab.site(host).json(port, "/debug/streams")?;
                ensure!(
                    streams.as_array().is_some_and(Vec::is_empty),
                    "{port}: {streams}"
                );
            }
            Ok(())
        })
    }

    /// Waits until the proxy has logged this message, with fields that contain these texts.
    pub(crate) fn wait_proxy_log(&self, message: &str, fields: &[(&str, &str)]) -> Result<()> {
        self.culvert.proxy.wait_logged(message, fields, PATIENCE)
    }

    /// Waits until `/readyz` of a program reports that it is not ready for this reason.
    pub(crate) fn wait_missing(&self, host: Host, port: u16, reason: &str) -> Result<()> {
        wait::until(
            &format!("/readyz on {port} tells of {reason:?}"),
            PATIENCE,
            || {
                let error = self
                    .lab
                    .site(host)
                    .http_get(port, "/readyz")
                    .err()
                    .context("it is ready")?
                    .to_string();
                ensure!(error.contains(" 503 ") && error.contains(reason), "{error}");
                Ok(())
            },
        )
    }

    /// Waits until a node answers at a name or address.
    pub(crate) fn wait_greeting(&self, host: &str, deadline: Duration) -> Result<()> {
        wait::until(&format!("{host} answers"), deadline, || {
            self.greeting(host).map(drop)
        })
    }
}

/// The report of a client on a host. If the client fails, that is the error.
pub(crate) fn client_at(lab: &Lab, host: Host, client: &Client) -> Result<Report> {
    let mut command = lab.site(host).command("timeout");
    command.arg(CLIENT_TIME.as_secs().to_string()).arg(xtask());
    report(client.complete(&mut command)?)
}

/// Runs a client to its end.
pub(crate) fn report(command: &mut Command) -> Result<Report> {
    let done = command.output()?;
    let said = String::from_utf8_lossy(&done.stdout);
    let report = serde_json::from_str(said.trim()).with_context(|| {
        let error = String::from_utf8_lossy(&done.stderr);
        format!("{command:?} ended with {}: {said}{error}", done.status)
    })?;
    if let Report::Failed(failure) = report {
        return Err(failure.into());
    }
    Ok(report)
}

/// A client that runs until it is dropped.
pub(crate) struct HeldClient(LineProcess);

impl HeldClient {
    /// Starts a client that acts on lines of input.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        LineProcess::start(command).map(Self)
    }

    /// The next line of its output.
    pub(crate) fn line(&self, deadline: Duration) -> Result<String> {
        self.0
            .line(deadline)
            .context("the client said nothing in time")
    }

    /// Its next report.
    pub(crate) fn report(&self, deadline: Duration) -> Result<Report> {
        let line = self.line(deadline)?;
        serde_json::from_str(&line).with_context(|| format!("the client said {line:?}"))
    }

    /// Waits for its next report.
    pub(crate) fn expect(&self, expected: &Report) -> Result<()> {
        let report = self
            .report(CLIENT_TIME)
            .with_context(|| format!("expected {expected:?}"))?;
        ensure!(
            report == *expected,
            "the client reports {report:?}, not {expected:?}"
        );
        Ok(())
    }

    /// Makes it do its next step: test all its connections, or continue to read.
    pub(crate) fn next(&mut self, expected: &Report) -> Result<()> {
        self.ask()?;
        self.expect(expected)
    }

    /// Makes it do its next step, and does not wait for the report.
    pub(crate) fn ask(&mut self) -> Result<()> {
        self.0.send("next").context("the client is gone")
    }

    /// Makes it test all its connections.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.next(&Report::AllServed)
    }
}
