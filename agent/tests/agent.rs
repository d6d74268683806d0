//! Runs the agent's program as an operator does.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Deadline for every wait.
const DEADLINE: Duration = Duration::from_secs(10);

/// A running agent of node `edge-1` with ready certificates. Dropping it kills it.
struct Agent {
    child: Child,
    log: BufReader<ChildStderr>,
    admin: String,
}

impl Agent {
    fn start(root: &Path, proxy: &str) -> Self {
        let file = |name: &str| root.join(name).into_os_string();
        let mut child = agent()
            .args(["--proxy", proxy, "--admin-listen", "127.0.0.1:0"])
            .args([
                "--cert".into(),
                file("cert.pem"),
                "--key".into(),
                file("key.pem"),
                "--ca".into(),
                file("ca.pem"),
            ])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("agent started") {
            line.clear();
            assert_ne!(
                log.read_line(&mut line).unwrap(),
                0,
                "the agent ended early"
            );
        }
        let (_, admin) = line.split_once("admin.addr=").unwrap();
        let admin = admin.split_whitespace().next().unwrap().to_owned();
        Self { child, log, admin }
    }

    fn until_signals_are_handled(&self) {
        let deadline = Instant::now() + DEADLINE;
        while !self.handles_sigterm() {
            assert!(Instant::now() < deadline, "SIGTERM is not handled");
            std::thread::yield_now();
        }
    }

    fn handles_sigterm(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))
            .unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (Signal::SIGTERM as u32 - 1)) != 0
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn agent() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_culvert-agent"));
    command.env_clear().stdin(Stdio::null());
    command
}

fn write_certificates(root: &Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["edge-1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &Issuer::new(params, ca_key)).unwrap();
    for (name, text) in [
        ("ca.pem", ca.pem()),
        ("cert.pem", leaf.pem()),
        ("key.pem", key.serialize_pem()),
    ] {
        std::fs::write(root.join(name), text).unwrap();
    }
}

fn closed_port() -> String {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string()
}

#[test]
fn an_agent_without_a_tunnel_is_alive_and_says_what_it_waits_for() {
    let root = tempfile::tempdir().unwrap();
    write_certificates(root.path());
    let proxy = closed_port();
    let mut agent = Agent::start(root.path(), &proxy);
    assert!(agent.get("/livez").starts_with("HTTP/1.1 200"));
    let mut line = String::new();
    while !line.contains("no tunnel") {
        line.clear();
        assert_ne!(
            agent.log.read_line(&mut line).unwrap(),
            0,
            "the agent ended"
        );
    }
    assert!(line.contains(&proxy) && line.contains("refused"), "{line}");
    let ready = agent.get("/readyz");
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains("tunnel: ") && ready.contains(&proxy),
        "{ready}"
    );
    assert!(!ready.contains("certificate: "), "{ready}");
    let tunnels = agent.get("/debug/tunnels");
    assert!(
        tunnels.matches(&format!("\"proxy\":\"{proxy}\"")).count() >= 2,
        "{tunnels}"
    );
    assert!(agent.get("/debug/streams").ends_with("[]"));
    let metrics = agent.get("/metrics");
    assert!(
        metrics.contains("culvert_agent_certificate_expiry_timestamp_seconds "),
        "{metrics}"
    );
    assert!(
        metrics.contains("culvert_agent_tunnel_attempts_total{outcome=\"unreachable\"}"),
        "{metrics}"
    );
}

#[test]
fn a_signal_ends_an_idle_agent_well() {
    let root = tempfile::tempdir().unwrap();
    write_certificates(root.path());
    let mut agent = Agent::start(root.path(), &closed_port());
    agent.until_signals_are_handled();
    kill(
        Pid::from_raw(agent.child.id().try_into().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let mut rest = String::new();
    agent.log.read_to_string(&mut rest).unwrap();
    assert!(agent.child.wait().unwrap().success(), "{rest}");
}

#[test]
fn an_agent_that_has_not_joined_says_what_to_run() {
    let root = tempfile::tempdir().unwrap();
    let output = agent()
        .arg("--state-dir")
        .arg(root.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && text.contains("culvert-agent join"),
        "{text}"
    );
}

#[test]
fn a_join_dials_through_the_proxy_of_the_environment() {
    let root = tempfile::tempdir().unwrap();
    let forward = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = agent()
        .env(
            "https_proxy",
            format!(
                "http://aladdin:opensesame@{}",
                forward.local_addr().unwrap()
            ),
        )
        .args([
            "join",
            "--proxy",
            "culvert.invalid:7400",
            "--token",
            "t",
            "--state-dir",
        ])
        .arg(root.path())
        .args(["--ca-pin", &format!("sha256:{}", "0".repeat(64))])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = forward.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut request = String::new();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    while !request.ends_with("\r\n\r\n") {
        assert_ne!(lines.read_line(&mut request).unwrap(), 0, "{request}");
    }
    stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").unwrap();
    let mut text = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(
        request.starts_with("CONNECT culvert.invalid:7400 "),
        "{request}"
    );
    assert!(
        request.contains("Proxy-Authorization: Basic YWxhZGRpbjpvcGVuc2VzYW1l\r\n"),
        "{request}"
    );
    assert!(
        text.contains("culvert.invalid:7400") && !text.contains("opensesame"),
        "{text}"
    );
}
