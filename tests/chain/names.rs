//! Name-routed ports: clients on a cloud node without a redirector, stock curl and Prometheus among
//! them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::cloud_host::CloudHost;
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::site::Site;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, inside};

use crate::world::{self, FORBIDDEN, World};

/// Two nodes with one address.
pub(crate) const EDGES: &[Host] = &[Host::Edge2, Host::Edge3];
/// Their ports of TLS and HTTP, in every allow-list.
pub(crate) const TLS: u16 = 10250;
pub(crate) const HTTP: u16 = 10255;
/// In every allow-list, but no program listens there.
const CLOSED: u16 = 7428;
/// The ports of the proxy that stand for them.
pub(crate) const OWN_TLS: u16 = 7450;
pub(crate) const OWN_HTTP: u16 = 7451;
const OWN_FORBIDDEN: u16 = 7452;
const OWN_CLOSED: u16 = 7453;

/// A client has at least this long to say which node it wants.
const SAID_WITHIN: Duration = Duration::from_secs(8);

/// The range of the lab's cloud nodes, which have public addresses.
pub(crate) const CLOUD: &str = "203.0.113.0/24";

#[test]
fn stock_curl_and_prometheus_reach_both_nodes_of_one_address_by_name() {
    world::prepared(
        EDGES,
        |_| Ok(listening(CLOUD)),
        |world| {
            CloudHost::add_all(world.lab)?;
            let _backends = backends(world.lab)?;
            for node in ["edge-2", "edge-3"] {
                for name in [node.to_owned(), format!("{node}.edge.internal")] {
                    let page = body(curl(world, &[&http(&name)])?)?;
                    let shown = format!("nodename=\"{node}\"");
                    ensure!(page.contains(&shown), "{name}: no {shown} in {page}");
                    // The certificate of the node itself: TLS was not ended on the way.
                    let page = body(curl(
                        world,
                        &["--cacert", &ca(world.lab, node), &https(&name)],
                    )?)?;
                    ensure!(
                        page.contains("tls_nodename") && page.contains(&shown),
                        "{name}: {page}"
                    );
                }
            }
            world.wait_proxy_log(
                "stream ended",
                &[("frontend", "name_tls"), ("original_dst", "edge-3:10250")],
            )?;
            scrape(world)
        },
    );
}

/// rustls#1364, rust-rpxy#202, openssl#15484: a router's parser refused what servers take.
#[test]
fn a_client_hello_of_old_tls_or_in_many_records_reaches_the_node_that_it_names() {
    world::prepared(
        EDGES,
        |_| Ok(listening(CLOUD)),
        |world| {
            CloudHost::add_all(world.lab)?;
            let _backends = backends(world.lab)?;
            let long_alpn = vec!["a-protocol-with-a-long-name"; 40].join(",");
            for (version, args) in [
                (
                    "TLSv1.1",
                    &["-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"][..],
                ),
                ("TLSv1.2", &["-tls1_2"]),
                (
                    "TLSv1.3",
                    &["-tls1_3", "-max_send_frag", "512", "-alpn", &long_alpn],
                ),
            ] {
                for node in ["edge-2", "edge-3"] {
                    let session = handshake(world, node, args)?;
                    let subject = format!("subject=CN = {node}");
                    ensure!(
                        session.contains(&subject) && session.contains(version),
                        "{version}: no {subject} in {session}"
                    );
                }
            }
            for name in ["EDGE-2", "edge-2.", "Edge-2.edge.internal."] {
                let session = handshake(world, name, &["-tls1_2"])?;
                ensure!(session.contains("subject=CN = edge-2"), "{name}: {session}");
            }
            let vip = world.vip(Host::Edge2, "vip4")?.to_string();
            let session = handshake(world, &vip, &["-tls1_2"])?;
            ensure!(session.contains("unrecognized name"), "{vip}: {session}");
            Ok(())
        },
    );
}

/// What a stock `openssl s_client` says of its handshake with a node.
fn handshake(world: &World<'_>, node: &str, args: &[&str]) -> Result<String> {
    let mut command = CloudHost::Second.command(world.lab, "openssl");
    command
        .args(["s_client", "-connect"])
        .arg(format!("203.0.113.1:{OWN_TLS}"))
        .args(["-servername", node])
        .args(args)
        .stdin(Stdio::null());
    let done = command.output()?;
    let error = String::from_utf8_lossy(&done.stderr);
    Ok(String::from_utf8_lossy(&done.stdout).into_owned() + &error)
}

#[test]
fn a_refused_client_learns_why_in_its_own_protocol() {
    world::prepared(
        EDGES,
        |_| Ok(listening(CLOUD)),
        |world| {
            CloudHost::add_all(world.lab)?;
            let _backends = backends(world.lab)?;
            for (args, status, words) in [
                (
                    &["http://edge-9:10255/"][..],
                    " 421",
                    "no edge node is named \"edge-9\"",
                ),
                (&["http://edge-9:10255/"], " 421", "edge-2, edge-3"),
                (
                    &["-H", "Host:", "http://edge-2:10255/"],
                    " 421",
                    "the request has no Host",
                ),
                (&["http://edge-2:7428/"], " 502", "culvert: edge-2: "),
                (&["http://edge-2:9666/"], " 403", "culvert: edge-2: "),
            ] {
                let said = body(curl(world, args)?)?;
                ensure!(
                    said.contains(words) && said.ends_with(status),
                    "{args:?}: {said}"
                );
            }
            for (url, alert) in [
                ("https://edge-9:10250/", "unrecognized name"),
                ("https://203.0.113.1:7450/", "unrecognized name"),
                ("https://edge-2:7428/", "internal error"),
                ("https://edge-2:9666/", "access denied"),
            ] {
                let error = curl(world, &["-k", url])?;
                let error = String::from_utf8_lossy(&error.stderr).into_owned();
                ensure!(error.contains(alert), "{url}: {error}");
            }
            let http2 = curl(world, &["--http2-prior-knowledge", "-v", &http("edge-2")])?;
            let said = String::from_utf8_lossy(&http2.stderr).into_owned();
            ensure!(!http2.status.success(), "{said}");
            world.wait_proxy_log(
                "connection to a name-routed port refused",
                &[("reason", "HTTP/2 without TLS is not served here")],
            )
        },
    );
}

#[test]
fn a_client_of_another_range_is_reset() {
    world::prepared(
        EDGES,
        |_| Ok(listening("192.0.2.0/24")),
        |world| {
            CloudHost::add_all(world.lab)?;
            let refused = curl(world, &[&http("edge-2")])?;
            // curl sees the reset while it connects, sends or receives.
            ensure!(
                matches!(refused.status.code(), Some(7 | 55 | 56)),
                "{refused:?}"
            );
            world.wait_proxy_log(
                "connection to a name-routed port refused",
                &[("reason", "in no range of --name-client")],
            )
        },
    );
}

#[test]
fn a_client_that_does_not_say_its_node_in_time_is_ended() {
    world::prepared(
        EDGES,
        |_| Ok(listening(CLOUD)),
        |world| {
            let began = Instant::now();
            let mut silent = dial(world)?;
            let mut slow = dial(world)?;
            slow.write_all(b"GET / HTTP/1.1\r\n")?;
            let mut answer = String::new();
            slow.read_to_string(&mut answer)?;
            ensure!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            let end = silent.read(&mut [0]).map_err(|error| error.kind());
            ensure!(end == Err(ErrorKind::ConnectionReset), "{end:?}");
            let took = began.elapsed();
            ensure!(took >= SAID_WITHIN, "after only {took:?}");
            Ok(())
        },
    );
}

#[test]
fn silent_clients_lock_nobody_out() {
    world::prepared(
        EDGES,
        |_| Ok(few_handshakes()),
        |world| {
            CloudHost::add_all(world.lab)?;
            let _backends = backends(world.lab)?;
            // Twice as many as may be silent at once. Those that find no room are reset.
            let silent: Vec<_> = (0..64).filter_map(|_| dial(world).ok()).collect();
            ensure!(silent.len() >= 32, "only {} got through", silent.len());
            wait::until("edge-2 answers", PATIENCE, || {
                let page = body(curl(world, &[&http("edge-2")])?)?;
                ensure!(page.contains("nodename=\"edge-2\""), "{page}");
                Ok(())
            })?;
            drop(silent);
            Ok(())
        },
    );
}

/// Ports of the lab's nodes by name, for clients of this range.
pub(crate) fn listening(clients: &str) -> Options {
    let mut args = vec!["--name-client".to_owned(), clients.to_owned()];
    for (own, port) in [
        (OWN_TLS, TLS),
        (OWN_HTTP, HTTP),
        (OWN_FORBIDDEN, FORBIDDEN),
        (OWN_CLOSED, CLOSED),
    ] {
        args.extend(["--name-listen".to_owned(), format!("[::]:{own}={port}")]);
    }
    let mut options = world::proxy_options(args);
    options.ports.push(CLOSED);
    options
}

/// Room for 32 silent clients.
fn few_handshakes() -> Options {
    let mut options = listening(CLOUD);
    options
        .proxy
        .extend(["--max-handshakes".to_owned(), "2".to_owned()]);
    options
}

fn http(name: &str) -> String {
    format!("http://{name}:{HTTP}/metrics")
}

fn https(name: &str) -> String {
    format!("https://{name}:{TLS}/metrics")
}

/// The authority of a node's certificate: itself.
fn ca(lab: &Lab, node: &str) -> String {
    let host = Host::from_name(node).expect("a host of the lab");
    lab.site(host).file("tls/tls.crt").display().to_string()
}

/// node_exporter and openssl's server on both nodes.
fn backends(lab: &Lab) -> Result<Vec<Process>> {
    let mut backends = Vec::new();
    for host in EDGES {
        let site = lab.site(*host);
        let mut exporter = site.command(Unpacked::NodeExporter.program());
        exporter.args([
            "--collector.disable-defaults",
            "--collector.uname",
            &format!("--web.listen-address=:{HTTP}"),
        ]);
        backends.push(site.start_process("exporter", &mut exporter)?);
        backends.push(tls_backend(site)?);
        let tls = SocketAddr::from((Ipv4Addr::LOCALHOST, TLS));
        wait::until("the backends listen", PATIENCE, || {
            site.http_get(HTTP, "/metrics")?;
            inside::run(site.netns(), || {
                Ok(TcpStream::connect_timeout(&tls, PATIENCE).map(drop)?)
            })
        })?;
    }
    Ok(backends)
}

/// openssl's server with the node's own certificate; it serves one page of metrics.
fn tls_backend(site: &Site) -> Result<Process> {
    let node = site.host().name();
    let folder = site.file("tls");
    std::fs::create_dir_all(&folder)?;
    let page = format!("tls_nodename{{nodename=\"{node}\"}} 1\n");
    std::fs::write(folder.join("metrics"), page)?;
    let names = format!("subjectAltName=DNS:{node},DNS:{node}.edge.internal");
    SelfSigned::make(&folder, "tls", &format!("/CN={node}"), &names)?;
    let mut command = site.command("sh");
    // s_server serves files of its working directory, which is the root directory in a new mount
    // namespace.
    command.args([
        "-c",
        r#"cd "$0" && exec openssl s_server -accept "$1" -cert tls.crt -key tls.key -WWW -quiet -cipher DEFAULT:@SECLEVEL=0"#,
    ]);
    site.start_process("tls", command.arg(&folder).arg(TLS.to_string()))
}

/// The outcome of a stock curl on another cloud node, which dials the proxy in place of the nodes.
fn curl(world: &World<'_>, args: &[&str]) -> Result<Output> {
    let mut command = CloudHost::Second.command(world.lab, "curl");
    command.args(["--silent", "--show-error", "--max-time", "20"]);
    for (own, port) in [
        (OWN_TLS, TLS),
        (OWN_HTTP, HTTP),
        (OWN_FORBIDDEN, FORBIDDEN),
        (OWN_CLOSED, CLOSED),
    ] {
        command
            .arg("--connect-to")
            .arg(format!(":{port}:203.0.113.1:{own}"));
    }
    command
        .args(["--write-out", " %{http_code}"])
        .args(args)
        .output()
        .context("run curl")
}

/// What curl printed.
pub(crate) fn body(output: Output) -> Result<String> {
    let said = &output.stdout;
    let error = &output.stderr;
    let error = String::from_utf8_lossy(error);
    ensure!(output.status.success(), "curl: {error}");
    Ok(String::from_utf8_lossy(said).into_owned())
}

/// A connection to the proxy that says nothing yet.
pub(crate) fn dial(world: &World<'_>) -> Result<TcpStream> {
    let address = SocketAddr::from((CloudHost::First.address(), OWN_HTTP));
    let netns = world.lab.site(Host::Cloud).netns();
    let socket = inside::run(netns, || {
        Ok(TcpStream::connect_timeout(&address, PATIENCE)?)
    })?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Debian's Prometheus on a cloud node without redirector scrapes both nodes: HTTP with the proxy as
/// its forward proxy, TLS with the node's name as the server name.
fn scrape(world: &World<'_>) -> Result<()> {
    const PORT: u16 = 9090;
    let cloud = world.lab.site(Host::Cloud);
    let config = cloud.file("names-prometheus.yml");
    std::fs::write(&config, prometheus_config(world.lab))?;
    let host = CloudHost::Second;
    let mut command = host.command(world.lab, Unpacked::Prometheus.program());
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            cloud.file("names-prometheus").display()
        ))
        .arg(format!("--web.listen-address=127.0.0.1:{PORT}"));
    let mut prometheus = cloud.start_process("names-prometheus", &mut command)?;
    wait::until(
        "Prometheus has scraped both nodes several times",
        PATIENCE,
        || {
            prometheus.check()?;
            for node in ["edge-2", "edge-3"] {
                let by_http = format!("node_uname_info{{node=\"{node}\",nodename=\"{node}\"}}");
                let by_tls = format!("tls_nodename{{nodename=\"{node}\"}}");
                for samples in [by_http, by_tls] {
                    let query = format!("/api/v1/query?query=count_over_time({samples}[1m])>3");
                    let found = host.http_get(world.lab, PORT, &query)?;
                    if !found.contains("\"metric\"") {
                        bail!(host.http_get(world.lab, PORT, "/api/v1/targets")?);
                    }
                }
            }
            Ok(())
        },
    )?;
    for node in ["edge-2", "edge-3"] {
        let query =
            format!("/api/v1/query?query=node_uname_info{{node=\"{node}\",nodename!=\"{node}\"}}");
        let others = host.http_get(world.lab, PORT, &query)?;
        ensure!(others.contains("\"result\":[]"), "of {node}: {others}");
    }
    Ok(())
}

/// One job of both nodes for HTTP: its scrapes share connections to the proxy.
fn prometheus_config(lab: &Lab) -> String {
    let proxy = CloudHost::First.address();
    let targets = ["edge-2", "edge-3"]
        .map(|node| format!("  - {{ targets: ['{node}:{HTTP}'], labels: {{ node: {node} }} }}\n"));
    let jobs = ["edge-2", "edge-3"].map(|node| {
        format!(
            "- job_name: {node}-tls\n  scheme: https\n  tls_config: {{ server_name: {node}, ca_file: \
             '{}' }}\n  static_configs: [{{ targets: ['{proxy}:{OWN_TLS}'] }}]\n",
            ca(lab, node)
        )
    });
    format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n{}- job_name: \
         nodes\n  proxy_url: http://{proxy}:{OWN_HTTP}\n  static_configs:\n{}",
        jobs.concat(),
        targets.concat()
    )
}
