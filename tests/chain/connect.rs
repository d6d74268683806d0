//! CONNECT, for clients that know the proxy: on its Unix socket, and over mutual TLS.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::Lab;
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::wait::PATIENCE;

use crate::world::{self, ECHO, FORBIDDEN, GREET, SMALL, SMALL_SOURCE, World};
use culvert_lab::pki::{Authority, Issued, Use, text};

const EDGE: &[Host] = &[Host::Edge1];

/// In every allow-list, but no program listens there.
const CLOSED: u16 = 10255;
/// The same, and a [`BlackHole`] in tests that make one.
pub(crate) const SWALLOWED: u16 = 10250;

#[test]
fn names_addresses_and_vips_lead_to_the_node() {
    world::with(EDGE, Options::default(), |world| {
        for host in hosts(world)? {
            let answer = connect(world, &format!("{host}:{GREET}"))?;
            ensure!(answer.is_greeting(), "{host}: {answer:?}");
        }
        Ok(())
    });
}

/// Every name and address of edge-1 that a client may use.
fn hosts(world: &World<'_>) -> Result<Vec<String>> {
    let vip4 = world.vip(Host::Edge1, "vip4")?;
    let vip6 = world.vip(Host::Edge1, "vip6")?;
    Ok(vec![
        "edge-1".into(),
        "edge-1.edge.internal".into(),
        "10.0.3.7".into(),
        vip4.to_string(),
        format!("[{vip6}]"),
    ])
}

#[test]
fn each_refusal_has_a_status_and_says_why() {
    world::with(EDGE, Options::default(), |world| {
        // Nodes that never connected, with the same address.
        world.culvert.create_token(Host::Edge2, &[])?;
        world.culvert.create_token(Host::Edge3, &[])?;
        let _hole = BlackHole::on(world.lab, SWALLOWED)?;
        for (target, status, error) in [
            ("edge-1".to_owned(), "400 Bad Request", "http_request_error"),
            ("edge-1:0".into(), "400 Bad Request", "http_request_error"),
            (
                "edge-1:http".into(),
                "400 Bad Request",
                "http_request_error",
            ),
            (
                "edge-9:9100".into(),
                "403 Forbidden",
                "destination_not_found",
            ),
            (
                "10.9.9.9:9100".into(),
                "403 Forbidden",
                "destination_not_found",
            ),
            (
                "203.0.113.1:22".into(),
                "403 Forbidden",
                "destination_not_found",
            ),
            (
                "192.168.1.10:9100".into(),
                "403 Forbidden",
                "destination_ip_prohibited",
            ),
            (
                format!("edge-1:{FORBIDDEN}"),
                "403 Forbidden",
                "http_request_denied",
            ),
            (
                format!("edge-1:{CLOSED}"),
                "502 Bad Gateway",
                "connection_refused",
            ),
            (
                "edge-2:9100".into(),
                "503 Service Unavailable",
                "destination_unavailable",
            ),
            (
                format!("edge-1:{SWALLOWED}"),
                "504 Gateway Timeout",
                "connection_timeout",
            ),
        ] {
            let answer = connect(world, &target)?;
            ensure!(
                answer.head.starts_with(&format!("HTTP/1.1 {status}\r\n")),
                "{target}: {answer:?}"
            );
            let proxy_status = format!("\r\nProxy-Status: culvert; error={error}; details=\"");
            ensure!(answer.head.contains(&proxy_status), "{target}: {answer:?}");
        }
        Ok(())
    });
}

#[test]
fn what_is_no_connect_request_is_refused_and_the_next_one_is_served() {
    world::with(EDGE, Options::default(), |world| {
        for sent in [
            "GET / HTTP/1.1\r\nHost: edge-1\r\n\r\n",
            "\x16\x03\x01\x02\x00\x01\r\n\r\n",
            &"x".repeat(20_000),
        ] {
            let socket = unix_socket(world)?;
            let answer = Answer::of(&socket, &socket, sent.as_bytes(), 0)?;
            ensure!(
                answer.head.starts_with("HTTP/1.1 400 "),
                "{:.30}: {answer:?}",
                sent
            );
        }
        ensure!(
            connect(world, &format!("edge-1:{GREET}"))?.is_greeting(),
            "afterwards"
        );
        Ok(())
    });
}

#[test]
fn who_a_client_says_it_is_is_logged_as_a_claim_of_one_line() {
    world::with(EDGE, Options::default(), |world| {
        for (user, status) in [("ada@example.org", " 200 "), (&"a".repeat(300), " 400 ")] {
            let mut socket = unix_socket(world)?;
            socket.write_all(&request_of(user, &format!("edge-1:{GREET}")))?;
            let answer = Answer::of(&socket, &socket, b"", GREETING.len())?;
            ensure!(answer.head.contains(status), "{user}: {answer:?}");
        }
        let ended = [
            ("frontend", "connect_socket"),
            ("user_claimed", "ada@example.org"),
        ];
        world.wait_proxy_log("stream ended", &ended)
    });
}

#[test]
fn nothing_is_answered_before_the_backend_has() {
    world::with(EDGE, Options::default(), |world| {
        let hole = BlackHole::on(world.lab, GREET)?;
        let mut socket = unix_socket(world)?;
        socket.write_all(&request(&format!("edge-1:{GREET}")))?;
        socket.set_read_timeout(Some(Duration::from_millis(700)))?;
        let early = socket.read(&mut [0; 1]).map_err(|error| error.kind());
        ensure!(early == Err(ErrorKind::WouldBlock), "{early:?}");
        drop(hole);
        // The kernel of the edge repeats its SYN within the agent's time limit.
        socket.set_read_timeout(Some(PATIENCE))?;
        let answer = Answer::of(&socket, &socket, b"", GREETING.len())?;
        ensure!(answer.is_greeting(), "{answer:?}");
        Ok(())
    });
}

#[test]
fn bytes_sent_behind_the_request_arrive_whole() {
    world::with(EDGE, Options::default(), |world| {
        for length in [1, 200_000] {
            let behind: Vec<u8> = (0..length).map(|at: u32| (at % 251) as u8).collect();
            let sent = [request(&format!("edge-1:{ECHO}")), behind.clone()].concat();
            let socket = unix_socket(world)?;
            let answer = Answer::of(&socket, &socket, &sent, behind.len())?;
            ensure!(
                answer.is_established() && answer.body == behind,
                "{length} bytes: {}",
                answer.head
            );
        }
        Ok(())
    });
}

#[test]
fn a_client_with_a_certificate_of_its_own_authority_connects_over_tls() {
    world::prepared(EDGE, with_tls, |world| {
        let client = clients(world.lab).issue("prometheus", Use::Client)?;
        for host in hosts(world)? {
            let (answer, said) = connect_tls(
                world,
                Some(&client),
                &format!("{host}:{GREET}"),
                GREETING.len(),
            )?;
            ensure!(answer.is_greeting(), "{host}: {answer:?} {said}");
        }
        let (answer, said) = connect_tls(world, Some(&client), &format!("edge-1:{CLOSED}"), 0)?;
        ensure!(
            answer.head.starts_with("HTTP/1.1 502 "),
            "{answer:?} {said}"
        );
        let length = usize::try_from(SMALL)?;
        let (answer, said) = connect_tls(
            world,
            Some(&client),
            &format!("edge-1:{SMALL_SOURCE}"),
            length,
        )?;
        ensure!(
            answer.body.len() == length,
            "{} of {length} bytes: {} {said}",
            answer.body.len(),
            answer.head
        );
        Ok(())
    });
}

#[test]
fn a_client_with_no_certificate_or_with_an_agent_s_is_refused_over_tls() {
    world::prepared(EDGE, with_tls, |world| {
        let identity = world.lab.site(Host::Edge1).file("agent/identity.pem");
        let agent = Issued {
            certificate: identity.clone(),
            key: identity,
        };
        let stranger = Authority::at(world.lab.site(Host::Cloud).file("strangers")).make()?;
        let stranger = stranger.issue("prometheus", Use::Client)?;
        for (who, certificate, alert) in [
            ("nobody", None, "certificate required"),
            ("an agent", Some(&agent), "unknown ca"),
            ("a stranger", Some(&stranger), "unknown ca"),
        ] {
            let (answer, said) = connect_tls(
                world,
                certificate,
                &format!("edge-1:{GREET}"),
                GREETING.len(),
            )?;
            ensure!(
                answer.head.is_empty() && said.contains(alert),
                "{who}: {answer:?} {said}"
            );
        }
        world.wait_proxy_log("CONNECT refused", &[("reason", "TLS handshake failed")])
    });
}

pub(crate) const GREETING: &str = "hello from edge-1\n";

/// The answer to a CONNECT.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The head, including the empty line.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Sends a request and reads until `enough` bytes have followed a successful head, or until the
    /// end.
    pub(crate) fn of(
        mut output: impl Read,
        mut input: impl Write,
        sent: &[u8],
        enough: usize,
    ) -> Result<Self> {
        input.write_all(sent)?;
        let mut answer = Vec::new();
        let mut piece = [0; 65536];
        loop {
            let head = answer
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
                .map_or(0, |at| at + 4);
            let success = head > 0 && answer.starts_with(b"HTTP/1.1 200 ");
            let count = if success && answer.len() >= head + enough {
                0
            } else {
                match output.read(&mut piece) {
                    // As after a pause of the whole machine.
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    read => read
                        .with_context(|| format!("so far {:?}", &answer[..answer.len().min(99)]))?,
                }
            };
            if count == 0 {
                let body = answer.split_off(head);
                return Ok(Self {
                    head: String::from_utf8_lossy(&answer).into_owned(),
                    body,
                });
            }
            answer.extend_from_slice(&piece[..count]);
        }
    }

    pub(crate) fn is_established(&self) -> bool {
        self.head == "HTTP/1.1 200 Connection Established\r\n\r\n"
    }

    pub(crate) fn is_greeting(&self) -> bool {
        self.is_established() && self.body == GREETING.as_bytes()
    }
}

fn request(target: &str) -> Vec<u8> {
    // The Host header that kube-apiserver sends, whatever it dials.
    format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").into_bytes()
}

/// The same of a client that says who it is.
pub(crate) fn request_of(user: &str, target: &str) -> Vec<u8> {
    format!("CONNECT {target} HTTP/1.1\r\nculvert-user: {user}\r\n\r\n").into_bytes()
}

fn dial(path: &Path) -> Result<UnixStream> {
    let socket =
        UnixStream::connect(path).with_context(|| format!("connect to {}", path.display()))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

pub(crate) fn unix_socket(world: &World<'_>) -> Result<UnixStream> {
    dial(&world.culvert.socket("connect.sock"))
}

/// Sends a CONNECT for `target`; the answer is not read yet.
pub(crate) fn open(world: &World<'_>, target: &str) -> Result<UnixStream> {
    let mut socket = unix_socket(world)?;
    socket.write_all(&request(target))?;
    Ok(socket)
}

pub(crate) fn connect(world: &World<'_>, target: &str) -> Result<Answer> {
    let socket = unix_socket(world)?;
    Answer::of(&socket, &socket, &request(target), GREETING.len())
}

/// A stream to the target by this CONNECT socket, after the answer.
pub(crate) fn stream(socket: &Path, target: &str) -> Result<UnixStream> {
    let mut socket = dial(socket)?;
    socket.write_all(&request(target))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    ensure!(head.contains(" 200 "), "{target}: {head}");
    Ok(socket)
}

/// The answer at this CONNECT socket, read until `enough` bytes have followed a success.
pub(crate) fn answer_at(socket: &Path, target: &str, enough: usize) -> Result<Answer> {
    let socket = dial(socket)?;
    Answer::of(&socket, &socket, &request(target), enough)
}

/// Fails if edge-1 does not greet a client of this CONNECT socket.
pub(crate) fn check_greeting(socket: &Path, target: &str) -> Result<()> {
    let answer = answer_at(socket, target, GREETING.len())?;
    ensure!(answer.is_greeting(), "{target}: {answer:?}");
    Ok(())
}

/// The answer that openssl's client gets in the cloud, and openssl's own output.
fn connect_tls(
    world: &World<'_>,
    client: Option<&Issued>,
    target: &str,
    enough: usize,
) -> Result<(Answer, String)> {
    let site = world.lab.site(Host::Cloud);
    let mut command = site.command("timeout");
    command.args([
        "20",
        "openssl",
        "s_client",
        "-quiet",
        "-connect",
        "203.0.113.1:7402",
    ]);
    // The proxy proves that its certificate has the dialled name.
    command.args([
        "-verify_return_error",
        "-verify_ip",
        "203.0.113.1",
        "-CAfile",
    ]);
    command.arg(world.lab.site(Host::Edge1).file("agent/ca.pem"));
    if let Some(Issued { certificate, key }) = client {
        command.arg("-cert").arg(certificate).arg("-key").arg(key);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let input = child.stdin.take().context("stdin")?;
    let output = child.stdout.take().context("stdout")?;
    let answer = Answer::of(output, &input, &request(target), enough)?;
    drop(input);
    let said = child.wait_with_output()?.stderr;
    Ok((answer, String::from_utf8_lossy(&said).into_owned()))
}

/// The authority of CONNECT clients.
pub(crate) fn clients(lab: &Lab) -> Authority {
    Authority::at(lab.site(Host::Cloud).file("clients"))
}

/// Enables CONNECT over TLS, with a separate authority for clients.
pub(crate) fn with_tls(lab: &Lab) -> Result<Options> {
    let authority = text(&clients(lab).make()?.certificate());
    Ok(world::proxy_options([
        "--connect-listen",
        "203.0.113.1:7402",
        "--connect-client-ca",
        &authority,
    ]))
}

/// While it exists, dials of edge-1 to its own address and this port get no answer.
pub(crate) struct BlackHole<'lab>(&'lab Lab);

impl<'lab> BlackHole<'lab> {
    pub(crate) fn on(lab: &'lab Lab, port: u16) -> Result<Self> {
        let rules = format!(
            "table ip hole {{ chain in \
             {{ type filter hook input priority filter; iifname lo tcp dport {port} drop; }}; }}"
        );
        lab.site(Host::Edge1).output("nft", [rules])?;
        Ok(Self(lab))
    }
}

impl Drop for BlackHole<'_> {
    fn drop(&mut self) {
        if let Err(error) = self
            .0
            .site(Host::Edge1)
            .output("nft", ["delete table ip hole"])
        {
            eprintln!("closing the black hole: {error:#}");
        }
    }
}
