//! HTTP on name-routed ports: clients that keep one connection for requests to several nodes. Each
//! request goes to the node that it names.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::cloud_host::CloudHost;
use culvert_lab::go_program::GoProgram;
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::site::Site;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{inside, workspace};

use crate::names::{CLOUD, EDGES, HTTP, OWN_HTTP, OWN_TLS, TLS, body, dial, listening};
use crate::world::{self, World};

/// Where nginx listens: for HTTP, for TLS with one upstream for all nodes, and with one for each.
const FRONT: u16 = 8080;
const FRONT_TLS: u16 = 8081;
const FRONT_TLS_BY_NODE: u16 = 8082;
/// More than curl sends before it is told to continue.
const LARGE: usize = 3 << 20;

#[test]
fn a_stock_curl_with_urls_of_two_nodes_gets_each_nodes_answer_on_one_connection() {
    with_servers(|world| {
        let urls = ["edge-2", "edge-3", "edge-2"].map(|node| format!("http://{node}:{HTTP}/name"));
        let said = curl(world, &urls)?;
        ensure!(said == "edge-2 1\nedge-3 0\nedge-2 0\n", "{said}");
        Ok(())
    });
}

#[test]
fn uploads_on_one_connection_reach_the_nodes_that_they_name() {
    with_servers(|world| {
        let file = world.lab.site(Host::Cloud).file("upload");
        std::fs::write(&file, vec![b'u'; LARGE])?;
        for header in [
            "Expect: 100-continue",
            "Expect:",
            "Transfer-Encoding: chunked",
        ] {
            let mut args = vec!["--header".to_owned(), header.to_owned()];
            for node in ["edge-2", "edge-3"] {
                args.extend(["--upload-file".to_owned(), file.display().to_string()]);
                args.push(format!("http://{node}:{HTTP}/upload"));
            }
            let said = curl(world, &args)?;
            let both = format!("edge-2 {LARGE} 1\nedge-3 {LARGE} 0\n");
            ensure!(said == both, "{header}: {said}");
        }
        Ok(())
    });
}

#[test]
fn requests_sent_at_once_are_answered_in_order_each_by_its_own_node() {
    with_servers(|world| {
        let mut client = dial(world)?;
        for host in [
            "edge-2",
            "edge-3.edge.internal",
            "EDGE-2",
            "edge-3",
            "edge-9",
        ] {
            write!(client, "GET /name HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
        }
        // It says no more, and waits for its answers.
        client.shutdown(Shutdown::Write)?;
        let mut answers = BufReader::new(client);
        for said in ["edge-2", "edge-3", "edge-2", "edge-3", "culvert: "] {
            let answer = Message::read(&mut answers)?.context("no answer")?;
            let text = String::from_utf8(answer.body)?;
            ensure!(text.starts_with(said), "{:?} {text}", answer.first);
        }
        Ok(())
    });
}

#[test]
fn a_connection_that_switches_protocols_stays_with_the_node_of_its_request() {
    with_servers(|world| {
        let mut client = BufReader::new(dial(world)?);
        for node in ["edge-2", "edge-3"] {
            let name = format!("GET /name HTTP/1.1\r\nHost: {node}\r\n\r\n");
            client.get_mut().write_all(name.as_bytes())?;
            Message::read(&mut client)?.context("no answer")?;
        }
        let ask = "GET /echo HTTP/1.1\r\nHost: edge-3\r\nConnection: Upgrade\r\nUpgrade: \
                   websocket\r\n\r\nearly ";
        client.get_mut().write_all(ask.as_bytes())?;
        let answer = Message::read(&mut client)?.context("no answer")?;
        ensure!(answer.first.contains(" 101 "), "{:?}", answer.first);
        client.get_mut().write_all(b"Host: edge-2")?;
        client.get_mut().shutdown(Shutdown::Write)?;
        let mut echoed = String::new();
        client.read_to_string(&mut echoed)?;
        ensure!(echoed == "edge-3: early Host: edge-2", "{echoed}");
        Ok(())
    });
}

/// One job of Prometheus may have targets with several ports, and one `proxy_url`.
#[test]
fn a_url_with_another_port_than_this_one_stands_for_is_refused_and_says_which() {
    with_servers(|world| {
        let other = HTTP + 1;
        let urls = [
            format!("http://edge-2:{other}/name"),
            format!("http://edge-2:{HTTP}/name"),
        ];
        let said = curl(world, &urls)?;
        let refusal = said.strip_suffix("edge-2 1\n").context("one answer")?;
        ensure!(
            refusal.contains(&other.to_string()) && refusal.contains(&HTTP.to_string()),
            "{said}"
        );
        Ok(())
    });
}

#[test]
fn an_answer_without_a_length_arrives_whole() {
    with_servers(|world| {
        let urls = [("edge-2", "unmeasured"), ("edge-3", "name")]
            .map(|(node, page)| format!("http://{node}:{HTTP}/{page}"));
        let said = curl(world, &urls)?;
        let long = "edge-2".repeat(LARGE / 6);
        ensure!(
            said == format!("{long} 1\nedge-3 1\n"),
            "{} bytes",
            said.len()
        );
        Ok(())
    });
}

#[test]
fn what_follows_a_request_and_is_no_http_is_refused() {
    with_servers(|world| {
        let mut client = BufReader::new(dial(world)?);
        let begin = "GET /name HTTP/1.1\r\nHost: edge-2\r\n\r\nSSH-2.0-OpenSSH\r\n\r\n";
        client.get_mut().write_all(begin.as_bytes())?;
        Message::read(&mut client)?.context("no answer")?;
        let refusal = Message::read(&mut client)?.context("no refusal")?;
        ensure!(refusal.first.contains(" 400 "), "{:?}", refusal.first);
        world.wait_proxy_log("connection to a name-routed port refused", &[])
    });
}

#[test]
fn a_stock_nginx_that_pools_by_upstream_gets_what_it_asks_for() {
    with_servers(|world| {
        let host = CloudHost::Second;
        let _nginx = front(world)?;
        for node in ["edge-3", "edge-2", "edge-3", "edge-2"] {
            let said = host.http_get(world.lab, FRONT, &format!("/{node}/name"))?;
            ensure!(said.starts_with(node), "asked {node}: {said}");
        }
        Ok(())
    });
}

/// The page says so: TLS is not looked into, so the connection leads where its ClientHello said.
#[test]
fn a_stock_nginx_that_pools_tls_needs_an_upstream_for_each_node() {
    with_servers(|world| {
        let mut servers = Vec::new();
        for host in EDGES {
            servers.push(serve_tls(world.lab.site(*host))?);
        }
        let _nginx = front(world)?;
        let asked = |port: u16, node: &str| {
            CloudHost::Second.http_get(world.lab, port, &format!("/{node}/name"))
        };
        for node in ["edge-3", "edge-2", "edge-3", "edge-2"] {
            let said = asked(FRONT_TLS_BY_NODE, node)?;
            ensure!(said.starts_with(node), "asked {node}: {said}");
        }
        asked(FRONT_TLS, "edge-2")?;
        let said = asked(FRONT_TLS, "edge-3")?;
        ensure!(
            said.starts_with("edge-2"),
            "pooled TLS leads to {said}: say so on the page"
        );
        Ok(())
    });
}

/// nginx on another cloud node, in front of the name-routed ports.
fn front(world: &World<'_>) -> Result<Process> {
    let host = CloudHost::Second;
    let cloud = world.lab.site(Host::Cloud);
    let folder = cloud.file("nginx");
    let command = host.command(world.lab, Unpacked::Nginx.program());
    let mut nginx = start_nginx(cloud, command, &folder, &front_servers())?;
    wait::until("nginx answers", PATIENCE, || {
        nginx.check()?;
        host.http_get(world.lab, FRONT, "/edge-2/name").map(drop)
    })?;
    Ok(nginx)
}

fn start_nginx(site: &Site, mut command: Command, folder: &Path, servers: &str) -> Result<Process> {
    std::fs::create_dir_all(folder)?;
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {kind};"));
    let config = format!(
        "daemon off; master_process off; user root; pid nginx.pid; error_log stderr;\nevents {{}}\n\
         http {{ access_log off; {}\n{servers} }}\n",
        folders.concat()
    );
    std::fs::write(folder.join("nginx.conf"), config)?;
    command.arg("-p").arg(folder).args(["-c", "nginx.conf"]);
    command.env("LD_LIBRARY_PATH", Unpacked::Nginx.libraries());
    site.start_process("nginx", &mut command)
}

/// nginx on a node, which keeps TLS connections and says the node's name.
fn serve_tls(site: &Site) -> Result<Process> {
    let node = site.host().name();
    let folder = site.file("nginx");
    std::fs::create_dir_all(&folder)?;
    let SelfSigned { certificate, key } = SelfSigned::make(
        &folder,
        "tls",
        &format!("/CN={node}"),
        &format!("subjectAltName=DNS:{node}"),
    )?;
    let server = format!(
        "server {{ listen {TLS} ssl; ssl_certificate {}; ssl_certificate_key {};\n\
         location / {{ return 200 {node}; }} }}",
        certificate.display(),
        key.display()
    );
    let command = site.command(Unpacked::Nginx.program());
    let mut nginx = start_nginx(site, command, &folder, &server)?;
    wait::until("nginx listens", PATIENCE, || {
        nginx.check()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, TLS));
        inside::run(site.netns(), || {
            Ok(TcpStream::connect_timeout(&address, PATIENCE).map(drop)?)
        })
    })?;
    Ok(nginx)
}

#[test]
fn gos_transport_that_pools_by_proxy_gets_what_it_asks_for() {
    let Some(program) = GoProgram::Transport.find() else {
        culvert_lab::skip::skip("Go's transport is not compiled: run `cargo xtask setup`");
        return;
    };
    with_servers(|world| {
        let mut command = CloudHost::Second.command(world.lab, program);
        command.arg(proxy());
        command
            .args(["edge-2", "edge-3", "edge-2"].map(|node| format!("http://{node}:{HTTP}/name")));
        let said = workspace::output(&mut command)?;
        ensure!(
            said == "edge-2 new\nedge-3 reused\nedge-2 reused\n",
            "{said}"
        );
        Ok(())
    });
}

pub(crate) fn with_servers(test: impl FnOnce(&World<'_>) -> Result<()>) {
    world::prepared(
        EDGES,
        |_| Ok(listening(CLOUD)),
        |world| {
            CloudHost::add_all(world.lab)?;
            for host in EDGES {
                serve(world.lab.site(*host))?;
            }
            test(world)
        },
    );
}

fn proxy() -> String {
    format!("http://{}:{OWN_HTTP}", CloudHost::First.address())
}

/// What a stock curl prints for URLs with the port as its proxy: each answer with the number of
/// connections that were made for it.
fn curl(world: &World<'_>, args: &[String]) -> Result<String> {
    let mut command = CloudHost::Second.command(world.lab, "curl");
    command.args(["--silent", "--show-error", "--max-time", "20"]);
    command.args(["--write-out", " %{num_connects}\n", "--proxy", &proxy()]);
    body(command.args(args).output().context("run curl")?)
}

fn front_servers() -> String {
    let proxy = CloudHost::First.address();
    let tls = "proxy_ssl_server_name on; proxy_ssl_name $1;";
    let mut config = format!("upstream culvert {{ server {proxy}:{OWN_HTTP}; keepalive 1; }}\n");
    for pool in ["tls", "tls_edge-2", "tls_edge-3"] {
        config += &format!("upstream {pool} {{ server {proxy}:{OWN_TLS}; keepalive 1; }}\n");
    }
    for (port, to, more) in [
        (FRONT, "http://culvert", ""),
        (FRONT_TLS, "https://tls", tls),
        (FRONT_TLS_BY_NODE, "https://tls_$1", tls),
    ] {
        config += &format!(
            "server {{ listen 127.0.0.1:{port};\nlocation ~ ^/([a-z0-9-]+)(/.*)$ {{ proxy_pass \
             {to}$2; proxy_http_version 1.1; proxy_set_header Host $1; proxy_set_header \
             Connection \"\"; {more} }} }}\n"
        );
    }
    config
}

/// Starts an HTTP server on a node, which keeps connections. It runs until the process ends.
fn serve(site: &Site) -> Result<()> {
    let node = site.host().name();
    let listener = inside::run(site.netns(), || {
        Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, HTTP))?)
    })?;
    std::thread::spawn(move || {
        for client in listener.incoming().filter_map(Result::ok) {
            std::thread::spawn(move || answer_all(node, client));
        }
    });
    Ok(())
}

fn answer_all(node: &str, client: TcpStream) -> Result<()> {
    let mut requests = BufReader::new(client);
    while let Some(request) = Message::read(&mut requests)? {
        let client = requests.get_mut();
        let target = request.first.split(' ').nth(1).unwrap_or_default();
        let (_, page) = target.rsplit_once('/').unwrap_or_default();
        let said = match page {
            "upload" => format!("{node} {}", request.body.len()),
            "unmeasured" => {
                write!(client, "HTTP/1.0 200 OK\r\n\r\n")?;
                client.write_all(node.repeat(LARGE / node.len()).as_bytes())?;
                return Ok(client.shutdown(Shutdown::Write)?);
            }
            "echo" => return echo(node, requests),
            _ => node.to_owned(),
        };
        let length = said.len();
        write!(
            client,
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{said}"
        )?;
    }
    Ok(())
}

/// Switches protocols, and sends back what comes.
fn echo(node: &str, mut client: BufReader<TcpStream>) -> Result<()> {
    write!(
        client.get_mut(),
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: \
         websocket\r\n\r\n{node}: "
    )?;
    let mut said = Vec::new();
    client.read_to_end(&mut said)?;
    client.get_mut().write_all(&said)?;
    Ok(())
}

/// A request or an answer.
pub(crate) struct Message {
    /// Its first line.
    first: String,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// The next one; `None` at the end. The sender of a body is told to continue if it waits for
    /// that.
    pub(crate) fn read(from: &mut BufReader<TcpStream>) -> Result<Option<Self>> {
        let first = line(from)?;
        if first.is_empty() {
            return Ok(None);
        }
        let mut headers = String::new();
        loop {
            let header = line(from)?.to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            headers.push_str(&header);
            headers.push('\n');
        }
        if headers.contains("expect: 100-continue\n") {
            from.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let length = headers
            .lines()
            .find_map(|header| header.strip_prefix("content-length: "));
        let mut body = Vec::new();
        if headers.contains("transfer-encoding: chunked\n") {
            while read_chunk(from, &mut body)? > 0 {}
        } else if let Some(length) = length {
            body.resize(length.parse()?, 0);
            from.read_exact(&mut body)?;
        }
        Ok(Some(Self { first, body }))
    }
}

fn read_chunk(from: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> Result<usize> {
    let length = usize::from_str_radix(&line(from)?, 16)?;
    let end = body.len();
    body.resize(end + length, 0);
    from.read_exact(&mut body[end..])?;
    line(from)?;
    Ok(length)
}

fn line(from: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
