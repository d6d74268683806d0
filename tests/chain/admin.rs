//! What the three programs report to an operator: readiness, metrics, internal state, logs, and
//! invalid settings.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Options, PROXY_ADMIN, REDIRECTOR_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::Client;
use culvert_lab::process::Process;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::world::{self, ECHO, GREET, World};

const EDGE: &[Host] = &[Host::Edge1];

/// Each program's admin server, and the prefix of its metrics.
const PROGRAMS: [(Host, u16, &str); 3] = [
    (Host::Cloud, PROXY_ADMIN, "culvert_proxy_"),
    (Host::Cloud, REDIRECTOR_ADMIN, "culvert_redirector_"),
    (Host::Edge1, AGENT_ADMIN, "culvert_agent_"),
];

#[test]
fn every_program_says_when_it_is_ready_and_what_it_measures() {
    world::with(EDGE, Options::default(), |world| {
        for (host, port, prefix) in PROGRAMS {
            let site = world.lab.site(host);
            site.http_get(port, "/livez")
                .with_context(|| prefix.to_owned())?;
            site.http_get(port, "/readyz")
                .with_context(|| prefix.to_owned())?;
            let metrics = site.http_get(port, "/metrics")?;
            ensure!(metrics.contains(prefix), "{metrics}");
        }
        Ok(())
    });
}

#[test]
fn the_index_of_every_program_lists_pages_that_are_there() {
    world::with(EDGE, Options::default(), |world| {
        for (host, port, _) in PROGRAMS {
            let site = world.lab.site(host);
            let index = site.http_get(port, "/")?;
            let paths: Vec<&str> = index
                .lines()
                .filter(|line| line.starts_with('/'))
                .filter_map(|line| line.split(' ').next())
                .collect();
            ensure!(paths.contains(&"/debug/tasks"), "{index}");
            for path in paths {
                let path = path.replace("{destination}", "edge-1");
                site.http_get(port, &path).with_context(|| path.clone())?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_program_that_is_not_ready_says_what_is_missing() {
    world::with(EDGE, Options::default(), |world| {
        world.culvert.proxy.kill()?;
        world.wait_missing(Host::Edge1, AGENT_ADMIN, "tunnel: ")?;
        // Without the saved directory, the redirector has nothing to install.
        world.culvert.redirector.terminate(PATIENCE)?;
        std::fs::remove_dir_all(world.lab.site(Host::Cloud).file("redirector"))?;
        world.culvert.restart_redirector()?;
        world.wait_missing(Host::Cloud, REDIRECTOR_ADMIN, "directory: ")?;
        // What the proxy lacks is tested with its directory file.
        world.culvert.restart_proxy()?;
        world.culvert.wait_for_redirector()?;
        wait::until("the agent is ready", Duration::from_secs(30), || {
            world
                .lab
                .site(Host::Edge1)
                .http_get(AGENT_ADMIN, "/readyz")
                .map(drop)
        })
    });
}

#[test]
fn a_stream_under_way_is_seen_in_all_three() {
    world::with(EDGE, Options::default(), |world| {
        let target = format!("10.0.3.7:{ECHO}");
        let bytes_before = counted_bytes(world)?;
        let _held = world.hold(&target, 1)?;
        wait::until("both count the bytes", PATIENCE, || {
            let bytes = counted_bytes(world)?;
            ensure!(
                bytes == bytes_before.map(|before| before + 5.0),
                "{bytes:?}, before {bytes_before:?}"
            );
            Ok(())
        })?;
        for (host, port, page, words) in [
            (
                Host::Cloud,
                PROXY_ADMIN,
                "nodes",
                vec!["\"edge-1\"", "\"online\":true", "10.0.3.7"],
            ),
            (
                Host::Cloud,
                PROXY_ADMIN,
                "tunnels",
                vec!["\"edge-1\"", "198.51.100.1", "round_trip_seconds"],
            ),
            (
                Host::Cloud,
                PROXY_ADMIN,
                "streams",
                vec!["\"edge-1\"", &target, "\"bytes_to_backend\":5"],
            ),
            (
                Host::Edge1,
                AGENT_ADMIN,
                "tunnels",
                vec!["203.0.113.1:7400", "\"up\"", "\"streams\":1"],
            ),
            (
                Host::Edge1,
                AGENT_ADMIN,
                "streams",
                vec![&target, "\"bytes_to_client\":5"],
            ),
            (
                Host::Cloud,
                REDIRECTOR_ADMIN,
                "destinations",
                vec![&target, "\"edge-1\""],
            ),
            (
                Host::Cloud,
                REDIRECTOR_ADMIN,
                "hooks",
                vec!["connect4", "connect6", "sockops"],
            ),
        ] {
            let shown = world
                .lab
                .site(host)
                .json(port, &format!("/debug/{page}"))?
                .to_string();
            let absent: Vec<_> = words
                .into_iter()
                .filter(|word| !shown.contains(word))
                .collect();
            ensure!(
                absent.is_empty(),
                "/debug/{page} on {port} has no {absent:?}: {shown}"
            );
        }
        Ok(())
    });
}

/// Payload bytes by the counters of the proxy and the agent, each to the backend and to the client.
fn counted_bytes(world: &World<'_>) -> Result<[f64; 4]> {
    let count = |host, port, program, direction| {
        world.lab.site(host).metric(
            port,
            &format!("culvert_{program}_bytes_total{{direction=\"{direction}\"}}"),
        )
    };
    Ok([
        count(Host::Cloud, PROXY_ADMIN, "proxy", "to_backend")?,
        count(Host::Cloud, PROXY_ADMIN, "proxy", "to_client")?,
        count(Host::Edge1, AGENT_ADMIN, "agent", "to_backend")?,
        count(Host::Edge1, AGENT_ADMIN, "agent", "to_client")?,
    ])
}

/// Changes what a program logs, as an operator on its host does.
fn log(world: &World<'_>, program: &str, filter: &str) -> Result<()> {
    let (host, socket) = match program {
        "culvert-proxy" => (Host::Cloud, "admin.sock"),
        "culvert-redirector" => (Host::Cloud, "redirector.sock"),
        _ => (Host::Edge1, "agent.sock"),
    };
    let site = world.lab.site(host);
    let mut command = site.command(workspace::binary(program));
    workspace::output(
        command
            .args(["log", filter, "--admin-socket"])
            .arg(site.file(socket)),
    )
    .map(drop)
}

const NAMES: [&str; 3] = ["culvert-proxy", "culvert-redirector", "culvert-agent"];

#[test]
fn what_is_logged_can_be_changed_while_a_program_runs() {
    world::with(EDGE, Options::default(), |world| {
        for name in NAMES {
            log(world, name, "warn").with_context(|| name.to_owned())?;
            for (wrong, why) in [
                ("info,=,", "write a level such as"),
                ("[{a=(x|y)*}]=info", "spans and fields"),
            ] {
                let error = log(world, name, wrong)
                    .err()
                    .with_context(|| format!("{name} took {wrong}"))?;
                ensure!(error.to_string().contains(why), "{name}: {error}");
            }
        }
        let before = ended(world);
        world.check_greeting("edge-1", "edge-1")?;
        world.wait_for_no_streams()?;
        for name in NAMES {
            log(world, name, "info")?;
        }
        world.greeting("edge-1")?;
        wait::until("one stream of two is in both logs", PATIENCE, || {
            let now = ended(world);
            ensure!(
                now == (before.0 + 1, before.1 + 1),
                "{now:?}, before {before:?}"
            );
            Ok(())
        })
    });
}

/// The numbers of ended streams that the proxy and the agent have logged.
fn ended(world: &mut World<'_>) -> (usize, usize) {
    let ended = |process: &Process| process.logged("stream ended", &[]).len();
    (ended(&world.culvert.proxy), ended(world.culvert.agent(0)))
}

#[test]
fn no_client_of_a_tunnel_changes_what_an_agent_logs() {
    world::with(EDGE, Options::default(), |world| {
        let before = ended(world).1;
        for filter in [
            "off",
            "[{a=(x|y)*x(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)}]=info",
        ] {
            let length = filter.len();
            let put = format!(
                "PUT /debug/log HTTP/1.1\r\nHost: edge-1\r\nConnection: close\r\nContent-Length: \
                 {length}\r\n\r\n{filter}"
            );
            let answer = world.talk(&format!("edge-1:{AGENT_ADMIN}"), &put)?;
            ensure!(
                answer.contains(" 405 ") && answer.contains("culvert-agent log FILTER"),
                "{answer}"
            );
        }
        wait::until("the agent logs these very streams", PATIENCE, || {
            let now = ended(world).1;
            ensure!(now == before + 2, "{now} ended streams, before {before}");
            Ok(())
        })
    });
}

#[test]
fn metrics_can_be_scraped_from_pods_and_nothing_else_can() {
    let ports = [("proxy", 7408), ("redirector", 7418)];
    let listen = |port: u16| vec!["--metrics-listen".to_owned(), format!("203.0.113.1:{port}")];
    let options = Options {
        proxy: listen(ports[0].1),
        redirector: listen(ports[1].1),
        ..Options::default()
    };
    world::with(EDGE, options, |world| {
        let pod = world.lab.add_pod()?;
        for (program, port) in ports {
            let ask = |page: &str, wanted: &str| {
                let mut curl = world.lab.site(Host::Cloud).command_in(&pod, "curl");
                let url = format!("http://203.0.113.1:{port}{page}");
                let said = workspace::output(curl.args([
                    "-s",
                    "--max-time",
                    "10",
                    "-w",
                    "%{http_code}",
                    &url,
                ]))?;
                ensure!(said.contains(wanted), "{url}: {said}");
                Ok(())
            };
            ask("/metrics", &format!("culvert_{program}_build_info"))?;
            for other in ["/readyz", "/debug/streams", "/debug/log"] {
                ask(other, "404")?;
            }
        }
        Ok(())
    });
}

#[test]
fn strangers_at_the_agent_port_do_no_harm() {
    world::with(EDGE, Options::default(), |world| {
        for sent in [
            "GET / HTTP/1.1\r\n\r\n",
            "\x16\x03\x01\x7f\x7f\x01",
            "\0\0\0\0",
        ] {
            // With any answer or none, the connection ends.
            world::client_at(
                world.lab,
                Host::Edge2,
                &Client::talk("203.0.113.1:7400", sent),
            )
            .ok();
        }
        world.culvert.proxy.check()?;
        ensure!(world.culvert.tunnels("edge-1")? == 2, "tunnels");
        world.greeting("edge-1").map(drop)
    });
}

#[test]
fn a_wrong_setting_is_named_with_what_would_do() -> Result<()> {
    let state = std::env::temp_dir().join("culvert-wrong-settings");
    for (program, args, words) in [
        (
            "culvert-proxy",
            &["--stream-window", "1"][..],
            &["--stream-window", "256KiB"][..],
        ),
        (
            "culvert-proxy",
            &["--protect", "10.0.0.0/33"],
            &["--protect", "10.0.0.0/33"],
        ),
        (
            "culvert-proxy",
            &["--ca-cert", "/nowhere/ca.crt"],
            &["--ca-key"],
        ),
        (
            "culvert-proxy",
            &[
                "--ca-cert",
                "/nowhere/ca.crt",
                "--ca-key",
                "/nowhere/ca.key",
            ],
            &["/nowhere/ca.crt"],
        ),
        (
            "culvert-proxy",
            &["--vip4-range", "127.0.0.0/8"],
            &["127.0.0.0/8", "loopback"],
        ),
        (
            "culvert-proxy",
            &["--grace", "soon"],
            &["--grace", "soon", "30s"],
        ),
        (
            "culvert-agent",
            &["--proxy", "cloud.example.org"],
            &["--proxy", "cloud.example.org", "HOST:PORT"],
        ),
        ("culvert-agent", &[], &["culvert-agent join"]),
        ("culvert-agent", &["--cert", "/nowhere/cert"], &["--key"]),
        (
            "culvert-agent",
            &[
                "join", "--proxy", "a:1", "--token", "x", "--ca-pin", "md5:1",
            ],
            &["--ca-pin", "sha256:"],
        ),
        (
            "culvert-redirector",
            &["--mechanism", "magic"],
            &["--mechanism", "nftables"],
        ),
        (
            "culvert-redirector",
            &["--node-ip", "192.0.2.77"],
            &["--node-ip", "192.0.2.77"],
        ),
        (
            "culvert-redirector",
            &["--dns-listen", "none", "--dns-listen", "127.0.0.1:53"],
            &["--dns-listen", "none"],
        ),
        ("culvert-redirector", &["--log", "info,="], &["info,="]),
    ] {
        let done = Command::new("timeout")
            .arg("10")
            .arg(workspace::binary(program))
            .args(args)
            .env("CULVERT_STATE_DIR", &state)
            .output()?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let code = done.status.code();
        ensure!(
            code.is_some_and(|code| code == 1 || code == 2),
            "{program} {args:?} ended with {code:?}: {said}"
        );
        let absent: Vec<_> = words.iter().filter(|word| !said.contains(**word)).collect();
        ensure!(
            absent.is_empty(),
            "{program} {args:?} does not say {absent:?}: {said}"
        );
    }
    std::fs::remove_dir_all(&state).ok();
    Ok(())
}

#[test]
fn a_refused_token_or_node_is_an_error_of_the_command_alone() {
    world::with(EDGE, Options::default(), |world| {
        for (args, word) in [
            (&["token", "create", "Edge_1"][..], "Edge_1"),
            (
                &["token", "create", "edge-2", "--address", "10.0.3"],
                "10.0.3",
            ),
            (
                &["token", "create", "edge-2", "--address", "127.0.0.1"],
                "127.0.0.1",
            ),
            (&["token", "revoke", "nothing"], "nothing"),
            (&["node", "remove", "edge-9"], "edge-9"),
        ] {
            let answer = workspace::output(&mut world.culvert.control(args));
            let error = answer
                .err()
                .with_context(|| format!("{args:?} was taken"))?
                .to_string();
            let said = error.split_once(": ").map_or("", |(_, said)| said);
            ensure!(said.contains(word), "{args:?}: {error}");
        }
        ensure!(
            world.talk(&format!("edge-1:{GREET}"), "")? == "hello from edge-1",
            "afterwards"
        );
        Ok(())
    });
}
