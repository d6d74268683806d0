//! Connections with nodes by the view of a proxy, with a real API server and its proxy for pods: who
//! may, what the log says, and when they end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::process::Signal;
use culvert_lab::{wait, workspace};
use serde_json::Value;

use crate::cluster::{DEADLINE, with_server};
use crate::identity::site::{Agent, agent_token, create_objects};
use crate::loopback::{STREAM_TIMEOUT, echo, echo_backend};
use crate::proxy::Proxy;
use crate::view::site::{Account, NAMESPACE, Role, Running, Site, unbind};

/// More than all buffers on the way have.
const BYTES: u32 = 4 << 20;
/// A port that the agent does not dial.
const FORBIDDEN: &str = "edge-1:9";

#[test]
fn a_user_with_the_role_connects_and_the_log_says_who_it_was() {
    with_server(|server| {
        let world = World::start(server)?;
        let ada = world.site.account(server, "ada", Role::Connect)?;
        let target = world.target();
        // The echo ends after the user's end has come there. The API server's proxy for pods knows no
        // half of a connection.
        let mut sent = Vec::new();
        for number in 0..BYTES / 4 {
            sent.extend(number.wrapping_mul(0x9e37_79b9).to_le_bytes());
        }
        let back = through(&ada, &target, &sent)?;
        ensure!(back == sent, "{} bytes of {BYTES} came back", back.len());
        let user = format!("user system:serviceaccount:{NAMESPACE}:ada");
        let ended = [
            ("frontend", "view"),
            ("client.addr", &user),
            ("node", "edge-1"),
            ("outcome", "finished"),
        ];
        let proxy = &world.site.proxy.process;
        proxy.wait_logged("stream ended", &ended, DEADLINE)?;
        let refused = ada.culvert(&["connect", FORBIDDEN])?;
        ensure!(!refused.status.success(), "{refused:?}");
        let ended = [
            ("client.addr", user.as_str()),
            ("original_dst", FORBIDDEN),
            ("outcome", "forbidden"),
        ];
        proxy.wait_logged("stream ended", &ended, DEADLINE)
    });
}

#[test]
fn nobody_else_connects_and_a_role_for_a_node_is_one_for_that_node() {
    with_server(|server| {
        let world = World::start(server)?;
        for (name, role, resource) in [
            ("reader", Role::View, "connections.culvert.dev/edge-1"),
            (
                "other",
                Role::ConnectEdge2,
                "connections.culvert.dev/edge-1",
            ),
            // It does not learn which proxy has the node either.
            ("passer", Role::Way, "proxies.culvert.dev"),
        ] {
            let user = world.site.account(server, name, role)?;
            let refused = user.culvert(&["connect", &world.target()])?;
            let said = String::from_utf8_lossy(&refused.stderr);
            ensure!(!refused.status.success(), "{name}: {refused:?}");
            ensure!(said.contains(resource), "{name}: {refused:?}");
            // It is allowed edge-2, which is offline.
            let offline = user.culvert(&["connect", "edge-2:22"])?;
            let said = String::from_utf8_lossy(&offline.stderr);
            let is_allowed = !said.contains("culvert.dev");
            ensure!(is_allowed == (role == Role::ConnectEdge2), "{offline:?}");
        }
        ensure!(world.streams()?.is_empty(), "{:?}", world.streams());
        Ok(())
    });
}

#[test]
fn an_interrupted_forward_leaves_nothing() {
    with_server(|server| {
        let world = World::start(server)?;
        let ada = world.site.account(server, "ada", Role::Connect)?;
        let words = ["forward", &world.target(), "--listen", "127.0.0.1:0"];
        let mut forward = ada.command(&words);
        forward.args(["--output", "json", "--timeout", "30s"]);
        let mut forward = Running(forward.stdout(Stdio::piped()).spawn()?);
        let at = listens(&mut forward)?;
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut client = TcpStream::connect(at)?;
            client.set_read_timeout(Some(STREAM_TIMEOUT))?;
            echo(&mut client)?;
            clients.push(client);
        }
        let streams = world.streams()?;
        ensure!(streams.len() == clients.len(), "{streams:?}");
        for stream in &streams {
            let client = stream["client"].as_str().unwrap_or_default();
            ensure!(client.ends_with(":ada"), "{stream:#}");
        }
        let pid = forward.0.id().to_string();
        workspace::output(Command::new("kill").args(["-INT", &pid]))?;
        let status = forward.0.wait()?;
        ensure!(status.success(), "{status}");
        for mut client in clients {
            let mut rest = Vec::new();
            // An end or a reset.
            let read = client.read_to_end(&mut rest);
            ensure!(rest.is_empty(), "{read:?}: {rest:?}");
        }
        TcpStream::connect(at).err().context("it listens")?;
        world.wait_for_no_stream()
    });
}

#[test]
fn a_bundle_without_names_does_not_say_who_is_connected() {
    with_server(|server| {
        let world = World::start(server)?;
        let user = "grace-hopper";
        let grace = world.site.account(server, user, Role::Connect)?;
        let _open = Open::connect(&grace, &world.target())?;
        let folder = tempfile::tempdir()?;
        for flags in [&[][..], &["--anonymize"]] {
            let file = folder.path().join(format!("{}.tar.gz", flags.len()));
            let mut bundle = grace.command(&["bundle", "--view", "--timeout", "30s"]);
            workspace::output(bundle.args(flags).arg(&file))?;
            let mut texts = Command::new("tar");
            let texts = workspace::output(texts.arg("-xzOf").arg(&file))?;
            ensure!(texts.contains("connect"), "nothing in the bundle: {texts}");
            let has_name = texts.contains(user);
            ensure!(has_name == flags.is_empty(), "{flags:?}: {texts}");
        }
        Ok(())
    });
}

#[test]
fn a_connection_outlives_a_hand_over_and_new_ones_come_by_the_next_proxy() {
    with_server(|server| {
        let mut world = World::start(server)?;
        let ada = world.site.account(server, "ada", Role::Connect)?;
        let mut open = Open::connect(&ada, &world.target())?;
        let mut old = world.site.proxy.succeed()?;
        let proxy = &world.site.proxy.process;
        proxy.wait_logged("this proxy serves in the other one's place", &[], DEADLINE)?;
        open.echo()?;
        old.check().context("the old proxy has a connection")?;
        wait::until("a new one comes by the next proxy", DEADLINE, || {
            Open::connect(&ada, &world.target())?.echo()?;
            ensure!(world.streams()?.len() <= 1, "it is not at the next proxy");
            Ok(())
        })?;
        open.echo()?;
        open.end()?;
        wait::until("the old proxy has ended", DEADLINE, || {
            ensure!(old.check().is_err(), "it runs");
            Ok(())
        })
    });
}

#[test]
fn a_connection_has_the_grace_period_of_a_proxy_that_is_told_to_end_and_then_says_why_it_ends() {
    with_server(|server| {
        let mut world = World::start_with(server, echo_backend()?, &["--grace", "6s"])?;
        let ada = world.site.account(server, "ada", Role::Connect)?;
        let target = world.target();
        let mut open = Open::connect(&ada, &target)?;
        let proxy = &mut world.site.proxy;
        proxy.process.signal(Signal::SIGTERM)?;
        proxy.process.wait_logged("draining", &[], DEADLINE)?;
        open.echo().context("while the proxy drains")?;
        let said = open.wait_cut()?;
        ensure!(said.contains(&target), "{said}");
        wait::until("the proxy has ended", DEADLINE, || {
            ensure!(proxy.process.check().is_err(), "it runs");
            Ok(())
        })?;
        proxy.start_again()?;
        wait::until("the next proxy connects", DEADLINE, || {
            Open::connect(&ada, &target)?.echo()
        })
    });
}

#[test]
fn a_connection_ends_when_its_right_is_withdrawn() {
    with_server(|server| {
        let world = World::start(server)?;
        let ada = world.site.account(server, "ada", Role::Connect)?;
        let open = Open::connect(&ada, &world.target())?;
        unbind(server, "ada")?;
        open.wait_cut()?;
        world.wait_for_no_stream()
    });
}

/// A proxy with a view, and an agent of edge-1 with a server, such as an echo.
pub(crate) struct World {
    pub(crate) site: Site,
    _agent: Agent,
    port: u16,
}

impl World {
    fn start(server: &ApiServer) -> Result<Self> {
        Self::start_with(server, echo_backend()?, &[])
    }

    /// With another server on this port of the node, and further flags of the proxy.
    pub(crate) fn start_with(server: &ApiServer, port: u16, flags: &[&str]) -> Result<Self> {
        create_objects(server)?;
        let mut site = Site::start_with(server, flags)?;
        let token = agent_token(server, "agent", "edge-1")?;
        let agent = Agent::start(server, "agent", &token, port)?;
        let proxy: &mut Proxy = &mut site.proxy;
        let agents = proxy.agents.to_string();
        agent.mount_until(server, "the proxy", |_, told| told.contains(&agents))?;
        wait::until("a stream to the node", DEADLINE, || {
            proxy.process.check()?;
            proxy.stream(&format!("edge-1:{port}")).map(drop)
        })?;
        let world = Self {
            site,
            _agent: agent,
            port,
        };
        world.wait_for_no_stream()?;
        Ok(world)
    }

    fn target(&self) -> String {
        format!("edge-1:{}", self.port)
    }

    /// The connections of clients.
    pub(crate) fn streams(&self) -> Result<Vec<Value>> {
        let page = self.site.proxy.json("/debug/streams")?;
        Ok(page.as_array().context("no list")?.clone())
    }

    pub(crate) fn wait_for_no_stream(&self) -> Result<()> {
        wait::until("no connection is left", DEADLINE, || {
            let streams = self.streams()?;
            ensure!(streams.is_empty(), "{streams:?}");
            Ok(())
        })
    }
}

/// `culvert connect` with an echo.
struct Open {
    connect: Running,
    input: ChildStdin,
    output: ChildStdout,
}

impl Open {
    /// Connects, and hears the echo.
    fn connect(user: &Account, target: &str) -> Result<Self> {
        let mut connect = connect(user, target)?;
        let input = connect.0.stdin.take().context("no input")?;
        let output = connect.0.stdout.take().context("no output")?;
        let mut open = Self {
            connect,
            input,
            output,
        };
        open.echo()?;
        Ok(open)
    }

    fn echo(&mut self) -> Result<()> {
        self.input.write_all(b"still there?")?;
        let mut answer = [0; 12];
        self.output.read_exact(&mut answer)?;
        ensure!(&answer == b"still there?", "{answer:?}");
        Ok(())
    }

    /// Ends the input, and waits for the end in order.
    fn end(self) -> Result<()> {
        let Self {
            mut connect, input, ..
        } = self;
        drop(input);
        let status = connect.0.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }

    /// Waits until it has failed; what it said.
    fn wait_cut(mut self) -> Result<String> {
        wait::until("it ends", DEADLINE, || {
            ensure!(!self.connect.is_running(), "it runs");
            Ok(())
        })?;
        let status = self.connect.0.wait()?;
        ensure!(!status.success(), "a cut looks like an end");
        let mut said = String::new();
        let errors = self.connect.0.stderr.take().context("no errors")?;
        BufReader::new(errors).read_to_string(&mut said)?;
        Ok(said)
    }
}

/// `culvert connect`, with pipes.
fn connect(user: &Account, target: &str) -> Result<Running> {
    let mut connect = user.command(&["connect", target, "--timeout", "30s"]);
    connect.stdin(Stdio::piped()).stdout(Stdio::piped());
    connect.stderr(Stdio::piped());
    Ok(Running(connect.spawn()?))
}

/// What comes back of bytes that a user sends, and then the end.
fn through(user: &Account, target: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut connect = connect(user, target)?;
    let mut input = connect.0.stdin.take().context("no input")?;
    let mut output = connect.0.stdout.take().context("no output")?;
    let mut back = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let sent = scope.spawn(move || input.write_all(bytes));
        output.read_to_end(&mut back)?;
        match sent.join() {
            Ok(sent) => Ok(sent?),
            Err(_) => anyhow::bail!("the writer has panicked"),
        }
    })?;
    let status = connect.0.wait()?;
    ensure!(status.success(), "{status}");
    Ok(back)
}

/// Where `culvert forward` says that it listens.
fn listens(forward: &mut Running) -> Result<SocketAddr> {
    let output = forward.0.stdout.take().context("no output")?;
    let mut said = String::new();
    for line in BufReader::new(output).lines() {
        said += &line?;
        if let Ok(forwarded) = serde_json::from_str::<Value>(&said) {
            let listens = forwarded["listens"].as_str().context("no address")?;
            return Ok(listens.parse()?);
        }
    }
    anyhow::bail!("it has ended: {said}")
}
