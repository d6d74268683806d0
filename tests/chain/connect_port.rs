//! The CONNECT port, for clients with a certificate: connections and plain HTTP over HTTP/1.1 and
//! HTTP/2, and Prometheus without a redirector or DNS.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use ::bytes::Bytes;
use anyhow::{Context, Result, bail, ensure};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{inside, workspace};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{Request, Response, StatusCode};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;

use crate::connect::{clients, with_tls};
use crate::world::{self, ECHO, GREET, SMALL_SOURCE, World};
use culvert_lab::pki::{Issued, Use};

const EDGE: &[Host] = &[Host::Edge1];
const PORT: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1)),
    7402,
);
/// In every allow-list, but no program listens there.
const CLOSED: u16 = 10250;
/// The exporter of each node.
const EXPORTER: u16 = 10255;

#[test]
fn http2_carries_many_connections_and_stalled_ones_hold_no_other_up() {
    world::prepared(EDGE, with_tls, |world| {
        over_http2(world, async |mut client| {
            let mut stalled = Vec::new();
            for _ in 0..30 {
                stalled.push(connect(&mut client, SMALL_SOURCE).await?);
            }
            let (mut answer, mut sender) = connect(&mut client, GREET).await?;
            sender.send_data(Bytes::new(), true)?;
            ensure!(rest(answer.body_mut()).await? == b"hello from edge-1\n");
            let (answer, _) = connect(&mut client, CLOSED).await?;
            let why = answer
                .headers()
                .get("proxy-status")
                .context("no Proxy-Status")?;
            ensure!(
                answer.status() == StatusCode::BAD_GATEWAY
                    && why.to_str()?.contains("connection_refused"),
                "{answer:?}"
            );
            Ok(())
        })
    });
}

#[test]
fn over_http2_an_end_is_an_end_and_a_cut_is_a_reset() {
    world::prepared(EDGE, with_tls, |world| {
        let agent = nix::unistd::Pid::from_raw(i32::try_from(world.culvert.agent(0).pid())?);
        over_http2(world, async |mut client| {
            let (mut answer, mut sender) = connect(&mut client, ECHO).await?;
            sender.send_data(Bytes::from_static(b"ping"), true)?;
            ensure!(rest(answer.body_mut()).await? == b"ping");
            let (mut answer, _sender) = connect(&mut client, ECHO).await?;
            nix::sys::signal::kill(agent, nix::sys::signal::Signal::SIGKILL)?;
            let cut = tokio::time::timeout(PATIENCE, rest(answer.body_mut())).await?;
            ensure!(cut.is_err(), "it looks whole: {cut:?}");
            Ok(())
        })
    });
}

#[test]
fn a_request_for_a_node_s_plain_http_server_is_passed_on() {
    world::prepared(EDGE, with_tls, |world| {
        let _exporter = exporter(world)?;
        let files = Files::of(world)?;
        let get = |url: &str| files.proxied(world, &[url]);
        let page = get("http://edge-1:10255/metrics")?;
        ensure!(
            page.contains("nodename=\"edge-1\"") && page.ends_with(" 200"),
            "{page}"
        );
        for (url, status, words) in [
            ("http://edge-1:10250/", " 502", "culvert: edge-1: "),
            (
                "http://edge-9:10255/",
                " 403",
                "no edge node is named \"edge-9\"",
            ),
            (
                "http://203.0.113.1:7409/",
                " 403",
                "no edge node has the address",
            ),
        ] {
            let answer = get(url)?;
            ensure!(
                answer.contains(words) && answer.ends_with(status),
                "{url}: {answer}"
            );
        }
        let targets = files.own(world, "/sd/prometheus?port=10255&port=10250")?;
        ensure!(
            targets.contains("\"targets\":[\"edge-1:10255\",\"edge-1:10250\"]")
                && targets.contains("\"__meta_culvert_online\":\"true\"")
                && targets.contains("\"__meta_culvert_zone\":\"edge.internal\""),
            "{targets}"
        );
        let bad = files.own(world, "/sd/prometheus?port=0")?;
        ensure!(bad.ends_with(" 400") && bad.contains("is no port"), "{bad}");
        let other = files.own(world, "/metrics")?;
        ensure!(
            other.ends_with(" 400") && other.contains("is not served here"),
            "{other}"
        );
        Ok(())
    });
}

#[test]
fn a_stock_prometheus_finds_five_machines_by_the_port_alone_and_a_sixth_that_comes_later() {
    const WEB: u16 = 9090;
    world::prepared(EDGE, with_tls, |world| {
        let _exporter = exporter(world)?;
        let files = Files::of(world)?;
        let cloud = world.lab.site(Host::Cloud);
        let config = cloud.file("port-prometheus.yml");
        std::fs::write(&config, files.prometheus())?;
        let mut command = cloud.command(Unpacked::Prometheus.program());
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                cloud.file("port-prometheus").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{WEB}"));
        let mut prometheus = cloud.start_process("port-prometheus", &mut command)?;
        let mut scraped = |node: &str| {
            wait::until(&format!("Prometheus scrapes {node}"), PATIENCE, || {
                prometheus.check()?;
                let query = format!("/api/v1/query?query=node_uname_info{{node=\"{node}\"}}");
                let found = cloud.http_get(WEB, &query)?;
                if found.contains("\"nodename\":\"edge-1\"") {
                    return Ok(());
                }
                bail!(cloud.http_get(WEB, "/api/v1/targets")?)
            })
        };
        scraped("edge-1")?;
        let _four = (2..=5)
            .map(|number| further_agent(world, number))
            .collect::<Result<Vec<_>>>()?;
        for number in 2..=5 {
            scraped(&format!("machine-{number}"))?;
        }
        let _sixth = further_agent(world, 6)?;
        scraped("machine-6")
    });
}

/// An agent of the node `machine-N` on the machine of edge-1.
fn further_agent(world: &World<'_>, number: u16) -> Result<Process> {
    let node = format!("machine-{number}");
    let join = world.culvert.create_node_token(&node, &[])?;
    let site = world.lab.site(Host::Edge1);
    let state = site.file(&node).display().to_string();
    let mut joining = site.command(workspace::binary("culvert-agent"));
    workspace::output(joining.args(join).args(["--state-dir", &state]))?;
    let mut agent = site.command(workspace::binary("culvert-agent"));
    agent.args(["--state-dir", &state, "--admin-listen"]);
    agent.arg(format!("127.0.0.1:{}", 7500 + number));
    agent
        .arg("--admin-socket")
        .arg(site.file(&format!("{node}.sock")));
    site.start_process(&node, &mut agent)
}

/// node_exporter on edge-1.
fn exporter(world: &World<'_>) -> Result<Process> {
    let site = world.lab.site(Host::Edge1);
    let mut exporter = site.command(Unpacked::NodeExporter.program());
    exporter.args(["--collector.disable-defaults", "--collector.uname"]);
    exporter.arg(format!("--web.listen-address=:{EXPORTER}"));
    let exporter = site.start_process("exporter", &mut exporter)?;
    wait::until("the exporter listens", PATIENCE, || {
        site.http_get(EXPORTER, "/metrics").map(drop)
    })?;
    Ok(exporter)
}

/// What a client of the port needs.
struct Files {
    client: Issued,
    authority: String,
}

impl Files {
    fn of(world: &World<'_>) -> Result<Self> {
        let authority = world.lab.site(Host::Edge1).file("agent/ca.pem");
        Ok(Self {
            client: clients(world.lab).issue("prometheus", Use::Client)?,
            authority: authority.display().to_string(),
        })
    }

    fn curl(&self, world: &World<'_>, prefix: &str) -> Command {
        let mut command = world.lab.site(Host::Cloud).command("curl");
        command.args(["--silent", "--show-error", "--max-time", "20"]);
        command.args(["--write-out", " %{http_code}"]);
        command.args([format!("--{prefix}cacert"), self.authority.clone()]);
        command
            .arg(format!("--{prefix}cert"))
            .arg(&self.client.certificate);
        command.arg(format!("--{prefix}key")).arg(&self.client.key);
        command
    }

    /// What a stock curl gets with the port as its proxy.
    fn proxied(&self, world: &World<'_>, args: &[&str]) -> Result<String> {
        let mut command = self.curl(world, "proxy-");
        workspace::output(
            command
                .args(["--proxy", "https://203.0.113.1:7402"])
                .args(args),
        )
    }

    /// One of the port's own pages.
    fn own(&self, world: &World<'_>, path: &str) -> Result<String> {
        let mut command = self.curl(world, "");
        workspace::output(command.arg(format!("https://203.0.113.1:7402{path}")))
    }

    fn prometheus(&self) -> String {
        let Issued { certificate, key } = &self.client;
        let tls = format!(
            "tls_config: {{ ca_file: {}, cert_file: {}, key_file: {} }}",
            self.authority,
            certificate.display(),
            key.display()
        );
        format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n- job_name: \
             edges\n  proxy_url: https://203.0.113.1:7402\n  {tls}\n  http_sd_configs:\n  - url: \
             https://203.0.113.1:7402/sd/prometheus?port=10255\n    refresh_interval: 1s\n    \
             {tls}\n  relabel_configs:\n  - {{ source_labels: [__meta_culvert_node], \
             target_label: node }}\n"
        )
    }
}

/// Runs `work` with an HTTP/2 connection to the port.
fn over_http2(
    world: &World<'_>,
    work: impl AsyncFnOnce(SendRequest<Bytes>) -> Result<()>,
) -> Result<()> {
    let files = Files::of(world)?;
    let netns = world.lab.site(Host::Cloud).netns();
    let socket = inside::run(netns, || {
        Ok(std::net::TcpStream::connect_timeout(&PORT, PATIENCE)?)
    })?;
    socket.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls_config(&files)?));
        let tls = connector
            .connect(PORT.ip().into(), TcpStream::from_std(socket)?)
            .await?;
        ensure!(tls.get_ref().1.alpn_protocol() == Some(b"h2"), "no HTTP/2");
        // Streams that are not read leave capacity for others.
        let (client, connection) = h2::client::Builder::new()
            .initial_window_size(16 << 10)
            .initial_connection_window_size(8 << 20)
            .handshake(tls)
            .await?;
        tokio::select! {
            ended = connection => { ended?; bail!("the proxy ended the connection") }
            worked = tokio::time::timeout(PATIENCE, work(client)) => worked?,
        }
    })
}

fn tls_config(files: &Files) -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(&files.authority)? {
        roots.add(authority?)?;
    }
    let chain = CertificateDer::pem_file_iter(&files.client.certificate)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(
            chain.collect::<Result<_, _>>()?,
            PrivateKeyDer::from_pem_file(&files.client.key)?,
        )?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// A CONNECT to edge-1.
async fn connect(
    client: &mut SendRequest<Bytes>,
    port: u16,
) -> Result<(Response<RecvStream>, SendStream<Bytes>)> {
    poll_fn(|context| client.poll_ready(context)).await?;
    let request = Request::connect(format!("edge-1:{port}")).body(())?;
    let (answer, sender) = client.send_request(request, false)?;
    Ok((answer.await?, sender))
}

/// Everything until the end.
async fn rest(body: &mut RecvStream) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes?;
        body.flow_control().release_capacity(bytes.len())?;
        all.extend(bytes);
    }
    Ok(all)
}
