//! Tests of docs/troubleshooting.md and of the other documents that operators use for faults: the
//! named tools exist and report what the documents promise.

use std::collections::BTreeSet;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Culvert, Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::Client;
use culvert_lab::site::Site;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, page, workspace};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::world::{self, FORBIDDEN, GREET, SINK, xtask};

const EDGE: &[Host] = &[Host::Edge1];

#[test]
fn a_stalled_backend_is_found_by_its_stream_at_both_ends() {
    world::in_lab(|lab| {
        let _culvert = Culvert::start(lab, EDGE, world::with_defaults(Options::default()))?;
        let cloud = lab.site(Host::Cloud);
        let edge = lab.site(Host::Edge1);
        let mut serve = edge.command(xtask());
        let backend = edge.start_process(
            "stalled",
            serve.args(["probe", "serve", &format!("{SINK}=sink")]),
        )?;
        wait::until("the backend listens", PATIENCE, || {
            backend
                .log()
                .contains("ready")
                .then_some(())
                .context("not yet")
        })?;
        // The kernel still accepts connections for it.
        backend.signal(Signal::SIGSTOP)?;
        let mut upload = cloud.command(xtask());
        Client::upload(format!("edge-1:{SINK}"), 64 << 20).complete(&mut upload)?;
        let mut upload = upload.stdout(Stdio::null()).spawn()?;
        let found = wait::until(
            "both ends show a stream that stands still",
            PATIENCE,
            || {
                let near = only_stream(cloud, PROXY_ADMIN)?;
                let far = only_stream(edge, AGENT_ADMIN)?;
                ensure!(near["stream"] == far["stream"], "{near} {far}");
                let number = |view: &Value, field: &str| {
                    view[field]
                        .as_f64()
                        .with_context(|| format!("no {field}: {view}"))
                };
                for view in [&near, &far] {
                    ensure!(number(view, "idle_to_backend_seconds")? >= 2.0, "{view}");
                }
                let waiting =
                    number(&near, "bytes_to_backend")? - number(&far, "bytes_to_backend")?;
                ensure!(waiting > 0.0, "nothing waits in the tunnel: {near} {far}");
                // The agent's page, by the way that an operator in the cloud uses.
                let page = cloud.output(
                    "curl",
                    ["-sf", &format!("http://edge-1:{AGENT_ADMIN}/debug/streams")],
                )?;
                ensure!(page.contains(&format!("\"port\":{SINK}")), "{page}");
                let sockets = edge.output("ss", ["-tnH", &format!("dport = :{SINK}")])?;
                let unsent = sockets
                    .split_whitespace()
                    .nth(2)
                    .and_then(|queue| queue.parse::<u64>().ok());
                ensure!(
                    unsent.is_some_and(|bytes| bytes > 0),
                    "no Send-Q towards the backend: {sockets}"
                );
                Ok([near, far])
            },
        );
        upload.kill()?;
        upload.wait()?;
        let real = found?;
        let written = written_streams()?;
        ensure!(
            real.each_ref().map(fields) == written.each_ref().map(fields),
            "shown {real:?}\nwritten {written:?}"
        );
        Ok(())
    });
}

/// The stream of a stalled backend, as the document shows it for the proxy and for the agent.
fn written_streams() -> Result<[Value; 2]> {
    let text = page::read("troubleshooting.md")?;
    let objects = text.match_indices("\n{").filter_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
        values.next()?.ok()
    });
    let streams: Vec<Value> = objects
        .filter(|object| object.get("stream").is_some())
        .collect();
    streams
        .try_into()
        .map_err(|streams| anyhow::anyhow!("not one stream from each end: {streams:?}"))
}

fn fields(object: &Value) -> BTreeSet<&str> {
    object
        .as_object()
        .into_iter()
        .flat_map(|object| object.keys().map(String::as_str))
        .collect()
}

/// The stream to [`SINK`] as a program shows it.
fn only_stream(site: &Site, admin: u16) -> Result<Value> {
    let streams = site.json(admin, "/debug/streams")?;
    let target = format!(":{SINK}");
    let is_it = |view: &&Value| {
        view["original_dst"]
            .as_str()
            .is_some_and(|dst| dst.ends_with(&target))
    };
    streams
        .as_array()
        .into_iter()
        .flatten()
        .find(is_it)
        .cloned()
        .with_context(|| format!("no stream in {streams}"))
}

#[test]
fn explain_tells_what_becomes_of_a_destination_and_how_its_dial_goes() {
    world::with(EDGE, Options::default(), |world| {
        for (asked, words) in [
            (
                "10.0.3.7:9004",
                &[
                    "address of edge-1\n",
                    "steering   steered\n",
                    "up for",
                    "agent      dials 10.0.3.7:9004",
                ][..],
            ),
            ("10.0.3.7:1", &["passes: steered on ports", "fix"]),
            (
                "edge-1.edge.internal",
                &[
                    "name of edge-1",
                    "dns        edge-1 and edge-1.edge.internal: A 198.18.",
                ],
            ),
            (
                &format!("edge-1:{FORBIDDEN}"),
                &["refuses to dial 10.0.3.7:9666", "--port 9666"],
            ),
            ("192.0.2.1:80", &["not an edge node's address"]),
        ] {
            says(&world.culvert.why(asked)?, words)?;
        }
        let dial = |port: u16| {
            let target = format!("edge-1:{port}");
            workspace::output(&mut world.culvert.control(&["why", &target]))
        };
        says(&dial(GREET)?, &["ok       dial       ok: "])?;
        let forbidden = dial(FORBIDDEN).err().context("it went through")?;
        says(
            &forbidden.to_string(),
            &["edge-1:9666 is reached from 0 of 1"],
        )?;
        world.check_greeting("edge-1", "edge-1")
    });
}

#[test]
fn a_node_that_does_not_exist_is_an_error_of_every_command_that_takes_one() {
    world::with(EDGE, Options::default(), |world| {
        for words in [
            &["why", "edge-9"][..],
            &["why", "edge-9:9100"],
            &["node", "edge-9"],
            &["ping", "edge-9"],
            &["streams", "edge-9"],
            &["node", "remove", "edge-9"],
        ] {
            let done = world.culvert.control(words).output()?;
            ensure!(done.status.code() == Some(1), "{words:?}: {done:?}");
        }
        let explained = redirector(world.lab, &["explain", "edge-9"]);
        ensure!(explained.is_err(), "{explained:?}");
        workspace::output(&mut world.culvert.control(&["streams", "edge-1"])).map(drop)
    });
}

#[test]
fn ping_measures_each_tunnel_and_counts_what_is_lost() {
    world::with(EDGE, Options::default(), |world| {
        let ping = |node: &str, count: &str| {
            let args = ["ping", node, "-c", count, "--interval", "10ms"];
            workspace::output(&mut world.culvert.control(&args))
        };
        let told = ping("edge-1", "3")?;
        let mut asked = 0;
        for line in told.lines().skip(1) {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let has_all = cells.first() == Some(&"ok") && cells[3..5] == ["3", "0"];
            ensure!(has_all, "a tunnel was not asked three times: {told}");
            asked += 1;
        }
        ensure!(asked == 2, "not two tunnels: {told}");
        let error = ping("edge-9", "1").err().context("edge-9 answers")?;
        says(
            &error.to_string(),
            &["no edge node is named", "edge-9", "edge-1"],
        )?;

        // Long enough for one question to be lost, and too short for the tunnels to end.
        world.culvert.agent(0).signal(Signal::SIGSTOP)?;
        let lost = world
            .culvert
            .control(&["ping", "edge-1", "-c", "1"])
            .output();
        world.culvert.agent(0).signal(Signal::SIGCONT)?;
        let lost = lost?;
        ensure!(!lost.status.success(), "a stopped agent answers");
        says(
            &String::from_utf8_lossy(&lost.stdout),
            &["no answer within 5 s", "FAILURE"],
        )?;
        says(
            &String::from_utf8_lossy(&lost.stderr),
            &["edge-1 does not answer in any tunnel"],
        )
    });
}

#[test]
fn an_offline_node_is_told_with_when_and_why_its_tunnel_ended() {
    world::with(EDGE, Options::default(), |world| {
        world.culvert.agent(0).kill()?;
        world.culvert.wait_offline(Host::Edge1, PATIENCE)?;
        let told = world.culvert.why("edge-1:9004")?;
        says(
            &told,
            &[
                "EHOSTUNREACH",
                "tunnel     none: edge-1 is offline",
                "the last tunnel ended at 20",
                "was cut without a word",
                "readyz",
            ],
        )?;
        says(
            &workspace::output(&mut world.culvert.control(&["nodes"]))?,
            &["edge-1  offline  0"],
        )?;
        let ping = workspace::output(&mut world.culvert.control(&["ping", "edge-1"]));
        let ping = ping.err().context("an offline node answers")?;
        says(&ping.to_string(), &["edge-1 has no tunnel"])?;
        wait::until("the redirector tells the same", PATIENCE, || {
            says(
                &redirector(world.lab, &["explain", "edge-1:9004"])?,
                &["refused with EHOSTUNREACH: its node is offline"],
            )
        })?;
        let offline = world
            .lab
            .site(Host::Cloud)
            .metric(PROXY_ADMIN, "culvert_proxy_nodes{state=\"offline\"}")?;
        ensure!(offline == 1.0, "{offline} nodes are offline");
        world.culvert.start_agent(Host::Edge1)?;
        world.culvert.wait_online(Host::Edge1)?;
        says(
            &world.culvert.why("edge-1:9004")?,
            &["up for", "the last tunnel ended"],
        )
    });
}

#[test]
fn a_missing_hook_is_named_by_status_explain_and_bpftool() {
    world::with(EDGE, Options::default(), |world| {
        let cloud = world.lab.site(Host::Cloud);
        let cgroup = cloud.cgroup().display().to_string();
        let attached = || cloud.output("bpftool", ["cgroup", "show", &cgroup]);
        says(&attached()?, &["cgroup_inet4_connect"])?;
        // A running redirector would restore it within seconds.
        world.culvert.redirector.kill()?;
        cloud.output("rm", ["/sys/fs/bpf/culvert/v1/links/cv_connect4"])?;
        wait::until("the kernel has let go of the hook", PATIENCE, || {
            let shown = attached()?;
            ensure!(!shown.contains("cgroup_inet4_connect"), "{shown}");
            Ok(())
        })?;
        says(&redirector(world.lab, &["status"])?, &["not attached"])?;
        let told = redirector(world.lab, &["explain", "10.0.3.7:9004"])?;
        says(
            &told,
            &[
                "hooks      not attached",
                "nftables   steered",
                "fix        start culvert-redirector",
            ],
        )?;
        world
            .check_greeting("10.0.3.7", "edge-1")
            .context("by nftables")?;
        world.culvert.restart_redirector()?;
        world.culvert.wait_for_redirector()?;
        says(
            &redirector(world.lab, &["explain", "10.0.3.7:9004"])?,
            &["hooks      steered to"],
        )
    });
}

/// A subcommand of the redirector, as an operator calls it.
fn redirector(lab: &Lab, args: &[&str]) -> Result<String> {
    let cloud = lab.site(Host::Cloud);
    let mut command = cloud.command(workspace::binary("culvert-redirector"));
    workspace::output(
        command
            .args(args)
            .arg("--state-dir")
            .arg(cloud.file("redirector")),
    )
}

fn says(text: &str, words: &[&str]) -> Result<()> {
    let absent: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    ensure!(absent.is_empty(), "no {absent:?} in\n{text}");
    Ok(())
}

#[test]
fn the_line_of_a_finished_stream_has_the_documented_fields() {
    world::with(EDGE, Options::default(), |world| {
        world.check_greeting("edge-1", "edge-1")?;
        // A failed stream has an error in the log of each end.
        world.failing_client(&Client::listen(format!("edge-1:{FORBIDDEN}")))?;
        world.wait_for_no_streams()?;
        let documented = page::read("logs.md")?;
        let logs = [world.culvert.proxy.log(), world.culvert.agent(0).log()];
        for (column, log) in [2, 3].into_iter().zip(logs) {
            let real = logged_fields(&log)?;
            let written: BTreeSet<String> = documented
                .lines()
                .filter_map(|line| field_of_column(line, column))
                .collect();
            ensure!(real == written, "logged {real:?}\ndocumented {written:?}");
        }
        Ok(())
    });
}

/// All fields of the log lines about ended streams.
fn logged_fields(log: &str) -> Result<BTreeSet<String>> {
    let mut fields = BTreeSet::new();
    for line in log.lines().filter(|line| line.contains("\"stream ended\"")) {
        let event: Value =
            serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        let named = event["fields"]
            .as_object()
            .with_context(|| format!("no fields: {line}"))?;
        fields.extend(named.keys().filter(|name| *name != "message").cloned());
    }
    Ok(fields)
}

/// The field in the row's first cell, if the cell in that column says yes.
fn field_of_column(row: &str, column: usize) -> Option<String> {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
    (*cells.get(column)? == "yes").then(|| name.to_owned())
}
