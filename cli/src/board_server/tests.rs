use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_site::testing::{self, board, node_name};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::*;
use crate::args::Output;
use crate::hosts::Hosts;
use crate::screen::Screen;

const SECRET: &str = "0123456789abcdef";

#[test]
fn a_name_that_leads_here_is_no_name_of_this_host() {
    for host in [
        "127.0.0.1",
        "127.0.0.1:7480",
        "127.3.2.1:80",
        "localhost:9",
        "[::1]:7480",
    ] {
        assert!(is_this_host(host.as_bytes()), "{host}");
    }
    for host in [
        "",
        "rebound.example:7480",
        "10.0.0.2:7480",
        "localhost.example",
        "127.0.0.1.example",
        "127.0.0.1@rebound.example",
        "[fd00::1]:7480",
    ] {
        assert!(!is_this_host(host.as_bytes()), "{host}");
    }
}

/// The pages of a site, and where they are served until the runtime ends.
fn serve(runtime: &Runtime, nodes: usize) -> Result<SocketAddr> {
    let shared = SharedBoard::default();
    *shared.lock() = board(nodes);
    let session = Session {
        hosts: Hosts {
            cloud: Vec::new(),
            edge: Vec::new(),
        },
        timeout: Duration::from_secs(1),
        output: Output::Text,
        screen: Screen::file(),
    };
    let frame = Frame {
        seconds: 5,
        asked: "3 hosts".to_owned(),
        left_out: None,
    };
    let pages = router(SECRET, Arc::new(session), shared, frame);
    Ok(testing::serve(runtime, pages)?)
}

async fn ask(address: SocketAddr, path: &str, host: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[test]
fn a_foreign_name_is_refused_and_nothing_is_found_without_the_secret() -> Result<()> {
    let runtime = Runtime::new()?;
    let address = serve(&runtime, 20)?;
    let node = node_name(0);
    for (path, host, status) in [
        (format!("/{SECRET}/"), "localhost:1", 200),
        (
            format!("/{SECRET}/?find=edge-1&sort=far&page=9"),
            "127.0.0.1",
            200,
        ),
        (format!("/{SECRET}/?page=none"), "127.0.0.1", 200),
        (format!("/{SECRET}/node/{node}"), "127.0.0.1", 200),
        (format!("/{SECRET}/node/none"), "127.0.0.1", 404),
        (format!("/{SECRET}/style.css"), "127.0.0.1", 200),
        (format!("/{SECRET}/"), "rebound.example", 403),
        (format!("/{SECRET}/style.css"), "rebound.example", 403),
        ("/".to_owned(), "127.0.0.1", 404),
        (format!("/node/{node}"), "127.0.0.1", 404),
    ] {
        let answer = runtime.block_on(ask(address, &path, host))?;
        ensure!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path} of {host}: {answer:.400}"
        );
        ensure!(
            answer.contains("content-security-policy: default-src 'none'")
                && answer.contains("cache-control: no-store"),
            "{path}: {answer:.900}"
        );
    }
    Ok(())
}
